"""Only committed batches count, completely and once."""

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
    {"incomplete line": 1},
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


def test_committed_batch_is_read_back(tables):
    noted(tables)
    assert tables.batches() == [BATCH]


def test_uncommitted_rows_are_removed_by_next_run(tables):
    noted(tables)
    tables.rows_of("00000002-y").mkdir()
    with tables.locked():
        assert (tables.rows_of("00000001-x").exists(), tables.rows_of("00000002-y").exists()) == (
            True,
            False,
        )


def test_uncommitted_rows_are_removed_if_run_fails(tables):
    with pytest.raises(TablesError, match="no room"), tables.locked():
        fail_with(tables)
    assert sorted(path.name for path in tables.folder.iterdir()) == ["taken"]


def fail_with(tables):
    tables.rows_of("00000001-x").mkdir()
    tables.copies.mkdir()
    raise TablesError("no room")


def test_temporary_batch_counts_until_next_run(tables):
    passing = IngestedBatch("00000001-x", (FILE,), {"usage": 2}, is_passing=True)
    noted(tables, passing)
    assert tables.batches() == [passing]
    with tables.locked():
        assert (tables.batches(), tables.rows_of("00000001-x").exists()) == ([], False)


def test_batch_cannot_be_committed_twice(tables):
    noted(tables)
    with pytest.raises(TablesError, match="has a batch 00000001-x already"):
        noted(tables, IngestedBatch("00000001-x", ()))
    assert tables.batches() == [BATCH]


def test_tables_are_locked_against_a_second_writer(tables):
    with (
        tables.locked(),
        pytest.raises(TablesError, match="another process is using"),
        Tables(tables.folder).locked(),
    ):
        pass
    with tables.locked():
        pass


@pytest.mark.parametrize(
    "content", ["", "{}", "[]", '{"format": 2}', json.dumps({"format": 1}), "[" * 100_000]
)
def test_invalid_batch_file_is_an_error(tables, content):
    noted(tables)
    note = tables.folder / "taken" / "00000001-x.json"
    note.write_text(content)
    with pytest.raises(TablesError, match=str(note)):
        tables.batches()


def test_batch_names_are_unique_without_commit(tables):
    first, second = tables.new_batch_name(), tables.new_batch_name()
    assert first != second
    assert (first[:8], second[:8]) == ("00000001", "00000001")
    noted(tables)
    assert tables.new_batch_name().startswith("00000002-")


@pytest.mark.parametrize("name", ["00000001-x (copy)", "00000002-x", "mine"])
def test_batch_file_under_other_name_is_an_error(tables, name):
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
def test_missing_or_changed_rows_of_a_batch_are_an_error(tables, damage):
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
            match=(
                r"batch=00000001-x has \d files of \d+ bytes instead of 1 of 4: restore it, "
                r"or remove \S+00000001-x.json"
            ),
        ),
        tables.locked(),
    ):
        pytest.fail("it goes on")
    (tables.folder / "taken" / "00000001-x.json").unlink()
    with tables.locked():
        assert (tables.batches(), tables.rows_of(BATCH.name).exists()) == ([], False)


def test_batch_file_without_totals_is_accepted(tables):
    noted(tables)
    note = tables.folder / "taken" / "00000001-x.json"
    note.write_text(
        json.dumps(
            {name: value for name, value in json.loads(note.read_text()).items() if name != "lies"}
        )
    )
    with tables.locked():
        assert tables.batches() == [BATCH]
