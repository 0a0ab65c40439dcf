"""Directions of translation in one model by name: `de-en` is from German into English."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from leadline.errors import UserError, nearest

ANY = "X"


def ends(direction: str) -> tuple[str, str]:
    """From which language into which."""
    source, _, target = direction.partition("-")
    return source, target


def reverse(direction: str) -> str:
    return "-".join(reversed(ends(direction)))


def arrow(direction: str) -> str:
    """For people."""
    return direction.replace("-", "→")


def sources(directions: Iterable[str]) -> list[str]:
    return sorted({ends(direction)[0] for direction in directions})


def targets(directions: Iterable[str]) -> list[str]:
    return sorted({ends(direction)[1] for direction in directions})


def chosen(asked: Sequence[str], there: Iterable[str], where: str) -> tuple[str, ...]:
    """Those of `there` that are asked for, sorted: named, X-en (all into en), en-X, or both (all)."""
    there = sorted(there)
    wanted: set[str] = set()
    for item in asked:
        source, target = (ANY, ANY) if item == "both" else ends(item)
        some = [d for d in there if source in (ANY, ends(d)[0]) and target in (ANY, ends(d)[1])]
        if not some:
            raise UserError(f"{where} has no direction {item!r}: {nearest(item, there)}")
        wanted.update(some)
    return tuple(sorted(wanted))


def unseen(directions: Sequence[str]) -> list[str]:
    """Directions that were not trained between languages that were: what is called zero-shot."""
    pairs = (f"{source}-{target}" for source in sources(directions) for target in targets(directions))
    return [direction for direction in pairs if direction not in directions and direction != reverse(direction)]
