"""What the page is made of."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from typing import Any

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class PageModel:
    """Rows are those of the tables of that name. `versions` is by application: by api key the lowest and highest version that it sends. `kinds` are
    libraries with versions, with their applications by state, and over time all of them.
    """

    applications: list[Row]
    versions: dict[tuple[str, ...], dict[int, tuple[int, int]]]
    kinds: list[tuple[str, dict[str, int]]]
    days: list[Row]
    kinds_by_day: list[tuple[str, dict[date, int]]]
    bindings: list[Row]
