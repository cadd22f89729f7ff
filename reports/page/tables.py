"""The page's tables: applications, bindings, and request versions. Refused applications come
first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from reports.analysis.facts import MigrationTarget
from reports.analysis.terms import APPLICATION, BELOW, FINE, REFUSED, UNKNOWN
from reports.page.answer import describe, format_bytes
from reports.page.markup import Cell, listed, table, text
from reports.page.page_model import PageModel, Row

WORDS = {
    REFUSED: "would be refused",
    BELOW: "too old to be supported",
    UNKNOWN: "support unknown",
    FINE: "fine",
}
SIGNS = {REFUSED: "✕", BELOW: "▼", UNKNOWN: "?", FINE: "✓"}
"""Shown with the text, since colour alone is not accessible."""
USUAL = (0, 1, 2, 3, 8, 9, 10, 11)
"""Requests of nearly all clients; the first columns of the matrix."""
MAX_REQUESTS = 20
"""Columns of the matrix that fit on a sheet of paper."""
MAX_EVIDENCE_CHARS = 300
MAX_LIBRARIES = 6
"""Libraries listed per application."""
CERTAIN = 1.0


def applications(shown: PageModel, total: int, refused: int) -> str:
    rows = [
        [
            _name(row),
            Cell(
                f'<span class="state {row["state"]}">{SIGNS[row["state"]]} '
                f"{WORDS[row['state']]}</span>"
            ),
            Cell(_libraries(row)),
            Cell(_why(row)),
            Cell(_used(row)),
            Cell(
                f"{format_bytes(row['bytes_in'] + row['bytes_out'])}"
                f"<small>{text(row['last_seen'])}</small>",
                "number",
            ),
        ]
        for row in shown.applications
    ]
    head = (
        "Application",
        "State",
        "Library",
        "Problems and advice",
        "Topics and groups",
        "Traffic, last seen",
    )
    return _left_out(shown, total, refused) + table(
        "Applications, refused ones first", head, rows, "cards applications"
    )


def _left_out(shown: PageModel, total: int, refused: int) -> str:
    """States how many applications are not on the page, before the table."""
    listed = len(shown.applications)
    if listed >= total:
        return ""
    more = refused - sum(row["state"] == REFUSED for row in shown.applications)
    among = f", including {more:,} that would be refused" if more > 0 else ""
    return (
        f'<p class="left-out">The first {listed:,} of {total:,} applications. The other '
        f"{total - listed:,} are in clients.csv{among}.</p>"
    )


def _libraries(row: Row) -> str:
    """One library with its evidence; several with share of traffic, state and difference."""
    several = row.get("libraries") or []
    if len(several) < 2:
        return f"{_library(row)}<small>{text(_evidence(row), MAX_EVIDENCE_CHARS)}</small>"
    items = "".join(f"<li>{_one_of_several(one)}</li>" for one in several[:MAX_LIBRARIES])
    more = len(several) - MAX_LIBRARIES
    return f"<ul>{items}</ul>" + (f"and {more:,} more" if more > 0 else "")


def _one_of_several(one: Row) -> str:
    share = "" if one["share"] is None else f", {_percent(one['share'])} of the traffic"
    told = f"{SIGNS[one['state']]} {_library(one)}{share}, last seen {text(one['last_seen'])}"
    return f"{told}<small>{text(one['difference'] or _evidence(one), MAX_EVIDENCE_CHARS)}</small>"


def _percent(share: float) -> str:
    return "under 1%" if 0 < share < 0.01 else f"{share:.0%}"


def _library(row: Row) -> str:
    if not row["library"]:
        return "unknown"
    low, high = row["version_low"], row["version_high"]
    versions = (
        (low or "")
        if low == high
        else f"{low} or newer"
        if high is None
        else f"up to {high}"
        if low is None
        else f"{low} to {high}"
    )
    named = text(" ".join(filter(None, [row["library"], versions])))
    return named if row["confidence"] >= CERTAIN else f"probably {named} ({row['confidence']:.0%})"


def _evidence(row: Row) -> str:
    """The requests are in the matrix, so they are shown only if there is no other evidence."""
    return str(row["evidence"]).split("; sends ")[0]


def _why(row: Row) -> str:
    """One list item per reason."""
    reasons = "".join(
        f"<li>{escape(reason)}</li>" for reason in row["reasons"].split(", ") if reason
    )
    needs = f"needs {escape(row['needs'])}" if row["needs"] else ""
    return (f"<ul>{reasons}</ul>" if reasons else "") + needs


def _used(row: Row) -> str:
    topics = listed(row["topics"], row.get("topic_count"))
    groups = listed(row["groups"], row.get("group_count"))
    return topics + (f"<small>groups: {groups}</small>" if groups else "")


def bindings(shown: PageModel) -> str:
    if not shown.bindings:
        return "<p>None: no topic or group is used by both.</p>"
    rows = [
        [
            Cell(f"{text(row['name'])}<small>{row['kind']}</small>", "name", is_heading=True),
            Cell(listed([describe(one) for one in row["old_applications"]], row["old"])),
            Cell(f"{row['new']:,}", "number"),
            Cell(format_bytes(row["bytes"]), "number"),
        ]
        for row in shown.bindings
    ]
    head = ("Topic or group", "Refused applications", "Other applications", "Traffic")
    return table("Topics and groups used by both, by traffic", head, rows, "cards bindings")


def matrix(shown: PageModel, target: MigrationTarget, names: Mapping[int, str]) -> str:
    keys = _columns(shown, target)
    left_out = len({key for versions in shown.versions.values() for key in versions}) - len(keys)
    more = f" {left_out} more requests are in matrix.csv." if left_out else ""
    rows = []
    for row in shown.applications:
        versions = shown.versions.get(tuple(row[name] for name in APPLICATION), {})
        rows.append([_name(row), *[_version(versions.get(key), target, key) for key in keys]])
    told = (
        '<p>Versions sent by each application, lowest to highest. <b class="refused">Bold on '
        f"red with ✕</b>: refused.{more}</p>"
    )
    head = ["Application", *[names.get(key, f"key {key}") for key in keys]]
    return told + table("Versions of requests by application", head, rows, "wide")


def _columns(shown: PageModel, target: MigrationTarget) -> Sequence[int]:
    """The usual requests, then refused ones, then others."""
    sent: dict[int, bool] = {}
    for versions in shown.versions.values():
        for key, pair in versions.items():
            sent[key] = sent.get(key, False) or _is_refused(pair, target, key)
    order = sorted(sent, key=lambda key: (key not in USUAL, not sent[key], key))
    return order[:MAX_REQUESTS]


def _version(versions: tuple[int, int] | None, target: MigrationTarget, key: int) -> Cell:
    if versions is None:
        return Cell("")
    lowest, highest = versions
    told = f"{lowest}" if lowest == highest else f"{lowest}–{highest}"
    return (
        Cell(f"{told} ✕", "version refused")
        if _is_refused(versions, target, key)
        else Cell(told, "version")
    )


def _is_refused(versions: tuple[int, int], target: MigrationTarget, key: int) -> bool:
    maximum = target.maximums.get(key)
    return versions[0] < target.minimums.get(key, 0) or (
        maximum is not None and versions[1] > maximum
    )


def _name(row: Row) -> Cell:
    named = text(row["client_id"] or "no client id")
    return Cell(
        f"{named}<small>{text(row['principal'] or 'no principal')} at "
        f"{text(row['address'] or 'unknown address')}</small>",
        "name",
        is_heading=True,
    )
