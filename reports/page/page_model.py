"""The data shown on the page."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from typing import Any

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class PageModel:
    """Lists of rows are rows of the table with that name.

    `versions` has, by application and api key, the lowest and highest version sent. `kinds` are
    libraries with versions and their applications by state; `kinds_by_day` counts their
    applications by day.
    """

    applications: list[Row]
    versions: dict[tuple[str, ...], dict[int, tuple[int, int]]]
    kinds: list[tuple[str, dict[str, int]]]
    days: list[Row]
    kinds_by_day: list[tuple[str, dict[date, int]]]
    bindings: list[Row]
