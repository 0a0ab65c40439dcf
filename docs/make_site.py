"""What the site has beside the pages of this folder; mkdocs calls it (mkdocs.yml, hooks).

Pages are written so that their links work on GitHub. Here those that lead out of docs/ are turned: to the README,
CONTRIBUTING and CHANGELOG, which become pages, and to files of the code, which lie under source/.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
LINK = re.compile(r"(?<=\]\()[^)\s]+(?=\))")


def links(text: str) -> Iterator[str]:
    """Where the links of a page lead, those in blocks of code left out."""
    for line in outside_code(text):
        yield from LINK.findall(line)


def outside_code(text: str) -> Iterator[str]:
    fenced = False
    for line in text.splitlines():
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced:
            yield line


def placed(link: str, page: str) -> str:
    """A link of a page, given by its path in the repository, as it is written on the site."""
    if re.match("[a-z]+:|#", link):
        return link
    path, mark, anchor = link.partition("#")
    target = os.path.normpath(Path(page).parent / path)
    return os.path.relpath(uri_of(target), Path(uri_of(page)).parent) + mark + anchor


def uri_of(path: str) -> str:
    """Where a file of the repository lies on the site."""
    return PAGES.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else f"source/{path}")


def turned(text: str, page: str) -> str:
    lines, fenced = [], False
    for line in text.splitlines():
        fenced ^= line.lstrip().startswith("```")
        lines.append(line if fenced else LINK.sub(lambda match: placed(match[0], page), line))
    return "\n".join(lines) + "\n"


def pages() -> list[str]:
    """Every page that is written by hand, by its path in the repository."""
    inside = [str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").rglob("*.md"))]
    return [*PAGES, *inside]


def sources() -> list[str]:
    """The files outside docs/ that pages name."""
    targets = set()
    for page in pages():
        for link in links((ROOT / page).read_text(encoding="utf-8")):
            if not re.match("[a-z]+:|#", link):
                targets.add(os.path.normpath(Path(page).parent / link.partition("#")[0]))
    return sorted(each for each in targets if not each.startswith("docs/") and each not in PAGES)


# ── References, from the code ──


def commands() -> str:
    """Every command with its options, as --help says them."""
    import typer

    from leadline.cli import app

    lines = [
        "# Commands",
        "",
        "Also `leadline COMMAND --help`. `leadline --install-completion` completes them in a shell.",
    ]
    for name, command in _commands(typer.main.get_command(app), "leadline"):
        lines += ["", f"## {name}", "", *_paragraphs(command.help or "")]
        rows = [_parameter(parameter) for parameter in command.params if parameter.name != "help"]
        if rows:
            lines += ["", "| option | meaning |", "|---|---|", *rows]
    return "\n".join(lines) + "\n"


def _commands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    if not hasattr(command, "commands"):
        yield name, command
        return
    for word, inner in command.commands.items():
        yield from _commands(inner, f"{name} {word}")


def _paragraphs(text: str) -> list[str]:
    return [_escaped(line) for line in text.strip().splitlines()]


def _parameter(parameter: Any) -> str:
    argument = parameter.param_type_name == "argument"
    names = (parameter.metavar or parameter.name.upper()) if argument else ", ".join(parameter.opts)
    default = parameter.default
    told = (
        f" Default: `{default}`."
        if isinstance(default, str | int | float | Path) and default not in ("", False)
        else ""
    )
    return f"| `{names}` | {_cell(getattr(parameter, 'help', '') or '')}{told} |"


def keys() -> str:
    """Every key of a config."""
    from leadline.cli.keys import every
    from leadline.files import to_json

    lines = ["# Keys of a config", "", "As in `config.toml` and `--set KEY=VALUE`; `leadline keys WORD` searches them."]
    section = None
    for key in every():
        begins = key.key.rpartition(".")[0]
        if begins != section:
            section = begins
            lines += ["", f"## {section or 'What is trained'}", "", "| key | default | meaning |", "|---|---|---|"]
        choices = f" One of {', '.join(f'`{choice}`' for choice in key.choices)}." if key.choices else ""
        meaning = key.meaning and key.meaning[0].upper() + key.meaning[1:] + "."
        lines.append(f"| `{key.key}` | `{to_json(key.default)}` | {_cell(meaning)}{choices} |")
    return "\n".join(lines) + "\n"


def recipes() -> str:
    """Every recipe with what it says of itself."""
    import inspect

    from leadline.recipes import RECIPES

    lines = [
        "# Recipes",
        "",
        "Complete configs by name: `leadline train RECIPE`. `leadline recipes` says how large they are.",
    ]
    for name, recipe in RECIPES.items():
        lines += ["", f"## {name}", "", *_paragraphs(inspect.getdoc(recipe) or "")]
    return "\n".join(lines) + "\n"


def python() -> str:
    """The names that `import leadline` gives, from their docstrings."""
    import leadline

    lines = ["# Python", "", "What `import leadline` gives. Everything else may change from one version to the next."]
    for name in [*ORDER, *(name for name in leadline.__all__ if name not in ORDER)]:
        home, module = leadline._HOME[name], leadline._HOME[name] == f"leadline.{name}"
        options = [f'      heading: "leadline.{name}"', f'      toc_label: "{name}"']
        lines += ["", f"::: {home}" if module else f"::: {home}.{name}", "    options:", *options]
        lines += [f"      members: {SHOWN[name]}"] if name in SHOWN else []
    return "\n".join(lines) + "\n"


# In which they are needed; others follow.
ORDER = ["train", "resume", "load", "Trained", "compare", "Config", "recipes", "inspect", "Inspection", "Watch"]
ORDER += ["Transformer", "Placement", "Site", "PLACEMENTS", "PreLN", "PostLN", "DeepNorm", "UserError", "Diverged"]

# Where not all that has a docstring is for users: the names that are.
SHOWN = {"recipes": "false", "PLACEMENTS": "false", "Transformer": "[forward]", "Watch": "false", "Config": "[set]"}

GENERATED: dict[str, Callable[[], str]] = {
    "reference/commands.md": commands,
    "reference/keys.md": keys,
    "reference/recipes.md": recipes,
    "reference/python.md": python,
}


def _escaped(text: str) -> str:
    """Text of the code as Markdown shows it: as it is."""
    return re.sub(r"([\\`*_<\[\]])", r"\\\1", text)


def _cell(text: str) -> str:
    return _escaped(" ".join(text.split())).replace("|", "\\|")


# ── What mkdocs calls ──


def on_config(config: Any) -> Any:
    from pymdownx.slugs import slugify

    config.mdx_configs["toc"]["slugify"] = slugify(case="lower")  # as GitHub names headings
    return config


def on_files(files: Any, config: Any) -> Any:
    from mkdocs.structure.files import File

    for path, uri in PAGES.items():
        files.append(File.generated(config, uri, content=(ROOT / path).read_text(encoding="utf-8")))
    for uri, make in GENERATED.items():
        files.append(File.generated(config, uri, content=make()))
    for path in sources():
        files.append(File.generated(config, f"source/{path}", abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    uri = page.file.src_uri
    path = {uri: path for path, uri in PAGES.items()}.get(uri, f"docs/{uri}")
    return markdown if uri in GENERATED else turned(markdown, path)
