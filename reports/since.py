"""The --since option: the first day of the report."""

from __future__ import annotations

import argparse
import re
from datetime import UTC, date, datetime, timedelta


def day(text: str) -> date:
    """Parse a day (2026-11-01) or a number of days before today (30d). Raises ValueError."""
    try:
        if days := re.fullmatch(r"(\d{1,5})d", text):
            return datetime.now(UTC).date() - timedelta(days=int(days[1]))
        return date.fromisoformat(text)
    except (ValueError, OverflowError):
        raise ValueError(
            f"{text!r} is neither a day (2026-11-01) nor a number of days (30d)"
        ) from None


def argument(text: str) -> date:
    """`day`, for argparse."""
    try:
        return day(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
