"""Where the command begins: a Ctrl-C while it loads is quiet too."""

import sys


def main() -> None:
    try:
        from leadline import cli
    except KeyboardInterrupt:
        print("leadline: stopped", file=sys.stderr)
        sys.exit(130)
    cli.main()


if __name__ == "__main__":
    main()
