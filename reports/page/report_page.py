"""The HTML page: one file that opens from disk, on a phone and in print.

The answer comes first, then plots, then the tables.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import date, datetime
from html import escape
from pathlib import Path
from typing import Any

from reports.analysis.facts import MigrationTarget
from reports.analysis.terms import BELOW, FINE, REFUSED, STATES, UNKNOWN
from reports.page import plots, tables
from reports.page.answer import (
    count_of,
    describe,
    five_lines,
    format_bytes,
    format_seconds,
    period,
    printable,
)
from reports.page.page_model import PageModel
from reports.page.tables import SIGNS, WORDS

STYLE = Path(__file__).with_name("page.css")
MEANINGS = {
    REFUSED: (
        "They send requests that the target does not support. They stop working after the "
        "migration."
    ),
    BELOW: "They keep working, but their library is older than what the target supports.",
    UNKNOWN: (
        "None of their requests would be refused. Library or version is not known well enough "
        "to tell whether it is supported."
    ),
    FINE: "Requests and library are supported.",
}
SHORT = {REFUSED: "refused", BELOW: "too old", UNKNOWN: "unknown", FINE: "fine"}
MAX_TO_MOVE = 5
"""Applications listed at the top; the table below has the others."""
MAX_COSTS = 10
"""Applications in the plot of conversion costs."""
POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def page(
    summary: Mapping[str, Any], shown: PageModel, target: MigrationTarget, names: Mapping[int, str]
) -> str:
    """`names` are the request names by api key."""
    title = f"Ready for {summary['title']}?"
    count = summary["applications"]
    plotted = _kinds(shown) + _trend(shown, summary) + _by_day(shown) + _costs(summary)
    sections = [
        ("overview", "Overview", f'<div class="figures">{plotted}</div>'),
        (
            "applications",
            "Applications",
            tables.applications(shown, count["total"], count[REFUSED]),
        ),
        (
            "bindings",
            "Shared by old and new applications",
            _what_binding_means() + tables.bindings(shown),
        ),
        ("requests", "Requests by application", tables.matrix(shown, target, names)),
        ("log", "Traffic log", _log(summary)),
    ]
    links = "".join(
        f'<li><a href="#{place}">{escape(name)}</a></li>' for place, name, _ in sections
    )
    body = "".join(
        f'<section id="{place}"><h2>{escape(name)}</h2>{content}</section>\n'
        for place, name, content in sections
    )
    made = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta '
        'name="viewport" content="width=device-width, initial-scale=1">'
        '<meta http-equiv="Content-Security-Policy" '
        f'content="{POLICY}"><title>{escape(title)}</title>'
        f"<style>\n{STYLE.read_text('utf-8')}</style></head>\n<body>\n"
        f"<header>{_head(title, summary)}"
        f'<nav aria-label="Sections"><ul>{links}</ul></nav></header>\n'
        f"<main>\n{body}</main>\n</body></html>\n"
    )
    # Text direction characters could make one name look like another.
    return "\n".join(map(printable, made.split("\n")))


def _head(title: str, summary: Mapping[str, Any]) -> str:
    count = summary["applications"]
    boxes = "".join(
        f'<li class="{state}"><b>{count[state]:,}</b><span>{SIGNS[state]} '
        f"{WORDS[state]}</span><small>{MEANINGS[state]}</small></li>"
        for state in STATES
    )
    made_at = datetime.fromisoformat(summary["made_at"])
    others = [line.partition(": ") for line in five_lines(summary)[2:]]
    lines = "".join(
        f"<dt>{escape(name.capitalize())}</dt><dd>{escape(words)}</dd>" for name, _, words in others
    )
    return (
        f"<h1>{escape(title)}</h1><p "
        f'class="verdict{"" if summary["ready"] else " not"}">{_verdict(summary)}</p><ul '
        f'class="counts">{boxes}</ul>'
        f"<dl><dt>Migrate first</dt><dd>{_to_move(summary)}</dd>{lines}</dl>"
        f'<p class="soft">Made on {made_at:%Y-%m-%d at %H:%M} UTC. An application is a '
        "principal, a client id and an address. "
        f"Source of what {escape(summary['title'])} supports: "
        f"{escape('; '.join(summary['sources']))}.</p>"
    )


def _verdict(summary: Mapping[str, Any]) -> str:
    count = summary["applications"]
    seen = f"{count_of(count['total'], 'application')} seen {period(summary)}"
    if summary["ready"]:
        return f"<strong>Ready.</strong> None would be refused of {seen}."
    return f"<strong>Not ready.</strong> {count[REFUSED]:,} would be refused of {seen}."


def _to_move(summary: Mapping[str, Any]) -> str:
    """The blockers with the most traffic."""
    if not summary["blockers"]:
        return "none"
    items = ""
    for row in summary["blockers"][:MAX_TO_MOVE]:
        needs = f"; needs {escape(row['needs'])}" if row["needs"] else ""
        sends = re.sub(r" \([^)]*\)", "", row["reasons"])
        items += (
            f"<li><b>{escape(describe(row))}</b>, {format_bytes(row['bytes'])}: sends "
            f"{escape(sends)}{needs}</li>"
        )
    more = summary["applications"][REFUSED] - MAX_TO_MOVE
    return f"<ol>{items}</ol>" + (f"and {more:,} more" if more > 0 else "")


def _kinds(shown: PageModel) -> str:
    """Kinds with refused applications first; "others" stay last."""
    rows = [
        plots.Bar(
            kind,
            [(states.get(state, 0), state) for state in STATES],
            ", ".join(f"{states[state]:,} {SHORT[state]}" for state in STATES if states.get(state)),
        )
        for kind, states in sorted(
            shown.kinds, key=lambda pair: (pair[0] == "others", -pair[1].get(REFUSED, 0))
        )
    ]
    return plots.bars("Applications by library and version", rows)


def _by_day(shown: PageModel) -> str:
    days = [row["date"] for row in shown.days]
    series = [(kind, [by_day.get(day, 0) for day in days]) for kind, by_day in shown.kinds_by_day]
    return plots.columns("Libraries and versions by day", "applications per day", days, series)


def _trend(shown: PageModel, summary: Mapping[str, Any]) -> str:
    """The current day is incomplete and left out if there are others."""
    today = datetime.fromisoformat(summary["made_at"]).date()
    full = [row for row in shown.days if row["date"] < today] or shown.days
    zero = summary["trend"]["reaches_zero"]
    days, values = [row["date"] for row in full], [row["refused_applications"] for row in full]
    plot = plots.line(
        "Refused applications by day",
        "applications that would be refused",
        days,
        values,
        today,
        date.fromisoformat(zero) if zero else None,
    )
    return _noted(plot, five_lines(summary)[4].removeprefix("trend: "))


def _noted(figure: str, words: str) -> str:
    """Add a note below the figure."""
    return f'{figure.removesuffix("</figure>")}<p class="soft">{escape(words)}</p></figure>'


def _costs(summary: Mapping[str, Any]) -> str:
    cost = summary["conversions"]
    title = "Conversion costs of the gateway"
    if not cost["conversions"]:
        return f"<figure><figcaption>{title}</figcaption><p>None.</p></figure>"
    rows = [
        plots.Bar(
            describe(row),
            [(row["cpu_seconds"], "c0")],
            f"{format_seconds(row['cpu_seconds'])} CPU, {format_bytes(row['converted_bytes'])}",
        )
        for row in cost["most"][:MAX_COSTS]
    ]
    note = (
        "Conversion CPU is charged to the first application that needs it; later readers are "
        "served from the cache."
    )
    return _noted(plots.bars(f"{title}: CPU time and bytes by application", rows), note)


def _what_binding_means() -> str:
    return (
        "<p>Applications that must be migrated share these with others. Migrate them together, "
        "or convert between them.</p>"
    )


def _log(summary: Mapping[str, Any]) -> str:
    log = summary["log"]
    lines = [
        f"Read: {count_of(log['files'], 'new file')}; {log['known']:,} already known; "
        f"{log['repeated']:,} without new content."
    ]
    lines += [f"Skipped: {file['file']}: {file['reason']}." for file in log["damaged"]]
    if log["repeated_rows"]:
        lines.append(f"{log['repeated_rows']:,} rows were in several files; each counts once.")
    lines += [
        f"Quarantined: {count_of(count, 'new line')}: {reason}."
        for reason, count in log["quarantined"].items()
    ]
    lines += (
        [f"Missing: {count_of(log['lines_missing'], 'line')} written by gateways."]
        if log["lines_missing"]
        else []
    )
    if log["library_not_looked_for"]:
        lines.append(
            "Library not determined, too many kinds of clients: "
            f"{count_of(log['library_not_looked_for'], 'application')}."
        )
    if log["never_logged_in"]:
        lines.append(
            f"Not counted, never authenticated: {count_of(log['never_logged_in'], 'connection')}."
        )
    return "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in lines) + "</ul>"
