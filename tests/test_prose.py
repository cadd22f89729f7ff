"""Tests of the check of words and widths, `tests/prose.py`, which `make lint` runs."""

from __future__ import annotations

import pytest

from tests.prose import (
    CHECKED,
    ROOT,
    complaints,
    wide_lines,
    wide_markdown_lines,
    words_to_avoid,
)


@pytest.mark.parametrize(
    "text",
    [
        "opened anew",
        "Nobody reads it.",
        "def test_what_comes_to_an_end():",
        "a file of\nits own",
        "    # a file of\n    # its own",
        "#: a limit of\n#: its own",
        "it hangs up",
    ],
)
def test_word_to_avoid_is_found(text):
    assert [line for line, _, _ in words_to_avoid(text)] == [1]


@pytest.mark.parametrize("text", ["renewed", "the outdoors", "roadmap", "a wantss b", "hangs"])
def test_only_whole_words_are_found(text):
    assert list(words_to_avoid(text)) == []


@pytest.mark.parametrize(
    "text",
    [
        'KAFKA = "nobody knows"  # prose: quoted',
        "As Kafka says, nobody knows. <!-- prose: quoted -->",
        "// nobody  // prose: quoted",
    ],
)
def test_quotation_may_contain_any_word(text):
    assert list(words_to_avoid(text)) == []


def test_complaint_names_file_line_word_and_replacement():
    assert complaints("a.md", "One.\nIt opens anew.\n") == ["a.md:2: anew: again"]


def test_markdown_line_over_100_columns_is_found():
    assert list(wide_markdown_lines("x" * 100 + "\n" + "x" * 101)) == [(2, 101)]


def test_source_line_over_100_columns_is_found():
    assert list(wide_lines("\tif " + "x" * 93 + "\n\tif " + "x" * 94)) == [(2, 101)]


@pytest.mark.parametrize("start", ["", "see https://example.com/", "[testenv:a-{b, "])
def test_source_line_that_cannot_be_wrapped_may_be_wider(start):
    assert list(wide_lines(start + "x" * 101)) == []


@pytest.mark.parametrize(
    "text",
    [
        "| " + "x" * 101 + " |",
        "```sh\n" + "x" * 101 + "\n```",
        "<!-- " + "x" * 101 + " -->",
        f"[link](https://example.com/{'x' * 101})",
    ],
)
def test_tables_code_and_links_may_be_wider(text):
    assert list(wide_markdown_lines(text)) == []


def test_checked_paths_exist():
    assert [path for path in CHECKED if not (ROOT / path).exists()] == []
