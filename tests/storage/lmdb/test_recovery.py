"""Stores that are opened after a crash, with damage, or after an older version."""

from __future__ import annotations

import errno
import json
import logging
from pathlib import Path
from zlib import crc32

import lmdb
import pytest
from pytest_twisted import ensureDeferred

from storage.files import DiskFiles
from storage.lmdb import LmdbStore, writer
from storage.lmdb import store as lmdb_store
from storage.lmdb.environment import LmdbEnvironment
from storage.lmdb.frames import (
    FRAME,
    IS_LAST,
    SEGMENT_HEADER,
    TABLES_LOG_ID,
    Frame,
    SegmentHeader,
    encode_frame,
    encode_segment_header,
)
from storage.lmdb.layout import DATABASES, INLINE_SLOT, U64
from storage.lmdb.write_burst import Task
from storage.lmdb.writer import begin_transaction
from storage.log import EntryDamaged, PartitionLog, StorageFailed
from tests.storage.entries import bases, everything, sized, topic
from tests.storage.lmdb.conftest import Opener
from tests.testkit.settle import until

SIZE = 5000
FRAME_BYTES = FRAME.size + SIZE


async def opened(open_store: Opener, partitions: int = 1, **settings: int) -> LmdbStore:
    store = open_store(tail_bytes=0, **settings)
    await store.open()
    if not store.topics:
        await store.create_topic(topic("orders", partitions))
    return store


async def append(log: PartitionLog, count: int) -> None:
    """Append entries one after the other, each in a separate burst."""
    for _ in range(count):
        await log.append([sized(log.next_offset, SIZE)])


def segment(directory: Path, number: int = 1) -> Path:
    return directory / "journal" / f"{number:016d}"


def damage(path: Path, at: int, length: int = 1) -> None:
    """Change bytes, as a bad sector does."""
    data = bytearray(path.read_bytes())
    for position in range(at, at + length):
        data[position] ^= 0xFF
    path.write_bytes(data)


def fail(*_: object) -> None:
    """An operation on files that fails."""
    raise OSError(errno.EIO, "Input/output error")


def log_mark(directory: Path) -> bytes:
    """The mark of the frames of a closed store."""
    with lmdb.open(str(directory), max_dbs=len(DATABASES)) as env, env.begin() as txn:
        mark = txn.get(b"journal_mark", db=env.open_db(b"meta", txn=txn))
    assert mark
    return bytes(mark)


def forget_index(directory: Path) -> None:
    """Make LMDB as it is before any row of an entry or a table is committed."""
    with lmdb.open(str(directory), max_dbs=len(DATABASES)) as env, env.begin(write=True) as txn:
        for name in (b"entries", b"segments", b"tables"):
            txn.drop(env.open_db(name, txn=txn), delete=False)
        for key in (b"journal", b"next_table_write"):
            txn.delete(key, db=env.open_db(b"meta", txn=txn))


@ensureDeferred
async def test_index_is_rebuilt_from_the_journal(open_store: Opener, directory: Path) -> None:
    store = await opened(open_store, 2, segment_bytes=30_000)
    logs = [await store.log("orders", n) for n in range(2)]
    for _ in range(10):
        for log in logs:
            await append(log, 1)
    await store.close()
    forget_index(directory)
    again = await opened(open_store, segment_bytes=30_000)
    for n in range(2):
        log = await again.log("orders", n)
        entries = await everything(log)
        assert [bytes(one.payload) for one in entries] == [
            sized(base, SIZE).payload for base in range(10)
        ]
        assert (log.end_offset, log.size) == (10, 10 * SIZE)
        await append(log, 1)
    await again.close()
    third = await opened(open_store)
    assert bases(await everything(await third.log("orders", 0))) == list(range(11))


@ensureDeferred
async def test_entries_of_deleted_topics_are_not_recovered_and_their_files_are_deleted(
    open_store: Opener, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The files stay until the store is opened again.
    monkeypatch.setattr(DiskFiles, "unlink", fail)
    store = await opened(open_store, segment_bytes=FRAME_BYTES)
    await append(await store.log("orders", 0), 3)
    await store.delete_topic("orders")
    await store.close()
    monkeypatch.undo()
    forget_index(directory)
    again = await opened(open_store)
    log = await again.log("orders", 0)
    assert bases(await everything(log)) == []
    # The checkpoint is then in the last segment.
    await append(log, 1)
    await again.write(Task(begin_transaction))
    await until(lambda: not segment(directory).exists() and not segment(directory, 2).exists())
    assert segment(directory, 3).exists()


@pytest.mark.parametrize("number", [2, 3])
@ensureDeferred
async def test_damaged_header_of_a_segment_is_reported_and_its_entries_are_read(
    open_store: Opener, directory: Path, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    small = {"segment_bytes": FRAME_BYTES}
    store = await opened(open_store, **small)
    await append(await store.log("orders", 0), 5)
    await store.close()
    assert len(list((directory / "journal").iterdir())) == 5
    for late in (4, 5):
        segment(directory, late).unlink()
    forget_index(directory)
    damage(segment(directory, number), 20)
    again = await opened(open_store, **small)
    log = await again.log("orders", 0)
    assert f"the header of segment {number} " in caplog.text
    assert bases(await everything(log)) == [0, 1, 2]
    await append(log, 2)
    await again.close()
    third = await opened(open_store, **small)
    assert bases(await everything(await third.log("orders", 0))) == [0, 1, 2, 3, 4]


@ensureDeferred
async def test_segment_without_anything_readable_is_reported_and_kept(
    open_store: Opener, directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    small = {"segment_bytes": FRAME_BYTES}
    store = await opened(open_store, **small)
    await append(await store.log("orders", 0), 2)
    await store.close()
    forget_index(directory)
    kept = segment(directory, 2)
    damage(kept, 0, kept.stat().st_size)
    for _ in range(3):
        caplog.clear()
        store = await opened(open_store, **small)
        assert "segment 2 of the journal" in caplog.text
        log = await store.log("orders", 0)
        await append(log, 2)
        await store.write(Task(begin_transaction))
        await store.close()
        assert kept.exists()
    again = await opened(open_store, **small)
    assert bases(await everything(await again.log("orders", 0))) == list(range(7))


@pytest.mark.parametrize("contents", [b"", bytes(100), b"part"])
@ensureDeferred
async def test_segment_whose_creation_was_interrupted_is_begun_again(
    open_store: Opener, directory: Path, contents: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    small = {"segment_bytes": FRAME_BYTES}
    store = await opened(open_store, **small)
    await append(await store.log("orders", 0), 1)
    await store.close()
    segment(directory, 2).write_bytes(contents)
    first = segment(directory).read_bytes()
    for _ in range(2):
        store = await opened(open_store, **small)
        await append(await store.log("orders", 0), 2)
        await store.close()
    assert "damaged" not in caplog.text
    # A header that was written may appear after a power failure. It ends the first segment here.
    assert segment(directory).read_bytes() == first
    again = await opened(open_store)
    assert bases(await everything(await again.log("orders", 0))) == list(range(5))


@ensureDeferred
async def test_segment_missing_behind_the_checkpoint_is_named_when_opening(
    open_store: Opener, directory: Path
) -> None:
    store = await opened(open_store, segment_bytes=FRAME_BYTES)
    await append(await store.log("orders", 0), 4)
    await store.close()
    forget_index(directory)
    segment(directory, 2).unlink()
    with pytest.raises(StorageFailed, match=r"segment 2 of the journal .* is missing"):
        await opened(open_store)


@pytest.mark.parametrize("is_last", [True, False])
@ensureDeferred
async def test_refused_frames_behind_the_end_of_a_segment_are_not_read(
    open_store: Opener, directory: Path, is_last: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The following segment says where the end is."""
    store = await opened(open_store, segment_bytes=FRAME_BYTES)
    log = await store.log("orders", 0)
    await append(log, 1)
    await store.close()
    mark = log_mark(directory)
    await (store := await opened(open_store)).log("orders", 0)
    await append(await store.log("orders", 0), 1)
    await store.close()
    forget_index(directory)
    if not is_last:
        end = SEGMENT_HEADER.size + FRAME_BYTES
        header = encode_segment_header(mark, SegmentHeader(2, 1, end))
        segment(directory, 2).write_bytes(header)
    again = await opened(open_store)
    found = bases(await everything(await again.log("orders", 0)))
    assert found == ([0, 1] if is_last else [0])
    assert "damaged" not in caplog.text


@pytest.mark.parametrize("is_whole_file", [False, True])
@ensureDeferred
async def test_unreadable_end_of_the_journal_is_reported_and_not_changed(
    open_store: Opener,
    directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_whole_file: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It cannot be known whether acknowledged records were there."""
    store = await opened(open_store)
    await append(await store.log("orders", 0), 5)
    await store.close()
    forget_index(directory)
    contents, read = segment(directory).read_bytes(), DiskFiles.read
    from_here = 0 if is_whole_file else SEGMENT_HEADER.size + 4 * FRAME_BYTES

    def fail(files: DiskFiles, descriptor: int, length: int, position: int) -> bytes:
        if position + length > from_here:
            raise OSError(errno.EIO, "Input/output error")
        return read(files, descriptor, length, position)

    monkeypatch.setattr(DiskFiles, "read", fail)
    store = await opened(open_store)
    log = await store.log("orders", 0)
    first = log.end_offset
    assert 0 < first < 5 if not is_whole_file else first == 0
    assert "segment 1" in caplog.text
    await append(log, 2)
    monkeypatch.undo()
    assert bases(await everything(log)) == list(range(first + 2))
    await store.close()
    assert segment(directory).read_bytes() == contents
    again = await opened(open_store)
    assert bases(await everything(await again.log("orders", 0))) == list(range(first + 2))


@ensureDeferred
async def test_segment_that_becomes_readable_later_is_not_deleted(
    open_store: Opener, directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    small = {"segment_bytes": FRAME_BYTES}
    store = await opened(open_store, **small)
    await append(await store.log("orders", 0), 2)
    await store.close()
    forget_index(directory)
    contents = segment(directory, 2).read_bytes()
    damage(segment(directory, 2), 0, len(contents))
    store = await opened(open_store, **small)
    await append(await store.log("orders", 0), 2)
    await store.close()
    segment(directory, 2).write_bytes(contents)
    caplog.clear()
    store = await opened(open_store, **small)
    assert "segment 2 of the journal" in caplog.text
    await store.write(Task(begin_transaction))
    await store.close()
    assert segment(directory, 2).read_bytes() == contents


@ensureDeferred
async def test_segment_with_refused_entries_only_is_deleted(
    open_store: Opener, directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is not in the index, and the following segment says that it has no entries."""
    small = {"segment_bytes": FRAME_BYTES}
    store = await opened(open_store, **small)
    await append(await store.log("orders", 0), 3)
    await store.close()
    mark = log_mark(directory)
    with lmdb.open(str(directory), max_dbs=len(DATABASES)) as env, env.begin(write=True) as txn:
        txn.delete(U64.pack(1), db=env.open_db(b"segments", txn=txn))
    header = encode_segment_header(mark, SegmentHeader(2, 1, SEGMENT_HEADER.size))
    second = segment(directory, 2).read_bytes()
    segment(directory, 2).write_bytes(header + second[len(header) :])
    await opened(open_store, **small)
    assert "damaged" not in caplog.text
    await until(lambda: not segment(directory).exists())


@ensureDeferred
async def test_files_that_cannot_be_deleted_do_not_prevent_opening(
    open_store: Opener, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await opened(open_store, segment_bytes=FRAME_BYTES)
    log = await store.log("orders", 0)
    await append(log, 5)
    monkeypatch.setattr(writer, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(DiskFiles, "unlink", fail)
    await log.delete_before(5)
    assert store._writer
    state = store._writer._state
    await until(lambda: bool(state.unused))
    await store.close()
    again = await opened(open_store)
    await append(await again.log("orders", 0), 1)
    assert segment(directory).exists()
    monkeypatch.undo()
    await until(lambda: not segment(directory).exists())


@ensureDeferred
async def test_damaged_payload_fails_its_read_with_partition_and_offset(
    open_store: Opener, directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = await opened(open_store)
    log = await store.log("orders", 0)
    await append(log, 5)
    damage(segment(directory), SEGMENT_HEADER.size + 2 * FRAME_BYTES + FRAME.size + 10)
    assert bases(await log.read(0, 1 << 20)) == [0, 1]
    for _ in range(2):
        with pytest.raises(
            EntryDamaged, match="offsets 2 to 2 of orders-0 are damaged: wrong checksum"
        ) as failed:
            await log.read(2, 1 << 20)
        damaged = failed.value
        assert (damaged.base_offset, damaged.last_offset) == (2, 2)
        assert damaged.max_timestamp == sized(2, SIZE).max_timestamp
        assert not damaged.may_recover
    assert bases(await log.read(3, 1 << 20)) == [3, 4]
    errors = [one for one in caplog.records if one.levelno == logging.ERROR]
    assert len(errors) == 1


@ensureDeferred
async def test_of_many_damaged_entries_only_the_first_ones_are_logged(
    open_store: Opener,
    directory: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lmdb_store, "MOST_REPORTED", 2)
    store = await opened(open_store)
    log = await store.log("orders", 0)
    await append(log, 5)
    for number in range(5):
        damage(segment(directory), SEGMENT_HEADER.size + number * FRAME_BYTES + FRAME.size + 10)
    for offset in (*range(5), *range(5)):
        with pytest.raises(EntryDamaged):
            await log.read(offset, 1)
    errors = [one.getMessage() for one in caplog.records if one.levelno == logging.ERROR]
    assert [one.partition(":")[0] for one in errors] == [
        "offsets 0 to 0 of orders-0 are damaged",
        "offsets 1 to 1 of orders-0 are damaged",
        "more than 2 entries are damaged",
    ]


@pytest.mark.parametrize("what", ["payload", "header", "both"])
@ensureDeferred
async def test_damage_that_recovery_finds_is_reported_when_read(
    open_store: Opener, directory: Path, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The index does not have these entries yet, but entries that were stored later follow."""
    store = await opened(open_store)
    log = await store.log("orders", 0)
    await append(log, 5)
    await store.close()
    forget_index(directory)
    at = SEGMENT_HEADER.size + 2 * FRAME_BYTES
    start, length = {
        "payload": (FRAME.size + 10, 1),
        "header": (20, 1),
        "both": (0, FRAME_BYTES),
    }[what]
    damage(segment(directory), at + start, length)
    again = await opened(open_store)
    assert "damaged" in caplog.text
    log = await again.log("orders", 0)
    assert log.end_offset == 5
    assert bases(await log.read(0, 1 << 20)) == [0, 1]
    with pytest.raises(StorageFailed, match="offsets 2 to 2 of orders-0 are damaged"):
        await log.read(2, 1 << 20)
    assert bases(await log.read(3, 1 << 20)) == [3, 4]
    await append(log, 1)
    assert bases(await log.read(3, 1 << 20)) == [3, 4, 5]


@ensureDeferred
async def test_torn_last_write_is_cut_and_its_offsets_are_used_again(
    open_store: Opener, directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = await opened(open_store)
    await append(await store.log("orders", 0), 3)
    await store.close()
    forget_index(directory)
    damage(segment(directory), SEGMENT_HEADER.size + 2 * FRAME_BYTES + FRAME.size + 10)
    again = await opened(open_store)
    log = await again.log("orders", 0)
    assert log.end_offset == 2
    await append(log, 2)
    assert bases(await everything(log)) == [0, 1, 2, 3]
    assert "damaged" not in caplog.text


@ensureDeferred
async def test_entries_behind_damage_are_recovered_again_if_an_interrupted_append_followed(
    open_store: Opener, directory: Path
) -> None:
    """Only the interrupted append says that the damaged bytes were durable."""
    store = await opened(open_store)
    log = await store.log("orders", 0)
    burst = [log.append([sized(base, SIZE)]) for base in range(2)]
    for appended in burst:
        await appended
    await log.append([sized(base, SIZE) for base in range(2, 4)])
    await store.close()
    damage(segment(directory), SEGMENT_HEADER.size + FRAME.size)
    damage(segment(directory), SEGMENT_HEADER.size + 3 * FRAME_BYTES + FRAME.size)
    for _ in range(2):
        forget_index(directory)
        store = await opened(open_store)
        log = await store.log("orders", 0)
        assert log.end_offset == 2
        assert bases(await log.read(1, SIZE)) == [1]
        await store.close()


@ensureDeferred
async def test_frame_that_has_no_table_rows_is_reported_and_passed(
    open_store: Opener, directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = await opened(open_store)
    await append(await store.log("orders", 0), 1)
    await store.close()
    forget_index(directory)
    payload, at = b"payload", SEGMENT_HEADER.size + FRAME_BYTES
    frame = Frame(crc32(payload), len(payload), at, IS_LAST, TABLES_LOG_ID, 0, 0, -1)
    contents = segment(directory).read_bytes()[:at]
    header = encode_frame(log_mark(directory), 1, at, frame)
    segment(directory).write_bytes(contents + header + payload)
    again = await opened(open_store)
    assert "1 writes to tables are lost" in caplog.text
    assert bases(await everything(await again.log("orders", 0))) == [0]


@ensureDeferred
async def test_missing_current_segment_is_named_when_opening(
    open_store: Opener, directory: Path
) -> None:
    store = await opened(open_store)
    await append(await store.log("orders", 0), 3)
    await store.close()
    segment(directory).unlink()
    with pytest.raises(StorageFailed, match=r"segment 1 of the journal .* is missing"):
        await opened(open_store)


@ensureDeferred
async def test_missing_older_segment_fails_reads_of_its_entries_only(
    open_store: Opener, directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = await opened(open_store, segment_bytes=30_000)
    await append(await store.log("orders", 0), 10)
    await store.close()
    segment(directory).unlink()
    again = await opened(open_store)
    assert "segment 1 of the journal" in caplog.text
    log = await again.log("orders", 0)
    with pytest.raises(EntryDamaged, match="orders-0 are damaged: its segment is missing"):
        await log.read(0, 1)
    assert bases(await log.read(9, 1)) == [9]


def write_store_of_format_1(directory: Path) -> None:
    """A topic with five entries, as the version before the journal stored them."""
    directory.mkdir()
    with (
        lmdb.open(str(directory), max_dbs=7) as env,
        env.begin(write=True) as txn,
    ):
        databases = {
            name: env.open_db(name.encode(), txn=txn) for name in DATABASES if name != "segments"
        }
        txn.put(b"format", b"1", db=databases["meta"])
        txn.put(b"uuid", bytes(16), db=databases["meta"])
        txn.put(b"next_log_id", U64.pack(2), db=databases["meta"])
        row = {"topic_id": "00" * 16, "configs": {}, "log_ids": [1]}
        txn.put(b"orders", json.dumps(row).encode(), db=databases["topics"])
        for base in range(5):
            key = INLINE_SLOT.pack(1, base, base, base, base, 100 * (base + 1), 100)
            txn.put(key, sized(base, 100).payload, db=databases["entries"])


@ensureDeferred
async def test_store_of_format_1_is_read_and_continued(open_store: Opener, directory: Path) -> None:
    write_store_of_format_1(directory)
    store = await opened(open_store)
    log = await store.log("orders", 0)
    assert (log.end_offset, log.size) == (5, 500)
    for base in range(5, 8):
        await log.append([sized(base, 100, time=base)])
    for _ in range(2):
        entries = await everything(log)
        assert [bytes(one.payload) for one in entries] == [
            sized(base, 100).payload for base in range(8)
        ]
        assert bases(await log.read(3, 1 << 20)) == [3, 4, 5, 6, 7]
        for base in (1, 6):
            found = await log.entry_for_time(base)
            assert found
            assert found.base_offset == base
        await store.close()
        store = await opened(open_store)
        log = await store.log("orders", 0)
    await log.replace(0, 1, [sized(1, 50)])
    await log.delete_before(1)
    assert bases(await everything(log)) == list(range(1, 8))
    await log.retain(since=None, at_most_bytes=200)
    assert bases(await everything(log)) == [6, 7]


def test_store_of_a_format_that_was_never_released_is_refused(directory: Path) -> None:
    write_store_of_format_1(directory)
    with lmdb.open(str(directory), max_dbs=10) as env, env.begin(write=True) as txn:
        txn.put(b"format", b"2", db=env.open_db(b"meta", txn=txn))
    with pytest.raises(StorageFailed, match="has format 2, which no release has written"):
        LmdbEnvironment(directory, 1)


@ensureDeferred
async def test_store_with_a_journal_has_a_format_that_older_versions_refuse(
    open_store: Opener, directory: Path
) -> None:
    write_store_of_format_1(directory)
    store = await opened(open_store)
    await store.close()
    assert format_of(directory) == b"4"


def format_of(directory: Path) -> bytes:
    with lmdb.open(str(directory), max_dbs=10) as env, env.begin() as txn:
        return bytes(txn.get(b"format", db=env.open_db(b"meta", txn=txn)))


class NearlyFullDisk(DiskFiles):
    """Files on a disk with `left` bytes of room."""

    left = 0

    def room(self, directory: Path, written: int) -> int:
        return self.left


@ensureDeferred
async def test_store_of_format_1_is_not_upgraded_without_room_for_a_journal(
    open_store: Opener, directory: Path
) -> None:
    write_store_of_format_1(directory)
    before = (directory / "data.mdb").read_bytes()
    disk = NearlyFullDisk()
    disk.left = 699_999
    store = open_store(files=disk, reserve_bytes=400_000, segment_bytes=300_000)
    with pytest.raises(StorageFailed, match=r"699999 bytes are free, 700000 .* not changed"):
        await store.open()
    assert (directory / "data.mdb").read_bytes() == before
    assert format_of(directory) == b"1"

    disk.left = 700_000
    await store.open()
    log = await store.log("orders", 0)
    await log.append([sized(5, 100)])
    assert bases(await everything(log)) == list(range(6))


@ensureDeferred
async def test_store_with_a_journal_opens_without_room(open_store: Opener) -> None:
    disk = NearlyFullDisk()
    for _ in range(2):
        store = open_store(files=disk)
        await store.open()
        await store.close()


@ensureDeferred
async def test_store_of_format_1_is_not_upgraded_if_the_folder_cannot_be_created(
    open_store: Opener, directory: Path
) -> None:
    write_store_of_format_1(directory)
    in_its_place = directory / "journal"
    in_its_place.write_bytes(b"a file")
    store = open_store()
    with pytest.raises(StorageFailed, match=r"cannot create .*/journal: Not a directory"):
        await store.open()
    assert format_of(directory) == b"1"

    in_its_place.unlink()
    await store.open()
    assert bases(await everything(await store.log("orders", 0))) == list(range(5))


@ensureDeferred
async def test_empty_file_for_the_missing_last_segment_reports_its_entries_as_damaged(
    open_store: Opener, directory: Path
) -> None:
    """The way out that docs/operations.md states."""
    store = await opened(open_store, segment_bytes=30_000)
    await append(await store.log("orders", 0), 10)
    await store.close()
    last = max((directory / "journal").iterdir())
    last.unlink()
    with pytest.raises(StorageFailed, match=r"is missing: put the file back"):
        await opened(open_store)
    last.write_bytes(b"")
    again = await opened(open_store)
    log = await again.log("orders", 0)
    assert bases(await log.read(0, 1)) == [0]
    with pytest.raises(StorageFailed, match=r"orders-0 are damaged"):
        await log.read(9, 1)
    await append(log, 1)
    assert bases(await log.read(10, 1)) == [10]
