"""Does `leadline explain` name what went wrong? See __main__.py."""
