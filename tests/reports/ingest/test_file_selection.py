"""Each content is taken once, whatever it is called, and nothing of a damaged file."""

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


def test_the_same_content_under_another_name_repeats_the_first():
    assert chosen({"b": examined("x", 0, 9), "a": examined("x", 0, 9), "c": examined("y", 10, 19)})[
        :3
    ] == (["a", "c"], [], {"b": "a"})


def test_of_files_that_have_rows_in_common_the_largest_is_taken_and_the_others_are_compared():
    files = {
        "part": examined("x", 0, 50),
        "all": examined("y", 0, 99),
        "next": examined("z", 100, 120),
        "over": examined("v", 95, 105),
    }
    assert chosen(files)[:3] == (["all", "next"], ["over", "part"], {})


def test_rows_of_another_process_have_nothing_in_common():
    assert chosen({"a": examined("x", 0, 50), "b": examined("y", 0, 99, process="1-b")})[:2] == (
        ["a", "b"],
        [],
    )


def test_a_file_whose_lines_do_not_say_which_rows_it_has_is_compared():
    assert chosen({"a": examined("x"), "b": examined("y", 0, 9)})[:2] == (["b"], ["a"])


def test_a_file_whose_rows_are_all_in_the_tables_repeats_them():
    known = batch(spans=(RowSpan("1-a", 0, 9), RowSpan("1-a", 10, 99)))
    assert chosen({"a": examined("x", 5, 60), "b": examined("y", 90, 100)}, known)[1:3] == (
        ["b"],
        {"a": "rows 5 to 60 of 1-a"},
    )


def test_where_rows_are_missing_in_the_tables_a_file_is_compared():
    assert chosen(
        {"a": examined("x", 5, 60)}, batch(spans=(RowSpan("1-a", 0, 99, is_whole=False),))
    )[1:3] == (["a"], {})


def test_a_file_with_more_lines_than_its_ends_leave_room_for_is_compared():
    known = batch(spans=(RowSpan("1-a", 0, 99),))
    assert chosen({"a": examined("x", 5, 9, lines=6), "b": examined("y", 5, 9, lines=7)}, known)[
        1:3
    ] == (
        ["b"],
        {"a": "rows 5 to 9 of 1-a"},
    )


def test_what_an_earlier_run_took_is_repeated_by_what_comes_later():
    known = batch(TakenFile("a", "x", 100, 1), TakenFile("b", "x", 100, 1, repeats="a"))
    assert chosen({"c": examined("x", 0, 99), "d": examined("y", 0, 99)}, known)[:3] == (
        ["d"],
        [],
        {"c": "a"},
    )


def test_empty_files_repeat_nothing():
    assert chosen({"a": examined("e", size=0, lines=0), "b": examined("e", size=0, lines=0)})[
        :3
    ] == (["a", "b"], [], {})


def test_a_damaged_file_is_not_taken():
    take, compare, repeats, choice = chosen(
        {"a": examined("x", 0, 99, damage="cut off"), "b": examined("y", 0, 50)}
    )
    assert (take, compare, repeats, choice.damaged) == (["b"], [], {}, [("a", "cut off")])


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 10)), min_size=1, max_size=12))
def test_no_row_is_in_two_files_that_are_taken_without_a_look(spans):
    files = {
        f"f{place}": examined(f"{span}", span[0], span[0] + span[1])
        for place, span in enumerate(spans)
    }
    taken, rows = [files[name].span for name in chosen(files)[0]], RowSpans()
    for span in taken:
        assert not rows.overlaps(span)
        rows.add(span)
