"""The loops over the entries of a Fetch: compiled, with the results of the reference."""

from __future__ import annotations

import gzip
import importlib
import subprocess
import sys
from collections import OrderedDict
from dataclasses import dataclass, field

import lz4.frame
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.fetch import entry_loops
from gateway.protocol.errors import ErrorCode, KafkaError
from records.layout import EMPTY, READABLE
from storage.log import Entry
from tests.records.sample_records import (
    GZIP,
    LZ4,
    NONE,
    SNAPPY,
    ZSTD,
    Sample,
    batch,
    message_set,
)

TOPIC_ID = b"t" * 16


def compiled():
    if entry_loops.loops is entry_loops:
        pytest.skip("the compiled module is not used: it needs compiled entries")
    try:
        return importlib.import_module("gateway.fetch._entry_loops")
    except ImportError as error:
        pytest.skip(f"not compiled (pip install -e .): {error}")


BOTH = (lambda: entry_loops, compiled)


@dataclass(eq=False)
class _Job:
    is_cancelled: bool = False
    keys: list[bytes] = field(default_factory=list)


def entries_of(sizes):
    return [
        Entry(10 * number, 10 * number + number % 10, 0, bytes([number]) * size)
        for number, size in enumerate(sizes)
    ]


def refused():
    return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR)


KINDS = st.sampled_from(["readable", "empty", "cached", "running", "cancelled", "missing"])


@given(kinds=st.lists(KINDS, max_size=12), has_job=st.booleans(), magic=st.integers(0, 3))
def test_compiled_look_up_finds_what_the_reference_finds(kinds, has_job, magic):
    found = []
    for implementation in (load() for load in BOTH):
        entries = entries_of([3] * len(kinds))
        checksums = [
            {"readable": READABLE, "empty": EMPTY}.get(kind, 0xFFFFFFF0 + number)
            for number, kind in enumerate(kinds)
        ]
        own, running, cancelled = _Job(), _Job(), _Job(is_cancelled=True)
        names = {id(own): "own", id(running): "running", id(cancelled): "cancelled"}
        _, _, keys, _ = entry_loops.look_up(
            entries,
            [max(checksum, 0) for checksum in checksums],
            TOPIC_ID,
            7,
            magic,
            OrderedDict(),
            {},
            own,
        )
        of = {
            kind: [key for key, has in zip(keys, kinds, strict=True) if has == kind]
            for kind in kinds
        }
        cache = OrderedDict((key, b"converted") for key in reversed(of.get("cached", [])))
        jobs = dict.fromkeys(of.get("running", []), running)
        jobs |= dict.fromkeys(of.get("cancelled", []), cancelled)
        results, pending, missing_keys, missing = implementation.look_up(
            entries, checksums, TOPIC_ID, 7, magic, cache, jobs, own if has_job else None
        )
        found.append(
            (
                results,
                [(index, key, names[id(job)]) for index, key, job in pending],
                missing_keys,
                missing,
                list(cache),
                {key: names[id(job)] for key, job in jobs.items()},
            )
        )
    assert found[0] == found[1]


@pytest.mark.parametrize("load", BOTH)
def test_key_has_all_that_identifies_an_entry_and_its_format(load):
    loops, keys = load(), set()
    for topic_id, partition, offset, size, checksum, magic in (
        (b"u" * 16, 1, 2, 3, 4, 1),
        (TOPIC_ID, 1, 2, 3, 4, 1),
        (TOPIC_ID, 5, 2, 3, 4, 1),
        (TOPIC_ID, 1, 1 << 62, 3, 4, 1),
        (TOPIC_ID, 1, 2, 8, 4, 1),
        (TOPIC_ID, 1, 2, 3, 0xFFFFFFFF, 1),
        (TOPIC_ID, 1, 2, 3, 4, 0),
    ):
        entry = Entry(offset, offset, 0, bytes(size))
        _, _, (key,), _ = loops.look_up(
            [entry], [checksum], topic_id, partition, magic, OrderedDict(), {}, _Job()
        )
        keys.add(key)
    assert len(keys) == 7


@pytest.mark.parametrize("load", BOTH)
def test_results_of_each_job_are_filled_in_up_to_a_missing_one(load):
    loops, one, two = load(), _Job(), _Job()
    pending = [(0, b"a", one), (2, b"b", one), (3, b"c", two), (4, b"d", two)]
    results = [b"", b"known", b"", b"", b""]
    assert loops.fill(results, pending, 0, {b"a": b"1", b"b": b"2"}) == 2
    assert results == [b"1", b"known", b"2", b"", b""]
    assert loops.fill(results, pending, 2, {b"c": b"3"}) == 4
    assert results == [b"1", b"known", b"2", b"3"]


@pytest.mark.parametrize("load", BOTH)
def test_ended_job_does_not_remove_the_one_that_replaced_it(load):
    ended, newer = _Job(), _Job()
    jobs = {b"a": ended, b"b": newer}
    load().remove_job(jobs, [b"a", b"b", b"c"], ended)
    assert jobs == {b"b": newer}


@given(
    known=st.lists(st.integers(0, 9), unique=True, max_size=6),
    added=st.lists(st.tuples(st.integers(0, 9), st.integers(-1, 40)), max_size=6),
    limit=st.sampled_from([0, 20, 60, 1000]),
)
def test_compiled_cache_keeps_what_the_reference_keeps(known, added, limit):
    kept = []
    for loops in (load() for load in BOTH):
        cache = OrderedDict((bytes([key]), b"0123") for key in known)
        results = {
            bytes([key]): refused() if size < 0 else bytes(size)
            for key, size in added
            if key not in known
        }
        cached_bytes = loops.keep(cache, results, len(cache) * 9, limit, 5)
        assert cached_bytes == sum(len(one) + 5 for one in cache.values()) <= limit
        kept.append(list(cache.items()))
    assert kept[0] == kept[1]


@given(
    payloads=st.lists(
        st.tuples(st.integers(0, 9), st.sampled_from(["stored", "copied", "converted", "error"])),
        max_size=9,
    ),
    first=st.integers(0, 9),
    limit=st.integers(0, 50),
)
def test_compiled_selection_is_that_of_the_reference(payloads, first, limit):
    entries = entries_of([size for size, _ in payloads])
    given_ = [
        {
            "stored": entry.payload,
            "copied": bytearray(entry.payload),
            "converted": bytearray(size + 1),
            "error": refused(),
        }[kind]
        for entry, (size, kind) in zip(entries, payloads, strict=True)
    ]
    expected = entry_loops.select_whole(entries, given_, first, limit)
    assert compiled().select_whole(entries, given_, first, limit) == expected
    end, selected, size, _ = expected
    assert size == sum(map(len, selected)) <= limit
    if first <= end < len(given_):
        assert isinstance(given_[end], KafkaError) or size + len(given_[end]) > limit


@pytest.mark.parametrize("load", BOTH)
def test_selection_counts_converted_batches_that_are_not_empty(load):
    entries = entries_of([4, 5, 6, 7])
    payloads = [b"new", entries[1].payload, b"", bytearray(9)]
    assert load().select_whole(entries, payloads, 0, 17) == (
        4,
        [b"new", entries[1].payload, bytearray(9)],
        17,
        (2, 1 + 4, 4 + 7),
    )


@pytest.mark.parametrize("load", BOTH)
def test_selection_does_not_count_copies_of_stored_payloads(load):
    """An entry that is a part of its request has a new payload at each access."""
    entries = entries_of([4, 5])
    payloads = [bytearray(entry.payload) for entry in entries]
    assert load().select_whole(entries, payloads, 0, 9) == (2, payloads, 9, (0, 0, 0))


@given(
    stored=st.lists(
        st.tuples(
            st.sampled_from([0, 1, 17, 18, 40]), st.integers(0, 2), st.integers(0, 7), st.booleans()
        ),
        max_size=6,
    )
)
def test_compiled_search_for_legacy_lz4_finds_what_the_reference_finds(stored):
    entries, payloads = [], []
    for size, magic, codec, is_converted in stored:
        whole = bytearray(40)
        whole[16:18] = bytes((magic, codec))
        payload = bytes(whole[:size])
        entries.append(Entry(0, 0, 0, payload))
        payloads.append(bytearray(payload) if is_converted else payload)
    expected = entry_loops.legacy_lz4(entries, payloads)
    assert compiled().legacy_lz4(entries, payloads) == expected


BATCHES = st.lists(
    st.builds(
        lambda size, magic, codec: (
            bytes(8) + (size + 49).to_bytes(4, "big") + bytes(4) + bytes([magic, 0, 0, 0, 0, 0])
            + bytes([codec]) + bytes(size + 38)
        ),
        st.integers(0, 5),
        st.sampled_from([2, 2, 2, 2, 1]),
        # Flags may be set beside the codec.
        st.sampled_from([0, 1, 2, 3, 4, 5, 7, 0x0C, 0x14]),
    ),
    max_size=4,
)  # fmt: skip


BATCH = bytes(16) + b"\2" + bytes(45)
"""One byte more than a header of format 2."""


@given(BATCHES, st.booleans(), st.integers(-3, 3), st.integers(-1, 1))
def test_compiled_function_recognizes_the_same_batches(batches, with_zstd, cut, more):
    joined = b"".join(batches)
    joined = joined + bytes(cut) if cut > 0 else joined[: len(joined) + cut]
    expected = (
        cut == 0
        and more == 0
        and all(one[16] == 2 and (with_zstd or one[22] & 7 != 4) for one in batches)
    ) or (not joined and len(batches) + more == 0)
    for implementation in (load() for load in BOTH):
        found = implementation.are_batches(joined, len(batches) + more, with_zstd=with_zstd)
        assert found is expected


@given(
    BATCHES,
    st.integers(-1, 1),
    st.integers(-1, 1),
    st.booleans(),
    st.none() | st.binary(max_size=70) | st.integers(59, 62).map(lambda size: BATCH[:size]),
)
def test_compiled_function_returns_the_same_whole_batches(batches, before, spare, with_zstd, other):
    entries = [Entry(7 + number, 7 + number, 0, one) for number, one in enumerate(batches)]
    if other is not None:
        entries.append(Entry(100, 100, 0, other))
    size = sum(len(entry.payload) for entry in entries)
    are_whole = (
        before >= 0
        and spare >= 0
        and all(
            len(entry.payload) >= 61
            and entry.payload[16] == 2
            and (with_zstd or entry.payload[22] & 7 != 4)
            for entry in entries
        )
    )
    first = entries[0].base_offset if entries else 0
    expected = [entry.payload for entry in entries] if are_whole else []
    for implementation in (load() for load in BOTH):
        assert implementation.whole_batches(
            entries, first - before, size + spare, with_zstd=with_zstd
        ) == (expected, size)


#: An offset that no batch reaches.
END = 1 << 62

LZ4_BIT = 1 << LZ4


def some(base, codec=LZ4):
    return batch([Sample(base, 5, None, b"v" * base)], codec=codec)


def test_mark_of_a_run_is_that_of_its_offsets_sizes_and_checksums():
    one, other, larger = some(0), some(1), some(2)
    changed = []
    for at in (7, 20):
        different = bytearray(one)
        different[at] ^= 1
        changed.append(different)
    changed.append(bytearray(one + b"x"))
    changed[-1][11] += 1
    for load in BOTH:
        mark = load().run_mark
        assert mark([one, other], 1, END, LZ4_BIT) == mark([one + other], 2, END, LZ4_BIT)
        runs = [[one], [other], [larger], [one, other], [other, one], *([each] for each in changed)]
        marks = {mark(run, 1, END, LZ4_BIT) for run in runs}
        assert None not in marks
        assert len(marks) == len(runs)


@pytest.mark.parametrize("load", BOTH)
def test_only_long_runs_with_lz4_have_a_mark(load):
    mark = load().run_mark
    run = [some(0, NONE), some(1), some(2, NONE)]
    assert mark(run, 3, END, LZ4_BIT) is not None
    assert mark(run, 4, END, LZ4_BIT) is None
    assert mark([some(0, NONE)] * 3, 1, END, LZ4_BIT) is None
    others = [some(3, codec) for codec in (GZIP, SNAPPY, ZSTD)]
    others += [some(3)[:-1], b"x", message_set(SAMPLE, magic=1)]
    for other in others:
        assert mark([*run, other], 1, END, LZ4_BIT) is None
        assert mark([b"".join([*run, other])], 1, END, LZ4_BIT) is None


@pytest.mark.parametrize("load", BOTH)
def test_codecs_of_long_runs_are_those_of_the_kernel(load):
    mark = load().run_mark
    packed = {1 << codec: some(1, codec) for codec in (GZIP, SNAPPY, LZ4)}
    all_bits = sum(packed)
    for bit, payload in packed.items():
        run = [some(0, NONE), payload]
        assert mark(run, 2, END, bit) == mark(run, 2, END, all_bits) is not None
        assert mark(run, 2, END, all_bits ^ bit) is None
    assert mark(list(packed.values()), 2, END, all_bits) is not None


@pytest.mark.parametrize("load", BOTH)
def test_run_has_a_mark_if_its_last_batch_ends_before_the_given_offset(load):
    mark = load().run_mark
    samples = [Sample(offset, 5, None, b"v") for offset in (4, 5, 7)]
    run = [some(3), batch(samples, codec=LZ4)]
    for payloads in (run, [b"".join(run)]):
        assert mark(payloads, 2, 9, LZ4_BIT) is not None
        assert mark(payloads, 2, 8, LZ4_BIT) is None


@pytest.mark.parametrize("load", BOTH)
@pytest.mark.parametrize("block_size", [0, 4, 5, 6, 7])
@pytest.mark.parametrize("has_size", [False, True])
def test_long_runs_have_the_lz4_frames_of_java_clients(load, block_size, has_size):
    frame = lz4.frame.compress(
        b"records", block_size=block_size, block_linked=False, store_size=has_size
    )
    for content, is_supported in ((frame, not has_size), (frame[:6], False)):
        # `content` is not compressed here.
        made = bytearray(batch([], count=1, content=content, attributes=LZ4))
        assert (load().run_mark([made, batch(SAMPLE)], 1, END, LZ4_BIT) is not None) == is_supported


@pytest.mark.parametrize("load", BOTH)
@pytest.mark.parametrize(
    ("stream", "is_supported"),
    [
        (gzip.compress(b"records"), True),
        (b"\x1f\x8b\x08\x08", False),
        (b"\x1f\x8b\x08", False),
        (b"", False),
    ],
    ids=["no name", "a name", "half a header", "nothing"],
)
def test_long_runs_have_gzip_streams_without_optional_fields(load, stream, is_supported):
    made = batch([], count=1, content=stream, attributes=GZIP)
    assert (load().run_mark([made, some(3, NONE)], 1, END, 1 << GZIP) is not None) == is_supported


SAMPLE = [Sample(3, 5, None, b"v" * 100)]


@given(
    st.lists(
        st.binary(max_size=200)
        | st.tuples(st.integers(0, 9), st.integers(0, 4)).map(lambda one: some(*one)),
        max_size=4,
    ),
    st.booleans(),
    st.integers(0, 4),
    st.integers(0, 20),
    st.sets(st.sampled_from([GZIP, SNAPPY, LZ4])).map(lambda found: sum(1 << one for one in found)),
)
def test_compiled_mark_of_a_run_is_that_of_the_reference(
    payloads, is_joined, least, before, codecs
):
    payloads = [b"".join(payloads)] if is_joined else payloads
    expected = entry_loops.run_mark(payloads, least, before, codecs)
    assert compiled().run_mark(payloads, least, before, codecs) == expected


@given(st.binary(max_size=200), st.integers(0, 3))
def test_any_bytes_are_batches_or_not(payload, count):
    expected = entry_loops.are_batches(payload, count, with_zstd=True)
    assert compiled().are_batches(payload, count, with_zstd=True) is expected


@pytest.mark.parametrize("size", [-1, 48, (1 << 31) - 1])
def test_batch_with_a_wrong_length_is_none(size):
    payload = bytes(8) + (size & 0xFFFFFFFF).to_bytes(4, "big") + b"\0\0\0\0\2" + bytes(100)
    for implementation in (load() for load in BOTH):
        assert not implementation.are_batches(payload, 1, with_zstd=True)


def test_compiled_loops_need_the_compiled_kernel() -> None:
    """They return entries as buffers, which the kernel in Python could not read."""
    program = (
        "import sys; sys.modules['records._kernel'] = None\n"
        "from gateway.fetch import entry_loops\n"
        "print(entry_loops.loops is entry_loops)"
    )
    printed = subprocess.run(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=True
    ).stdout
    assert printed == "True\n"
