"""Ingestion of files, exactly once despite failures of the run, the file or the disk."""

from __future__ import annotations

import errno
import gzip
import json
import os
import pydoc
import random
import shutil
from datetime import UTC, date, datetime, timedelta

import pytest

from tests.reports.traffic.traffic_logs import Process, lines, ms

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]

DAY = "2026-11-20"
NOW = datetime(2026, 11, 21, 8, tzinfo=UTC)
AT = ms(DAY, 12, 30)


@pytest.fixture
def process(tmp_path):
    return Process(tmp_path / "logs")


@pytest.fixture
def ingest_files(spark, tmp_path):
    """Ingest the logs; `into` names other tables."""
    from reports.ingest.ingest_job import ingest
    from reports.ingest.taken_files import Tables

    return lambda into="tables": ingest(spark, tmp_path / "logs", Tables(tmp_path / into), NOW)


@pytest.fixture
def stored(spark, tmp_path):
    from reports.ingest.ingest_job import stored
    from reports.ingest.taken_files import Tables

    return lambda kind="usage", into="tables": stored(spark, Tables(tmp_path / into), kind)


def usage(process, at=AT, **fields):
    return process.row(
        "usage",
        at,
        f"{process.node}-{process.start}-1",
        **{"api_key": 0, "api_version": 9, "requests": 1, **fields},
    )


def some(process, count, **fields):
    return [usage(process, **fields) for _ in range(count)]


def sequences(rows):
    return sorted(row["sequence"] for row in rows.select("sequence").collect())


def test_each_row_is_ingested_once_in_any_file_order(process, ingest_files, stored, tmp_path):
    chance = random.Random(7)
    for stage in range(2):
        for _ in range(3):
            path = process.file(DAY, 12, some(process, chance.randint(1, 9)))
            if chance.random() < 0.5:
                shutil.copy(path, path.with_name(f"copy-{chance.randint(0, 99)}-of-{path.name}"))
        process.file(DAY, 13, some(process, 2), packed=False)
        ingest_files()
        if stage == 1:
            assert ingest_files().files == 1
    everything = list(range(sequences(stored())[-1] + 1))
    assert sequences(stored()) == everything
    ingest_files("tables of one run")
    assert sequences(stored(into="tables of one run")) == everything


def test_rows_in_several_files_count_once_whatever_their_names(
    process, ingest_files, stored, tmp_path
):
    """All kinds of overlap: partial, contained, joined, reordered, repeated line, next to a unique
    row; in one run or several. Some files have the same name in two folders, or names that Spark
    escapes.
    """
    rows = some(process, 40)
    parts = [
        ("a b=%41 ü", rows[:20]),
        ("1-a-0", rows[15:30]),
        ("c", rows[5:10]),
        ("d d=+", rows[25:35] + rows[:3]),
        ("e", rows[38:] + rows[33:38]),
        ("1-a-0", [*rows[30:33], rows[31], rows[33]]),
        ("g", [*rows[8:10], "no row", *rows[10:12]]),
    ]
    for place, (name, part) in enumerate(parts):
        folder = process.logs / f"date={DAY}" / f"hour={12 + place}"
        folder.mkdir(parents=True)
        (folder / f"{name}.jsonl.gz").write_bytes(gzip.compress(lines(part)))
        if place in (0, 3, 6):
            ingest_files("tables of several runs")
    taken = ingest_files("tables of one run")
    assert (
        sequences(stored(into="tables of several runs"))
        == sequences(stored(into="tables of one run"))
        == list(range(40))
    )
    assert taken.rows == {"usage": 40}
    assert ingest_files("tables of several runs").rows == {}


def test_other_rows_of_a_file_with_dropped_lines_are_ingested(process, ingest_files, stored):
    rows = [
        row
        for _ in range(10)
        for row in (
            usage(process),
            process.row("connection", AT, f"1-{process.start}-1", event="opened"),
        )
    ]
    process.file(DAY, 12, rows[:5] + rows[9:])
    ingest_files()
    process.file(DAY, 13, rows[3:12])
    assert ingest_files().repeated_rows == 5
    assert (sequences(stored()), sequences(stored("connection"))) == (
        list(range(0, 20, 2)),
        list(range(1, 20, 2)),
    )


def test_row_outside_the_span_of_its_file_counts_once(tmp_path, ingest_files, stored):
    """It is beyond the first or last line's number, or of another process."""
    beyond, own, other = (Process(tmp_path / "logs", node) for node in (1, 2, 3))
    wanted = []
    for its, strange, at in ((beyond, beyond, 20), (own, other, 5)):
        rows = some(its, 10)
        others = some(strange, 30)
        its.file(DAY, 12, [rows[0], others[at], rows[9]])
        strange.file(DAY, 12, others[at - 5 : at + 5])
        wanted += [rows[0], rows[9], *others[at - 5 : at + 5]]
    ingest_files()
    assert numbered(stored().collect()) == numbered(wanted)


def numbered(rows):
    return sorted((row["connection"], row["sequence"]) for row in rows)


def test_line_repeated_in_place_of_another_counts_once(process, ingest_files, stored):
    """With as many lines as numbers from the first to the last, or fewer."""
    wanted = []
    for its, last in ((process, 3), (Process(process.logs, 2), 5)):
        rows = some(its, 6)
        its.file(DAY, 12, [rows[0], rows[1], rows[1], rows[last]])
        wanted += [rows[0], rows[1], rows[last]]
    ingest_files()
    assert numbered(stored().collect()) == numbered(wanted)


@pytest.mark.parametrize(
    "step", ["reports.ingest.file_check.examine", "reports.ingest.batch_writer.write"]
)
def test_file_that_disappears_during_the_run_is_not_missed(
    process, ingest_files, stored, monkeypatch, step
):
    kept, old = process.file(DAY, 13, some(process, 2)), process.file(DAY, 12, some(process, 2))
    function = pydoc.locate(step)

    def late(*given):
        old.unlink(missing_ok=True)
        return function(*given)

    monkeypatch.setattr(step, late)
    taken = ingest_files()
    assert (taken.files, taken.damaged, sequences(stored())) == (1, [], [0, 1]), kept


def test_file_changed_while_read_is_ingested_by_next_run(
    process, ingest_files, stored, monkeypatch
):
    from reports.ingest import batch_writer
    from reports.ingest.taken_files import TablesError

    rows = some(process, 9)
    path = process.file(DAY, 12, rows)
    write = batch_writer.write

    def late(*given):
        path.write_bytes(gzip.compress(lines(rows[:5])))
        return write(*given)

    with monkeypatch.context() as patched:
        patched.setattr(batch_writer, "write", late)
        with pytest.raises(
            TablesError, match="read 5 of 9 lines: a file changed while it was read"
        ):
            ingest_files()
    assert sequences(stored()) == []
    ingest_files()
    assert sequences(stored()) == [0, 1, 2, 3, 4]


def test_unreadable_file_is_reported_and_others_are_ingested(process, ingest_files, stored):
    process.file(DAY, 12, some(process, 2))
    unreadable = [
        process.logs / f"date={DAY}" / "hour=12" / name
        for name in ("9-a-0.jsonl", "8-a-1.jsonl.gz")
    ]
    for path in unreadable:
        path.symlink_to("/proc/self/mem")
    assert {
        name.rsplit("/", 1)[-1]: reason for name, reason in ingest_files().damaged
    } == dict.fromkeys(["9-a-0.jsonl", "8-a-1.jsonl"], "cannot be read: Input/output error")
    assert sequences(stored()) == [0, 1]


def test_symlinked_file_is_a_repeat_and_symlinked_folder_is_not_followed(
    process, ingest_files, stored, tmp_path
):
    path = process.file(DAY, 12, some(process, 2))
    path.with_name("link.jsonl.gz").symlink_to(path)
    (process.logs / "loop").symlink_to(process.logs)
    assert (ingest_files().repeated, sequences(stored())) == (1, [0, 1])


def test_extremely_compressed_file_is_reported_and_others_are_ingested(
    process, ingest_files, stored
):
    process.file(DAY, 12, some(process, 2))
    (process.logs / f"date={DAY}" / "hour=12" / "bomb.jsonl.gz").write_bytes(
        gzip.compress(bytes(256 << 20), 1)
    )
    ((_, reason),) = ingest_files().damaged
    assert reason == f"contains a line of more than {8 << 20} bytes"
    assert sequences(stored()) == [0, 1]


def test_second_run_ingests_nothing_and_changes_nothing(process, ingest_files, stored, tmp_path):
    process.file(DAY, 12, some(process, 5))
    first, before = ingest_files(), sorted((tmp_path / "tables").rglob("*"))
    second = ingest_files()
    assert (first.files, first.rows, second.files, second.rows, second.known) == (
        1,
        {"usage": 5},
        0,
        {},
        1,
    )
    assert sorted((tmp_path / "tables").rglob("*")) == before


def test_run_interrupted_before_commit_counts_nothing(process, ingest_files, stored, monkeypatch):
    from reports.ingest.taken_files import Tables, TablesError

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    process.file(DAY, 12, some(process, 5))
    with monkeypatch.context() as patched:
        patched.setattr(Tables, "commit", full)
        with pytest.raises(TablesError, match="no space left in"):
            ingest_files()
    assert sequences(stored()) == []
    ingest_files()
    assert sequences(stored()) == [0, 1, 2, 3, 4]


def test_truncated_file_is_ingested_once_complete(process, ingest_files, stored):
    whole = process.file(DAY, 12, some(process, 50))
    content = whole.read_bytes()
    whole.write_bytes(content[: len(content) // 2])
    process.file(DAY, 12, some(process, 2))
    assert ingest_files().damaged == [
        (f"date={DAY}/hour=12/{whole.name.removesuffix('.gz')}", "truncated gzip file")
    ]
    assert sequences(stored()) == [50, 51]
    whole.write_bytes(content)
    assert ingest_files().damaged == []
    assert sequences(stored()) == list(range(52))


def test_open_file_is_ingested_up_to_its_last_line(process, ingest_files, stored):
    begin, rest = some(process, 2), some(process, 2)
    path = process.file(DAY, 12, begin, packed=False)
    path.write_bytes(lines(begin) + lines(rest)[:20])
    assert (ingest_files().quarantined, sequences(stored())) == ({}, [0, 1])
    path.with_name(path.name + ".gz").write_bytes(gzip.compress(lines(begin + rest)))
    path.unlink()
    ingest_files()
    assert (sequences(stored()), stored("quarantine").count()) == ([0, 1, 2, 3], 0)


def test_file_finished_during_the_run_is_ingested_in_that_run(
    process, ingest_files, stored, monkeypatch
):
    from reports.ingest import log_files

    path = process.file(DAY, 12, some(process, 2), packed=False)
    copy_complete_lines = log_files.copy_complete_lines

    def late(file, folder):
        if path.exists():
            path.with_name(path.name + ".gz").write_bytes(
                gzip.compress(path.read_bytes() + lines(some(process, 1)))
            )
            path.unlink()
        return copy_complete_lines(file, folder)

    monkeypatch.setattr(log_files, "copy_complete_lines", late)
    assert ingest_files().files == 1
    assert sequences(stored()) == [0, 1, 2]


def test_incomplete_line_after_crash_is_quarantined_and_others_ingested(
    process, ingest_files, stored
):
    path = process.file(DAY, 12, some(process, 2), packed=False)
    path.write_bytes(path.read_bytes() + b'{"v":1,"kind":"us')
    process.file(DAY, 13, some(process, 1), packed=False)
    ingest_files()
    assert sequences(stored()) == [0, 1, 2]
    assert [(row["problem"], row["line"]) for row in stored("quarantine").collect()] == [
        ("incomplete line", '{"v":1,"kind":"us')
    ]


#: Invalid lines and their reasons.
LONG = "x" * (1 << 20)
DEEP = "[" * 100_000 + "]" * 100_000
GOOD = (
    '"v":1,"kind":"usage","node":1,"at":1763640000000,"connection":"1-a-1","sequence":1,'
    '"api_key":0,"api_version":9'
)
BAD = [
    ("", "empty line"),
    ("[1]", "not a JSON object"),
    ('[{"v": 1, "kind": "usage"}]', "not a JSON object"),
    ("null", "not a JSON object"),
    (b"\x00\x00\x00", "not a JSON object"),
    (b'\xff\xfe{"v":1}', "not a JSON object"),
    ('{"v":1,"kind":"usage","at":17', "incomplete line"),
    (b'{"v":1,"kind":"usage","principal":"\xff', "incomplete line"),
    ("{}", "no schema version"),
    ('{"kind":"usage"}', "no schema version"),
    ('{"v":2,"kind":"usage","at":"noon"}', "unknown schema version 2"),
    ('{"v":1,"kind":"payload"}', "unknown kind"),
    ('{"v":1,"kind":"usage","at":1}', "no node"),
    ('{"v":1,"kind":"connection","at":1,"node":1,"connection":"c","sequence":1}', "no event"),
    ('{"v":1,"kind":"usage","at":1.5}', "field of wrong type"),
    ('{"v":1,"kind":"usage","requests":"many"}', "field of wrong type"),
    ('{"v":1,"kind":"usage","errors":[1]}', "field of wrong type"),
    ('{"v":1,"kind":"usage","at":99999999999999999999}', "field of wrong type"),
    ('{"v":1,"kind":"usage","at":NaN}', "field of wrong type"),
    ('{"v":1,"kind":"usage","at":1' + "0" * 2000 + "}", "not a JSON object"),
    ('{"v":1,"kind":"usage","sequence":"7"}', "field of wrong type"),
    ('{"v":99,"kind":"usage"}', "unknown schema version 99"),
    ('{"v":4711,"kind":"usage"}', "unknown schema version"),
    ('{"v":-5,"kind":"usage"}', "unknown schema version"),
    (f'{{"v":1,"kind":"usage","client_id":"{LONG}"}}', "line too long"),
    (f'{{"v":1,"kind":"usage","deep":{DEEP}}}', "not a JSON object"),
    (f'{{{GOOD},"requests":-1}}', "number out of range"),
    (f'{{{GOOD},"bytes_in":{1 << 60}}}', "number out of range"),
    (f'{{{GOOD},"sequence":-1}}', "number out of range"),
    (f'{{{GOOD},"sequence":{(1 << 50) + 1}}}', "number out of range"),
    (f'{{{GOOD},"api_key":-1}}', "number out of range"),
    (f'{{{GOOD},"throttle_ms":-1}}', "number out of range"),
    (f'{{{GOOD},"latency_us_sum":-1}}', "number out of range"),
    (f'{{{GOOD},"magic_in":{{"1":-1}}}}', "number out of range"),
    (f'{{{GOOD},"magic_out":{{"2":{1 << 62}}}}}', "number out of range"),
    (f'{{{GOOD},"connection":"somewhere"}}', "connection without process"),
]


def test_each_invalid_line_is_quarantined_with_reason_and_counted(process, ingest_files, stored):
    from pyspark.sql import functions as F

    process.file(DAY, 12, [usage(process), *[line for line, _ in BAD], usage(process)])
    taken = ingest_files()
    assert sequences(stored()) == [0, 1]
    assert (taken.rows, sum(taken.quarantined.values())) == ({"usage": 2}, len(BAD))
    found = {row["line"]: row["problem"] for row in stored("quarantine").collect()}
    wanted = {
        (line if isinstance(line, str) else line.decode(errors="replace"))[:16_384]: reason
        for line, reason in BAD
    }
    assert {line.replace("\0", ""): reason for line, reason in found.items()} == {
        line.replace("\0", ""): reason for line, reason in wanted.items()
    }
    # Other Parquet readers fail on invalid UTF-8.
    assert {
        bytes.fromhex(row[0]).decode()
        for row in stored("quarantine").select(F.hex("line")).collect()
    } == found.keys()


def test_last_of_repeated_fields_counts(process, ingest_files, stored):
    process.file(
        DAY,
        12,
        [f'{{{GOOD},"sequence":2,"topic":"a","topic":"b","errors":{{"1":1,"1":2}},"at":{AT}}}'],
    )
    assert ingest_files().rows == {"usage": 1}
    assert [(row["sequence"], row["topic"]) for row in stored().collect()] == [(2, "b")]


def test_file_names_cannot_escape_the_folder(process, ingest_files, stored, tmp_path):
    names = [
        "../../../etc/passwd",
        "/etc/passwd",
        "kind=quarantine/date=2026-01-01",
        "a\0b",
        "\u202e",
        "%2e%2e/",
        "日本",
    ]
    process.file(DAY, 12, [usage(process, topic=name, client_id=name) for name in names])
    ingest_files()
    assert sorted(row["topic"] for row in stored().collect()) == sorted(names)
    assert {path.name for path in tmp_path.iterdir()} == {"logs", "tables"}


def test_unknown_fields_are_ignored_and_missing_fields_are_null(process, ingest_files, stored):
    process.file(
        DAY, 12, [usage(process, colour="red", errors={"35": 2}, magic_in={"1": 3}), usage(process)]
    )
    ingest_files()
    rows = stored().orderBy("sequence").collect()
    assert [(row["errors"], row["magic_in"], row["topic"]) for row in rows] == [
        ({"35": 2}, {"1": 3}, None),
        (None, None, None),
    ]


def test_tables_of_older_version_without_new_columns_are_readable(
    process, ingest_files, stored, tmp_path
):
    process.file(DAY, 12, some(process, 2, topic="old"))
    ingest_files()
    (part,) = (tmp_path / "tables").rglob("*.parquet")
    stored().drop("throttle_ms", "batch", "kind", "date").coalesce(1).write.parquet(
        str(tmp_path / "older")
    )
    (older,) = (tmp_path / "older").glob("*.parquet")
    part.with_name(f".{part.name}.crc").unlink()
    shutil.copy(older, part)
    # Its JSON file does not contain the file totals either.
    (note,) = (tmp_path / "tables" / "taken").glob("*.json")
    note.write_text(
        json.dumps(
            {name: value for name, value in json.loads(note.read_text()).items() if name != "lies"}
        )
    )
    process.file(DAY, 13, some(process, 1, topic="new", throttle_ms=7))
    ingest_files()
    found = sorted(
        (row["topic"], row["throttle_ms"])
        for row in stored().collect()
        if row["throttle_ms"] or row["topic"]
    )
    assert found == [("new", 7), ("old", None), ("old", None)]


def test_row_counts_on_day_of_its_file_if_clock_jumped(process, ingest_files, stored):
    times = [
        AT,
        AT - ms(DAY),
        AT + 10 * 86_400_000,
        ms("1970-01-01"),
        ms("2026-11-21", 11),
        ms(DAY, 11),
        ms(DAY, 10, 59),
    ]
    process.file(DAY, 12, [usage(process, at=at) for at in times])
    ingest_files()
    rows = stored().orderBy("sequence").collect()
    day = date.fromisoformat(DAY)
    assert [(row["date"], row["clock_jumped"]) for row in rows] == [
        (day, False),
        (day, True),
        (day, True),
        (day, True),
        (day + timedelta(1), False),
        (day, False),
        (day, True),
    ]


def test_file_from_unset_clock_is_quarantined(process, ingest_files, stored):
    process.file("1970-01-01", 0, some(process, 2, at=ms("1970-01-01")))
    # Without a folder that tells when it was written.
    process.file(DAY, 0, some(process, 3, at=ms("2262-01-01"))).rename(
        process.logs / "copy.jsonl.gz"
    )
    assert ingest_files().quarantined == {"time out of range": 5}
    assert sequences(stored()) == []


def test_file_dated_in_the_future_is_reported_and_ingested_on_its_day(
    process, ingest_files, stored, spark, tmp_path
):
    """The clock of the reporting machine may be the wrong one."""
    from reports.ingest.ingest_job import ingest
    from reports.ingest.taken_files import Tables, TablesError

    process.file("2027-01-01", 0, some(process, 1, at=ms("2027-01-01")))
    process.file("2027-01-01", 1, some(process, 1, at=ms("2027-01-01", 1)), packed=False)
    process.file(DAY, 12, some(process, 1))
    with pytest.raises(TablesError, match="the clock of this machine says 1970-01-01"):
        ingest(spark, process.logs, Tables(tmp_path / "tables"), datetime(1970, 1, 1, tzinfo=UTC))
    taken = ingest_files()
    assert ({reason for _, reason in taken.damaged}, len(taken.damaged)) == (
        {"dated in the future: the clock of the gateway or of this machine is wrong"},
        2,
    )
    assert (taken.quarantined, sequences(stored())) == ({}, [2])
    taken = ingest(
        spark, process.logs, Tables(tmp_path / "tables"), datetime(2027, 1, 1, 8, tzinfo=UTC)
    )
    assert (taken.quarantined, taken.damaged, sequences(stored())) == ({}, [], [0, 1, 2])


def test_file_with_non_utf8_name_is_reported_and_others_are_ingested(process, ingest_files, stored):
    good = process.file(DAY, 12, some(process, 1))
    for name in (b"1-a-\xff.jsonl.gz", b"1-a-\xfe.jsonl", b"1:2.jsonl.gz"):
        with open(os.path.join(os.fsencode(good.parent), name), "wb") as file:
            file.write(b"rubbish")
    assert sorted(name.rsplit("/", 1)[-1] for name, _ in ingest_files().damaged) == [
        "1-a-\\xfe.jsonl",
        "1-a-\\xff.jsonl",
        "1:2.jsonl",
    ]
    assert sequences(stored()) == [0]


def test_empty_folder_and_empty_files_ingest_nothing(process, ingest_files, stored):
    process.logs.mkdir()
    assert ingest_files().files == 0
    process.file(DAY, 12, [])
    process.file(DAY, 12, [], packed=False)
    assert (ingest_files().rows, stored().count()) == ({}, 0)


def test_glob_characters_in_folder_name_are_literal(spark, tmp_path):
    from reports.ingest.ingest_job import ingest, stored
    from reports.ingest.taken_files import Tables

    process = Process(tmp_path / "logs of [a-z]*, {1,2}?")
    process.file(DAY, 12, some(process, 2))
    tables = Tables(tmp_path / "tables {a,b} [x]")
    assert ingest(spark, process.logs, tables, NOW).rows == {"usage": 2}
    assert sequences(stored(spark, tables, "usage")) == [0, 1]


def test_batch_file_records_what_was_ingested(process, ingest_files, tmp_path):
    path = process.file(DAY, 12, some(process, 3))
    shutil.copy(path, path.with_name("copy.jsonl.gz"))
    ingest_files()
    (note,) = (tmp_path / "tables" / "taken").glob("*.json")
    files = {
        file["name"].rsplit("/", 1)[-1]: file for file in json.loads(note.read_text())["files"]
    }
    taken = path.name.removesuffix(".gz")
    assert (files[taken]["lines"], files["copy.jsonl"]["repeats"]) == (
        3,
        f"date={DAY}/hour=12/{taken}",
    )
    assert json.loads(note.read_text())["spans"] == [
        {"process": "1-mh8z3k00", "first": 0, "last": 2, "is_whole": True}
    ]
