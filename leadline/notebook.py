"""How results look in a notebook: small HTML in the notebook's own colours, light or dark. No torch.

All text is escaped. Styles are inline and colours inherited: a style sheet would reach the rest of the notebook.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

LINE = "1px solid rgba(128,128,128,.4)"
TONES = {"good": "#159570", "bad": "#d55e00", "plain": "rgba(128,128,128,.8)"}  # seen on white and on black


def card(title: str, parts: Iterable[str], tone: str = "plain") -> str:
    """`parts` are HTML, made by the functions below."""
    box = f"border:{LINE};border-left:4px solid {TONES[tone]};border-radius:4px;padding:.6em 1em;max-width:60em"
    return f'<div style="{box}"><div style="font-weight:600">{html.escape(title)}</div>{"".join(parts)}</div>'


def paragraph(text: str) -> str:
    return f'<div style="margin-top:.3em">{html.escape(text)}</div>'


def points(title: str, texts: Sequence[str]) -> str:
    """A list under a title; nothing where there are none."""
    if not texts:
        return ""
    items = "".join(f'<li style="margin:.1em 0">{html.escape(text)}</li>' for text in texts)
    return f'<div style="margin-top:.5em;opacity:.75">{html.escape(title)}</div><ul style="margin:.1em 0">{items}</ul>'


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Numbers on the right; wider than the notebook, it scrolls. Without names of columns it has no head."""
    kept = list(rows)
    numbers = [all(_is_number(value) for value in column if value is not None) for column in zip(*kept, strict=True)]
    lines = [list(columns), *kept] if any(columns) else kept
    cells = "".join(f"<tr>{''.join(map(_cell, line, numbers))}</tr>" for line in lines)
    style = "color:inherit;border-collapse:collapse;font-size:.95em;margin:0"
    return f'<div style="overflow-x:auto;margin-top:.5em"><table style="{style}">{cells}</table></div>'


def shown(value: object) -> str:
    return "–" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def _cell(value: object, number: bool) -> str:
    style = f"padding:.2em 1.2em .2em 0;border:0;border-bottom:{LINE};background:none;white-space:nowrap"
    return f'<td style="{style};text-align:{"right" if number else "left"}">{html.escape(shown(value))}</td>'


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
