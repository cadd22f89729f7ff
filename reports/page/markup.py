"""HTML elements. Names from clients are escaped and shortened; the tables have the full names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from reports.page.answer import MAX_NAME_CHARS, shorten

MAX_LISTED = 6
"""Names in a cell; the number of others is shown."""


@dataclass(frozen=True, slots=True)
class Cell:
    """`content` is HTML, `kind` its CSS classes. A heading cell names its row."""

    content: str
    kind: str = ""
    is_heading: bool = False


def text(value: object, letters: int = MAX_NAME_CHARS) -> str:
    return escape(shorten(str(value), letters))


def listed(names: Sequence[str], count: int | None = None) -> str:
    """The first names, and the number of others."""
    more = (len(names) if count is None else count) - MAX_LISTED
    return ", ".join(map(text, names[:MAX_LISTED])) + (f" and {more:,} more" if more > 0 else "")


def table(caption: str, head: Sequence[str], rows: Sequence[Sequence[Cell]], kind: str) -> str:
    """An HTML table. With `kind` "cards" each row becomes a card on a phone; with "wide" it scrolls
    horizontally.
    """
    names = "".join(f'<th scope="col"><span>{escape(name)}</span></th>' for name in head)
    body = "".join(
        f"<tr>{''.join(_cell(cell, name) for cell, name in zip(row, head, strict=True))}</tr>\n"
        for row in rows
    )
    made = (
        f"<table><caption>{escape(caption)}</caption><thead><tr>{names}</tr></thead>\n"
        f"<tbody>{body}</tbody></table>"
    )
    # tabindex makes the scrollable region reachable by keyboard.
    return (
        f'<div class="{kind}" role="region" aria-label="{escape(caption)}" '
        f'tabindex="0">{made}</div>'
    )


def _cell(cell: Cell, name: str) -> str:
    tag, scope = ("th", ' scope="row"') if cell.is_heading else ("td", "")
    kind = f' class="{cell.kind}"' if cell.kind else ""
    label = f' data-label="{escape(name)}"' if cell.content else ""
    return f"<{tag}{scope}{kind}{label}>{cell.content}</{tag}>"
