"""What counts is what was noted, whole and once."""

from __future__ import annotations

import json
import shutil

import pytest

from reports.ingest.row_spans import RowSpan
from reports.ingest.taken_files import IngestedBatch, Tables, TablesError, TakenFile

FILE = TakenFile("a.jsonl", "x", 10, 2)
REPEATS = TakenFile("b.jsonl", "x", 10, 2, repeats="a.jsonl")
BATCH = IngestedBatch(
    "00000001-x",
    (FILE, REPEATS),
    {"usage": 1},
    {"half line": 1},
    spans=(RowSpan("1-a", 0, 1), RowSpan("1-b", 7, 9, is_whole=False)),
    source="q/1",
)


@pytest.fixture
def tables(tmp_path):
    return Tables(tmp_path / "tables")


def noted(tables, batch=BATCH):
    with tables.locked():
        folder = tables.rows_of(batch.name)
        folder.mkdir(exist_ok=True)
        (folder / "part").write_text("rows")
        tables.commit(batch)


def test_what_was_noted_is_read_back(tables):
    noted(tables)
    assert tables.batches() == [BATCH]


def test_rows_that_were_not_noted_are_removed_by_the_next_run(tables):
    noted(tables)
    tables.rows_of("00000002-y").mkdir()
    with tables.locked():
        assert (tables.rows_of("00000001-x").exists(), tables.rows_of("00000002-y").exists()) == (
            True,
            False,
        )


def test_rows_that_were_not_noted_are_removed_where_a_run_fails(tables):
    with pytest.raises(TablesError, match="no room"), tables.locked():
        fail_with(tables)
    assert sorted(path.name for path in tables.folder.iterdir()) == ["taken"]


def fail_with(tables):
    tables.rows_of("00000001-x").mkdir()
    tables.copies.mkdir()
    raise TablesError("no room")


def test_a_passing_batch_counts_until_the_next_run(tables):
    passing = IngestedBatch("00000001-x", (FILE,), {"usage": 2}, is_passing=True)
    noted(tables, passing)
    assert tables.batches() == [passing]
    with tables.locked():
        assert (tables.batches(), tables.rows_of("00000001-x").exists()) == ([], False)


def test_a_batch_cannot_be_noted_twice(tables):
    noted(tables)
    with pytest.raises(TablesError, match="has a batch 00000001-x already"):
        noted(tables, IngestedBatch("00000001-x", ()))
    assert tables.batches() == [BATCH]


def test_two_cannot_take_at_the_same_time(tables):
    with (
        tables.locked(),
        pytest.raises(TablesError, match="another process is at work"),
        Tables(tables.folder).locked(),
    ):
        pass
    with tables.locked():
        pass


@pytest.mark.parametrize(
    "content", ["", "{}", "[]", '{"format": 2}', json.dumps({"format": 1}), "[" * 100_000]
)
def test_a_note_that_makes_no_sense_is_said_to(tables, content):
    noted(tables)
    note = tables.folder / "taken" / "00000001-x.json"
    note.write_text(content)
    with pytest.raises(TablesError, match=str(note)):
        tables.batches()


def test_no_two_batches_have_the_same_name_though_neither_was_noted(tables):
    first, second = tables.new_batch_name(), tables.new_batch_name()
    assert first != second
    assert (first[:8], second[:8]) == ("00000001", "00000001")
    noted(tables)
    assert tables.new_batch_name().startswith("00000002-")


@pytest.mark.parametrize("name", ["00000001-x (copy)", "00000002-x", "mine"])
def test_a_note_under_another_name_counts_for_nothing_and_is_said(tables, name):
    noted(tables)
    note = tables.folder / "taken" / "00000001-x.json"
    copy = note.with_name(f"{name}.json")
    copy.write_text(note.read_text())
    if name == "mine":
        copy.write_text(note.read_text().replace("00000001-x", name))
    with pytest.raises(TablesError, match="remove it"):
        tables.batches()
    copy.unlink()
    assert tables.batches() == [BATCH]


def cut(folder):
    (folder / "part").write_text("ro")


def strange(folder):
    (folder / "kind=usage").mkdir()
    (folder / "kind=usage" / "notes.txt").write_text("mine")


@pytest.mark.parametrize(
    "damage", [shutil.rmtree, cut, strange, lambda folder: (folder / "part").unlink()]
)
def test_rows_that_are_not_as_they_were_noted_are_said_and_nothing_is_made_of_the_others(
    tables, damage
):
    noted(tables)
    (tables.rows_of(BATCH.name) / ".part.crc").write_text("hidden")
    (tables.rows_of(BATCH.name) / "_temporary").mkdir()
    (tables.rows_of(BATCH.name) / "_temporary" / "part").write_text("hidden")
    with tables.locked():
        pass
    damage(tables.rows_of(BATCH.name))
    with (
        pytest.raises(
            TablesError,
            match=r"batch=00000001-x has \d files of \d+ bytes, and had 1 of 4: put it back, or remove \S+00000001-x.json",
        ),
        tables.locked(),
    ):
        pytest.fail("it goes on")
    (tables.folder / "taken" / "00000001-x.json").unlink()
    with tables.locked():
        assert (tables.batches(), tables.rows_of(BATCH.name).exists()) == ([], False)


def test_a_note_that_does_not_say_how_much_it_noted_counts(tables):
    noted(tables)
    note = tables.folder / "taken" / "00000001-x.json"
    note.write_text(
        json.dumps(
            {name: value for name, value in json.loads(note.read_text()).items() if name != "lies"}
        )
    )
    with tables.locked():
        assert tables.batches() == [BATCH]
