"""The five-line answer on stdout, the warnings, and text formatting."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

READY, NOT_READY = 0, 3
"""Exit codes."""
MAX_NAME_CHARS = 80
"""Characters shown of a name; clients can send up to 512. The tables have the full names."""
UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def exit_code(summary: Mapping[str, Any]) -> int:
    return READY if summary["ready"] else NOT_READY


def five_lines(summary: Mapping[str, Any]) -> list[str]:
    lines = [
        _readiness(summary),
        _first_to_move(summary),
        _bound(summary),
        _cost(summary["conversions"]),
        _trend(summary["trend"]),
    ]
    return [printable(line) for line in lines]


def warnings(log: Mapping[str, Any]) -> list[str]:
    """One line per problem with the log. `log` is the "log" part of the summary."""
    lines = [f"file skipped: {file['file']}: {file['reason']}" for file in log["damaged"]]
    lines += [
        f"{count} new lines quarantined: {reason}" for reason, count in log["quarantined"].items()
    ]
    if log["library_not_looked_for"]:
        lines.append(
            f"library not determined for {log['library_not_looked_for']} applications: "
            "too many kinds of clients"
        )
    if log["lines_missing"]:
        lines.append(
            f"{log['lines_missing']} lines are missing: dropped by gateways, in "
            "quarantine, or in deleted files"
        )
    return [printable(f"Warning: {line}") for line in lines]


def printable(text: str) -> str:
    """Replace control characters: names from clients could contain terminal escapes or line
    breaks.
    """
    return "".join(
        letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text
    )


def _readiness(summary: Mapping[str, Any]) -> str:
    count = summary["applications"]
    verdict = "ready" if summary["ready"] else "NOT READY"
    parts = [
        f"{count['refused']} refused",
        f"{count['below']} below the supported baseline",
        f"{count['unknown']} of unknown library or version",
        f"{count['fine']} fine",
    ]
    return (
        f"{summary['target']}: {verdict}. {count_of(count['total'], 'application')} "
        f"{period(summary)}: {', '.join(parts)}"
    )


def _first_to_move(summary: Mapping[str, Any]) -> str:
    if not summary["blockers"]:
        return "migrate first: none"
    first = summary["blockers"][0]
    needs = f"; needs {first['needs']}" if first["needs"] else ""
    return (
        f"migrate first: {describe(first)}, {format_bytes(first['bytes'])} in total, "
        f"sends {first['reasons']}{needs}"
    )


def _bound(summary: Mapping[str, Any]) -> str:
    bound = summary["bindings"]
    if not bound["topics"] and not bound["groups"]:
        return "shared: no topic or group has both old and new applications"
    return (
        f"shared: {count_of(bound['topics'], 'topic')} and {count_of(bound['groups'], 'group')} "
        f"with old and new applications, first {shorten(bound['first'])}"
    )


def _cost(cost: Mapping[str, Any]) -> str:
    if not cost["conversions"]:
        return "conversions: none"
    first = cost["most"][0]
    return (
        f"conversions: {format_seconds(cost['cpu_seconds'])} of CPU for "
        f"{format_bytes(cost['bytes'])}, most of it ({format_seconds(first['cpu_seconds'])}) "
        f"for {describe(first)}"
    )


def _trend(trend: Mapping[str, Any]) -> str:
    moved = (
        f"from {trend['first']} to {trend['last']} refused applications a day; "
        if trend["days"]
        else ""
    )
    if trend["reaches_zero"]:
        return f"trend: {moved}none from {trend['reaches_zero']} ({trend['why']})"
    return f"trend: {moved}{trend['why']}"


def describe(application: Mapping[str, Any]) -> str:
    """Describe an application by client id, principal and address."""
    names = (
        application["client_id"] or "no client id",
        application["principal"] or "no principal",
        application["address"] or "unknown address",
    )
    return "{} ({} at {})".format(*map(shorten, names))


def period(summary: Mapping[str, Any]) -> str:
    """The days covered by the report."""
    first, last = summary["from"], summary["until"]
    return f"on {first}" if first == last else f"from {first} to {last}"


def shorten(name: str, letters: int = MAX_NAME_CHARS) -> str:
    """Shorten a name in the middle, since long names often differ at the end."""
    end = letters // 3
    return name if len(name) <= letters else f"{name[: letters - end - 1]}…{name[-end:]}"


def format_seconds(number: float) -> str:
    if 0 < number < 0.001:
        return "under 1 ms"
    return f"{number * 1000:.0f} ms" if number < 1 else f"{number:,.1f} s"


def format_bytes(number: float) -> str:
    for unit in UNITS[:-1]:
        if number < 1024:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} {UNITS[-1]}"


def count_of(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"
