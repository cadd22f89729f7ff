"""Each content is taken once, whatever its file name, and damaged files are not taken."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from reports.ingest.file_check import ExaminedFile
from reports.ingest.file_selection import IngestedContent, select_files
from reports.ingest.log_files import LogFile
from reports.ingest.row_spans import RowSpan, RowSpans
from reports.ingest.taken_files import IngestedBatch, TakenFile


def examined(sha, first=None, last=None, process="1-a", size=100, lines=1, damage=None):
    return ExaminedFile(
        sha, size, lines, None if first is None else RowSpan(process, first, last), damage
    )


def chosen(files, *batches):
    choice = select_files(
        [LogFile(Path(name), name, True) for name in files], files, IngestedContent(batches)
    )
    return (
        names(choice.take),
        names(choice.compare),
        {note.name: note.repeats for note in choice.repeats},
        choice,
    )


def names(files):
    return sorted(file.name for file in files)


def batch(*files, spans=()):
    return IngestedBatch("1-x", tuple(files), spans=spans)


def test_same_content_under_other_name_is_a_repeat():
    assert chosen({"b": examined("x", 0, 9), "a": examined("x", 0, 9), "c": examined("y", 10, 19)})[
        :3
    ] == (["a", "c"], [], {"b": "a"})


def test_largest_of_overlapping_files_is_taken_and_others_compared():
    files = {
        "part": examined("x", 0, 50),
        "all": examined("y", 0, 99),
        "next": examined("z", 100, 120),
        "over": examined("v", 95, 105),
    }
    assert chosen(files)[:3] == (["all", "next"], ["over", "part"], {})


def test_rows_of_other_processes_do_not_overlap():
    assert chosen({"a": examined("x", 0, 50), "b": examined("y", 0, 99, process="1-b")})[:2] == (
        ["a", "b"],
        [],
    )


def test_file_without_known_span_is_compared():
    assert chosen({"a": examined("x"), "b": examined("y", 0, 9)})[:2] == (["b"], ["a"])


def test_file_with_only_known_rows_is_a_repeat():
    known = batch(spans=(RowSpan("1-a", 0, 9), RowSpan("1-a", 10, 99)))
    assert chosen({"a": examined("x", 5, 60), "b": examined("y", 90, 100)}, known)[1:3] == (
        ["b"],
        {"a": "rows 5 to 60 of 1-a"},
    )


def test_file_is_compared_if_tables_lack_some_of_its_rows():
    assert chosen(
        {"a": examined("x", 5, 60)}, batch(spans=(RowSpan("1-a", 0, 99, is_whole=False),))
    )[1:3] == (["a"], {})


def test_file_with_more_lines_than_its_span_is_compared():
    known = batch(spans=(RowSpan("1-a", 0, 99),))
    assert chosen({"a": examined("x", 5, 9, lines=6), "b": examined("y", 5, 9, lines=7)}, known)[
        1:3
    ] == (
        ["b"],
        {"a": "rows 5 to 9 of 1-a"},
    )


def test_content_of_earlier_run_is_a_repeat():
    known = batch(TakenFile("a", "x", 100, 1), TakenFile("b", "x", 100, 1, repeats="a"))
    assert chosen({"c": examined("x", 0, 99), "d": examined("y", 0, 99)}, known)[:3] == (
        ["d"],
        [],
        {"c": "a"},
    )


def test_empty_files_are_no_repeats():
    assert chosen({"a": examined("e", size=0, lines=0), "b": examined("e", size=0, lines=0)})[
        :3
    ] == (["a", "b"], [], {})


def test_damaged_file_is_not_taken():
    take, compare, repeats, choice = chosen(
        {"a": examined("x", 0, 99, damage="cut off"), "b": examined("y", 0, 50)}
    )
    assert (take, compare, repeats, choice.damaged) == (["b"], [], {}, [("a", "cut off")])


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 10)), min_size=1, max_size=12))
def test_taken_files_never_share_rows(spans):
    files = {
        f"f{place}": examined(f"{span}", span[0], span[0] + span[1])
        for place, span in enumerate(spans)
    }
    taken, rows = [files[name].span for name in chosen(files)[0]], RowSpans()
    for span in taken:
        assert not rows.overlaps(span)
        rows.add(span)
