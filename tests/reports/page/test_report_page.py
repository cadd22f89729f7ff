"""The page: the complete answer in one file, without scripts or external resources."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from reports.analysis.facts import MigrationTarget
from reports.page.report_page import page
from tests.reports.page import sample_report

EVIL = "<img src=x onerror=alert(1)>'\""


def made(shown, summary, target=sample_report.TARGET):
    return page(summary, shown, target, sample_report.NAMES)


@pytest.fixture
def shown():
    old = sample_report.application(
        EVIL, reasons="Produce 1 (served from version 3)", needs="java 2.1.0"
    )
    new = sample_report.application(
        "shop", "fine", library="java", version_low="2.8.2", version_high="3.9.0", confidence=1.0
    )
    key = ("User:a", EVIL, "10.0.0.1")
    bound = {
        "kind": "topic",
        "name": EVIL,
        "old": 1,
        "new": 1,
        "old_applications": [old],
        "bytes": 1024,
    }
    return replace(
        sample_report.figures(days=8),
        applications=[old, new],
        versions={
            key: {0: (1, 2), 3: (0, 0)},
            ("User:a", "shop", "10.0.0.1"): {0: (9, 9), 18: (0, 4)},
        },
        bindings=[bound],
    )


@pytest.fixture
def summary(shown):
    told = sample_report.summary(shown, 300, refused=1)
    told["log"] |= {
        "damaged": [{"file": EVIL, "reason": "cut off"}],
        "quarantined": {"incomplete line": 2},
        "lines_missing": 3,
        "never_logged_in": 4,
        "library_not_looked_for": 5,
    }
    return told


class Tags(HTMLParser):
    """Every tag with its attributes, whether tags are closed in order, and the text by element."""

    EMPTY = frozenset({"meta"})

    def __init__(self, text):
        super().__init__()
        self.found, self._open, self.is_nested, self.words = [], [], True, []
        self.feed(text)
        self.is_nested = self.is_nested and not self._open

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag not in self.EMPTY:
            self._open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        self.is_nested = bool(self._open) and self._open.pop() == tag and self.is_nested

    def handle_data(self, words):
        self.words.append((self._open[-1] if self._open else "", words))


def test_page_is_well_formed_without_scripts_or_external_resources(shown, summary):
    text = made(shown, summary)
    tags = Tags(text)
    assert tags.is_nested
    assert {tag for tag, _ in tags.found} & {"script", "img", "link", "iframe", "object"} == set()
    assert [
        attributes
        for _, attributes in tags.found
        if {"src", "style"} & attributes.keys()
        or not attributes.get("href", "#").startswith("#")
        or any(name.startswith("on") for name in attributes)
    ] == []
    assert not re.search(r"url\(|@import|https?://(?!www\.w3\.org/2000/svg)", text)


def test_special_characters_in_names_have_no_effect(shown, summary):
    """For example U+202E, which reverses the direction of the following text."""
    odd = "a\0b\x1b[31m\u202egro.live\u2066\x85\ud800\u2028"
    shown.applications[0] |= dict.fromkeys(
        ["client_id", "principal", "address", "reasons", "needs", "library", "evidence"], odd
    ) | {"topics": [odd]}
    shown.bindings[0] |= {"name": odd}
    summary["blockers"] = [shown.applications[0] | {"bytes": 1}]
    summary["log"]["damaged"] = [{"file": odd, "reason": odd}]
    text = made(shown, summary)
    assert {letter for letter in text if not letter.isprintable()} == {"\n"}
    assert "a\ufffdb\ufffd[31m\ufffdgro.live" in text
    text.encode("utf-8")


def test_page_sets_content_policy_and_viewport(shown, summary):
    text = made(shown, summary)
    assert "default-src 'none'" in text
    assert '<meta name="viewport" content="width=device-width, initial-scale=1">' in text
    assert "@media print" in text


def test_plots_and_tables_are_accessible(shown, summary):
    tags = Tags(made(shown, summary))
    count = Counter(tag for tag, _ in tags.found)
    assert ("html", {"lang": "en"}) in tags.found
    assert (count["h1"], count["main"], count["nav"]) == (1, 1, 1)
    assert {attributes.get("scope") for tag, attributes in tags.found if tag == "th"} == {
        "col",
        "row",
    }
    assert count["caption"] == count["table"] == 3
    pictures = [
        attributes
        for tag, attributes in tags.found
        if tag == "svg" and attributes.get("role") == "img"
    ]
    assert len(pictures) == count["title"] - 1 == count["desc"] == 2
    places = {attributes["id"] for tag, attributes in tags.found if tag == "section"}
    assert {
        attributes["href"].removeprefix("#") for tag, attributes in tags.found if tag == "a"
    } == places


def test_answer_comes_first_then_refused_applications(shown, summary):
    text = made(shown, summary)
    assert (
        "<strong>Not ready.</strong> 1 would be refused of 300 applications seen from "
        "2026-01-01 to 2026-01-08." in text
    )
    assert (
        text.index("Not ready")
        < text.index("Migrate first")
        < text.index('id="applications"')
        < text.index("clients.csv")
    )
    assert "sends Produce 1; needs java 2.1.0" in text


def test_page_says_ready_if_nothing_is_refused():
    shown = sample_report.figures(12, refused=0)
    text = made(shown, sample_report.summary(shown, 12, refused=0))
    assert "<strong>Ready.</strong> None would be refused of 12 applications seen" in text
    assert "<p>None.</p>" in text
    assert "no topic or group is used by both" in text


def test_refused_version_is_marked_by_more_than_colour(shown, summary):
    text = made(shown, summary, MigrationTarget("t", "T", (), {0: 3}, {18: 3}, True, {}))
    assert '<td class="version refused" data-label="Produce">1–2 ✕</td>' in text
    assert '<td class="version refused" data-label="ApiVersions">0–4 ✕</td>' in text
    assert '<td class="version" data-label="Produce">9</td>' in text
    assert '<td class="version" data-label="Metadata">0</td>' in text


def test_state_has_words_and_a_sign(shown, summary):
    words = [text for tag, text in Tags(made(shown, summary)).words if tag == "span"]
    assert {
        "✕ would be refused",
        "✓ fine",
        "▼ too old to be supported",
        "? support unknown",
    } <= set(words)


def test_omitted_applications_are_counted(shown, summary):
    text = made(shown, summary)
    assert "The first 2 of 300 applications. The other 298 are in clients.csv." in text
    for words in (
        "Missing: 3 lines written by gateways",
        "Library not determined, too many kinds of clients: 5 applications",
        "Quarantined: 2 new lines: incomplete line",
        "cut off",
        "never authenticated: 4 connections",
    ):
        assert words in text


def test_omitted_refused_applications_are_counted():
    shown = sample_report.figures(1000, refused=300)
    text = made(shown, sample_report.summary(shown, 1000, refused=300))
    assert (
        "first 200 of 1,000 applications. The other 800 are in clients.csv, including 100 "
        "that would be refused." in text
    )


def test_omitted_requests_are_counted_and_refused_ones_shown(shown, summary):
    count_of = dict.fromkeys(range(40), (0, 5))
    wide = replace(shown, versions={("User:a", "shop", "10.0.0.1"): count_of})
    text = made(wide, summary, MigrationTarget("t", "T", (), {39: 1}, {}, True, {}))
    assert "20 more requests are in matrix.csv." in text
    assert '<td class="version refused" data-label="key 39">0–5 ✕</td>' in text


def test_page_with_long_names_and_many_days_stays_small():
    shown = sample_report.figures(1000, days=400, refused=300, name="a-very-long-name-" * 30 + "{}")
    text = made(shown, sample_report.summary(shown, 1000, refused=300))
    assert len(text.encode()) < 2_000_000
    assert "a-very-long-name-" * 5 not in text
    assert {row["client_id"][-20:] for row in shown.applications} - {
        words[-20:] for _, words in Tags(text).words
    } == set()


def test_version_range_is_shown_as_one(shown, summary):
    assert '<td data-label="Library">java 2.8.2 to 3.9.0<small>' in made(shown, summary)


def test_concluded_library_is_shown_as_probable(summary, shown):
    shown.applications[1]["confidence"] = 0.8
    assert "probably java 2.8.2 to 3.9.0 (80%)" in made(shown, summary)


@pytest.mark.parametrize(
    ("low", "high", "told"),
    [
        ("1.0", "1.0", "java 1.0"),
        ("1.0", None, "java 1.0 or newer"),
        (None, "2.1", "java up to 2.1"),
        (None, None, "java"),
        ("1.0", "2.1", "java 1.0 to 2.1"),
    ],
)
def test_open_range_is_shown_in_words(summary, shown, low, high, told):
    shown.applications[1] |= {"version_low": low, "version_high": high}
    assert f'<td data-label="Library">{told}<small>' in made(shown, summary)


def test_several_libraries_are_listed_with_share_and_difference(summary, shown):
    old = {
        "library": "librdkafka",
        "version_low": "0.11.0",
        "version_high": "0.11.6",
        "confidence": 0.99,
        "share": 0.004,
        "state": "refused",
    }
    old |= {
        "difference": f"sends Fetch 4 (others: 16) {EVIL}",
        "evidence": "requests as librdkafka 0.11.6; sends Fetch 4",
        "last_seen": "2026-11-08",
    }
    new = old | {
        "version_low": "2.16.0",
        "version_high": "2.16.0",
        "confidence": 1.0,
        "share": 0.996,
        "state": "fine",
        "difference": None,
    }
    new |= {"evidence": "software name librdkafka 2.16.0; sends Fetch 16"}
    idle = new | {"library": None, "share": None, "state": "unknown"}
    shown.applications[1] |= {"libraries": [old, new, idle]}
    text = made(shown, summary)
    assert (
        "<li>✕ probably librdkafka 0.11.0 to 0.11.6 (99%), under 1% of the traffic, last "
        "seen 2026-11-08<small>sends Fetch 4 (others: 16)" in text
    )
    assert (
        "<li>✓ librdkafka 2.16.0, 100% of the traffic, last seen "
        "2026-11-08<small>software name librdkafka 2.16.0</small>" in text
    )
    assert "<li>? unknown, last seen" in text
    assert EVIL not in text
    assert Tags(text).is_nested


def test_omitted_libraries_of_an_application_are_counted(summary, shown):
    one = {
        "library": "java",
        "version_low": "2.1",
        "version_high": "2.1",
        "confidence": 1.0,
        "share": 0.1,
        "state": "fine",
        "difference": None,
    }
    shown.applications[1] |= {"libraries": [one | {"evidence": "", "last_seen": "2026-11-08"}] * 10}
    assert made(shown, summary).count("10% of the traffic, last seen") == 6
    assert "</ul>and 4 more" in made(shown, summary)


def test_requests_are_evidence_only_without_other_evidence(summary, shown):
    shown.applications[1]["evidence"] = "requests as java 1.1; sends Fetch 7, Metadata 5"
    text = made(shown, summary)
    assert "<small>requests as java 1.1</small>" in text
    assert "<small>sends Produce 1</small>" in text
