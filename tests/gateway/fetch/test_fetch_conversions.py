"""Conversions of a fetch: runs are returned as their batches would be, and are counted."""

from __future__ import annotations

import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import lz4.frame
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.fetch import conversion, conversion_calls, fetch_conversions
from gateway.fetch.conversion import (
    AT_ONCE_EXPANSION,
    AT_ONCE_GZIP_WEIGHT,
    AT_ONCE_UNPACKED_BYTES,
)
from gateway.fetch.conversion_calls import ConvertedRun
from gateway.protocol.wire.fetch_codec import FetchPartition
from records import kernel
from storage.log import Entry
from tests.fakes.broker import BrokerEnvironment, ended, open_environment
from tests.gateway.handlers.fetch_requests import (
    LARGE,
    consume,
    control_batch,
    from_offset,
    payload,
    request,
    rows,
    start_fetch,
    stored_entry,
)
from tests.records import sample_records
from tests.records.sample_records import GZIP, LZ4, NONE, SNAPPY, ZSTD, Sample

kernel.use_snappy()
HANDLED = [codec for codec in (GZIP, SNAPPY, LZ4) if kernel.PACKED_CODECS >> codec & 1]
needs_lz4 = pytest.mark.skipif(LZ4 not in HANDLED, reason="the kernel does not convert lz4")

OLD, OLDER = 3, 1
"""Fetch versions of consumers of formats 1 and 0."""


@pytest.fixture(autouse=True)
def _short(monkeypatch):
    """Two batches are a long run, also at the end of the log, and not converted at once."""
    monkeypatch.setattr(conversion, "AT_ONCE_UNPACKED_BYTES", 0)
    monkeypatch.setattr(fetch_conversions, "LONG_RUN_BATCHES", 2)
    monkeypatch.setattr(fetch_conversions, "LONG_RUN_LAG", 0)


@pytest.fixture(params=[True, False], ids=["joined", "separate"])
def env(request, monkeypatch) -> BrokerEnvironment:
    """Its store returns the batches of a read as one value, or does not."""
    env = open_environment()
    env.topic("orders", 2)
    if not request.param:
        monkeypatch.setattr(type(env.partition().log), "read_run", lambda *_, **__: None)
    return env


def use_long_runs_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_conversions, "LONG_RUN_BATCHES", conversion.LONG_RUN_BATCHES)
    monkeypatch.setattr(fetch_conversions, "LONG_RUN_LAG", conversion.LONG_RUN_LAG)


def use_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Convert short compressed runs at once, as they are by default."""
    monkeypatch.setattr(conversion, "AT_ONCE_UNPACKED_BYTES", AT_ONCE_UNPACKED_BYTES)


def put(env: BrokerEnvironment, *entries: Entry, index: int = 0) -> None:
    ended(append(env.partition(index=index).log, entries))


async def append(log: Any, entries: Sequence[Entry]) -> None:
    await log.append(entries)


def batched(base: int, count: int = 3, size: int = 20, codec: int = LZ4) -> Entry:
    samples = [Sample(base + n, 5, b"k", bytes([65 + base + n]) * size) for n in range(count)]
    return stored_entry(base, base + count - 1, sample_records.batch(samples, codec=codec))


def fetch(env: BrokerEnvironment, version: int, *asked: FetchPartition, **more: Any) -> list[Any]:
    return list(rows(start_fetch(env, request(version, asked, **more)).result).values())


def fetch_one(env: BrokerEnvironment, version: int, offset: int, **more: Any) -> Any:
    (row,) = fetch(env, version, from_offset(offset), **more)
    return row


def offsets(row: Any, offset: int = 0) -> list[int]:
    return [found[0] for found in consume(payload(row), offset).records]


@pytest.mark.parametrize("codec", HANDLED)
@pytest.mark.parametrize("version", [OLD, OLDER])
def test_second_consumer_gets_a_long_run_from_the_cache(env, version, codec):
    put(env, *(batched(base, codec=codec) for base in (0, 3, 6)))
    first = fetch_one(env, version, 4)
    assert offsets(first, 4) == [4, 5, 6, 7, 8]
    assert (env.broker.converter.conversions, env.threads.calls) == (2, 1)
    again = fetch_one(env, version, 4)
    assert payload(again) == payload(first)
    assert (env.broker.converter.conversions, env.threads.calls) == (2, 1)
    # Another offset is another run.
    assert offsets(fetch_one(env, version, 0)) == [*range(9)]
    assert env.threads.calls == 2


def test_consumers_share_each_batch_in_another_codec(env):
    put(env, *(batched(base, codec=ZSTD) for base in (0, 3, 6)))
    for offset in (0, 3, 4):
        assert offsets(fetch_one(env, OLD, offset), offset) == [*range(offset, 9)]
    assert env.broker.converter.conversions == 3


def test_snappy_library_is_loaded_with_the_first_batch_that_needs_it(env, monkeypatch):
    """Not by the reactor's thread: that batch is converted in another one."""
    if SNAPPY not in HANDLED:
        pytest.skip("the kernel does not convert snappy")
    monkeypatch.setattr(kernel, "PACKED_CODECS", kernel.PACKED_CODECS & ~(1 << SNAPPY))
    monkeypatch.setattr(kernel, "_has_searched_snappy", False)
    kernel._kernel.use_snappy(0, 0, 0, 0)
    put(env, *(batched(base, codec=SNAPPY) for base in (0, 3, 6)))
    assert offsets(fetch_one(env, OLD, 0)) == [*range(9)]
    assert env.broker.converter.conversions == 3
    assert kernel.PACKED_CODECS >> SNAPPY & 1
    # Then batches are converted as runs.
    assert offsets(fetch_one(env, OLD, 4), 4) == [4, 5, 6, 7, 8]
    assert (env.broker.converter.conversions, env.threads.calls) == (5, 2)


@pytest.mark.parametrize("codec", HANDLED)
@pytest.mark.parametrize("version", [OLD, OLDER])
def test_short_run_is_converted_at_once(env, monkeypatch, version, codec):
    put(env, *(batched(base, codec=codec) for base in (0, 3, 6)))
    expected = payload(fetch_one(env, version, 4))
    calls = env.threads.calls
    use_at_once(monkeypatch)
    for _ in range(2):
        assert payload(fetch_one(env, version, 4)) == expected
    assert env.threads.calls == calls
    # The first one was converted in a thread.
    assert env.broker.converter.conversions == 3 * 2


@pytest.mark.parametrize("codec", HANDLED)
def test_runs_of_a_fetch_that_unpack_to_more_are_converted_in_a_thread(env, monkeypatch, codec):
    use_at_once(monkeypatch)
    some = random.Random(1)
    most = (
        AT_ONCE_UNPACKED_BYTES // AT_ONCE_EXPANSION // (AT_ONCE_GZIP_WEIGHT if codec == GZIP else 1)
    )
    raw = sample_records.batch([Sample(0, 5, None, some.randbytes(most // 2))], codec=codec)
    for index in (0, 1):
        put(env, stored_entry(0, 0, raw), index=index)
    assert offsets(fetch_one(env, OLD, 0)) == [0]
    assert env.threads.calls == 0
    # Each of them is short enough, but not both.
    for row in fetch(env, OLD, from_offset(0), from_offset(0, 1)):
        assert offsets(row) == [0]
    assert env.threads.calls == 1


@pytest.mark.skipif(HANDLED != [GZIP, SNAPPY, LZ4], reason="the kernel lacks a codec")
def test_fewer_bytes_in_gzip_than_in_lz4_are_converted_at_once(env, monkeypatch):
    use_at_once(monkeypatch)
    value = random.Random(1).randbytes(5_000)
    for index, (codec, calls) in enumerate([(LZ4, 0), (GZIP, 1)]):
        raw = sample_records.batch([Sample(0, 5, None, value)], codec=codec)
        put(env, stored_entry(0, 0, raw), index=index)
        (row,) = fetch(env, OLD, from_offset(0, index))
        assert offsets(row) == [0]
        assert env.threads.calls == calls


@pytest.mark.skipif(HANDLED != [GZIP, SNAPPY, LZ4], reason="the kernel lacks a codec")
@pytest.mark.parametrize(("codecs", "calls"), [((GZIP, LZ4), 0), ((LZ4, GZIP), 1)])
def test_gzip_behind_another_codec_is_converted_in_a_thread(env, monkeypatch, codecs, calls):
    use_at_once(monkeypatch)
    put(env, *(batched(3 * number, codec=codec) for number, codec in enumerate(codecs)))
    assert offsets(fetch_one(env, OLD, 0)) == [*range(6)]
    assert env.threads.calls == calls


@needs_lz4
def test_batch_that_expands_much_is_converted_in_a_thread(env, monkeypatch):
    use_at_once(monkeypatch)
    put(env, batched(0, 1, 8_000))
    assert len(env.partition().log.read_resident(0, LARGE)[0].payload) < 8_000 // AT_ONCE_EXPANSION
    assert offsets(fetch_one(env, OLD, 0)) == [0]
    assert env.threads.calls == 1


def test_consumers_at_the_log_end_share_batches_of_short_runs(env, monkeypatch):
    monkeypatch.setattr(fetch_conversions, "LONG_RUN_BATCHES", 4)
    put(env, *(batched(base) for base in (0, 3, 6)))
    for offset in (0, 3, 4):
        assert offsets(fetch_one(env, OLD, offset), offset) == [*range(offset, 9)]
    assert env.broker.converter.conversions == 3


def test_consumers_at_the_log_end_share_each_batch(env, monkeypatch):
    """Whatever their offsets and the number of batches."""
    use_long_runs_as_they_are(monkeypatch)
    put(env, *(batched(base, 1) for base in range(20)))
    for offset in (0, 1, 2):
        assert offsets(fetch_one(env, OLD, offset), offset) == [*range(offset, 20)]
    assert env.broker.converter.conversions == 20


def test_fetch_that_waits_for_more_records_converts_each_batch_once(env, monkeypatch):
    use_long_runs_as_they_are(monkeypatch)
    put(env, *(batched(base, 1) for base in range(20)))
    waiting = start_fetch(env, request(OLD, [from_offset(0)], min_bytes=LARGE, max_wait_ms=10_000))
    put(env, *(batched(base, 1) for base in range(20, 40)))
    env.clock.advance(10)
    (row,) = rows(waiting.result).values()
    assert offsets(row) == [*range(40)]
    assert env.broker.converter.conversions == 40


def test_lz4_frames_of_other_clients_take_one_call_for_each_fetch(env):
    """The frames have the size of their content, which the kernel does not handle."""
    for base in (0, 3):
        plain = bytes(batched(base, codec=NONE).payload)
        made = bytearray(batched(base).payload[:61] + lz4.frame.compress(plain[61:]))
        made[8:12] = (len(made) - 12).to_bytes(4, "big")
        made[17:21] = sample_records.crc32c.crc32c(bytes(made[21:])).to_bytes(4, "big")
        put(env, stored_entry(base, base + 2, bytes(made)))
    assert offsets(fetch_one(env, OLD, 0)) == [*range(6)]
    assert (env.broker.converter.conversions, env.threads.calls) == (2, 1)


def test_long_run_with_an_unreadable_batch_is_converted_by_batches(env):
    damaged = bytes(batched(3).payload)
    put(env, batched(0), stored_entry(3, 5, damaged[:-1] + b"?"), batched(6))
    # Whole messages, as from offset 0, but another run.
    size = len(payload(fetch_one(env, OLD, 1)))
    calls = []
    for _ in range(2):
        row = fetch_one(env, OLD, 0, min_bytes=size, max_wait_ms=10_000)
        assert offsets(row) == [0, 1, 2, 6, 7, 8]
        calls.append(env.threads.calls)
    assert calls[0] == calls[1]


@needs_lz4
@pytest.mark.parametrize("is_cached", [False, True])
def test_fetch_does_not_wait_if_a_limit_ended_the_long_run(env, is_cached):
    put(env, *(batched(base, 1, 6 << 20) for base in range(4)))
    if is_cached:
        fetch_one(env, OLD, 0)
    row = fetch_one(env, OLD, 0, min_bytes=LARGE, max_wait_ms=10_000)
    assert offsets(row) == [0, 1, 2]


def test_long_run_whose_first_message_does_not_fit_is_not_converted_again(env):
    """Small records grow: the first message is larger than both batches are in the store."""
    some = random.Random(1)
    samples = [Sample(n, 5, None, some.randbytes(2)) for n in range(100)]
    stored = [
        stored_entry(0, 99, sample_records.batch(samples, codec=LZ4)),
        stored_entry(100, 100, sample_records.batch([Sample(100, 5, None, b"v")], codec=LZ4)),
    ]
    put(env, batched(0, codec=NONE))
    put(env, *stored, index=1)
    size = sum(len(entry.payload) for entry in stored)
    assert len(payload(fetch(env, OLD, from_offset(0, 1, size))[0])) > size
    asked = from_offset(0), from_offset(0, 1, size)
    counts = []
    for _ in range(3):
        first, second = fetch(env, OLD, *asked)
        assert (offsets(first), list(second.records)) == ([0, 1, 2], [])
        counts.append(env.threads.calls)
    assert counts[1] == counts[2]


def test_long_run_keeps_a_limit_that_has_become_smaller(env, monkeypatch):
    put(env, *(batched(base, size=200) for base in (0, 3, 6)))
    size = len(payload(fetch_one(env, OLD, 0)))
    reserved = [LARGE, size - 1]
    monkeypatch.setattr(type(env.broker.outgoing), "reserve", lambda *_: reserved.pop(0))
    assert offsets(fetch_one(env, OLD, 1), 1) == [1, 2, 3, 4, 5]
    assert not reserved


@needs_lz4
@pytest.mark.parametrize("is_readable", [True, False])
def test_cpu_time_of_the_thread_is_charged_to_the_consumer(env, monkeypatch, is_readable):
    """Also if the run cannot be converted as a whole."""
    put(env, batched(0), batched(3))
    real = conversion_calls.convert_run

    def convert_run(*given: Any) -> tuple[ConvertedRun, int]:
        run, _ = real(*given)
        assert run is not None
        return run if is_readable else ConvertedRun(b"", (0, 0, 0)), 7000

    monkeypatch.setattr(conversion, "convert_run", convert_run)
    added: list[int] = []
    stopwatch: Any = SimpleNamespace(add=added.append)
    caller = msgspec.structs.replace(env.caller(OLD), stopwatch=stopwatch)
    monkeypatch.setattr(BrokerEnvironment, "caller", lambda *_: caller)
    assert offsets(fetch_one(env, OLD, 0)) == [*range(6)]
    assert added[0] == 7_000_000
    assert len(added) == (1 if is_readable else 2)


@pytest.mark.parametrize("codecs", [(LZ4, GZIP), (LZ4, NONE), (GZIP, LZ4), (LZ4, LZ4)])
def test_old_consumer_gets_its_records_of_each_partition(env, codecs):
    for index, codec in enumerate(codecs):
        put(env, batched(0, 2, codec=codec), batched(2, index + 1, 200), index=index)
    for _ in range(2):
        positions = [0, 0]
        for index, row in enumerate(fetch(env, OLD, from_offset(0), from_offset(0, 1))):
            while len(payload(row)):
                positions[index] = consume(payload(row), positions[index]).next_offset
                (row,) = fetch(env, OLD, from_offset(positions[index], index))
        assert positions == [3, 4]


@st.composite
def logs(draw: st.DrawFn) -> list[Entry]:
    """One to six batches, with gaps in their offsets."""
    entries: list[Entry] = []
    base = 0
    for _ in range(draw(st.integers(1, 6))):
        codec = draw(st.sampled_from([NONE, LZ4, LZ4, SNAPPY, SNAPPY, GZIP, -1]))
        if codec < 0:
            entries.append(control_batch(base))
            base += 1
            continue
        count, size = draw(st.integers(1, 5)), draw(st.integers(0, 90))
        last = base + count - 1 + draw(st.integers(0, 2))
        samples = [Sample(base + n, 5, b"k", bytes([65 + n]) * size) for n in range(count)]
        raw = sample_records.batch(samples, codec=codec, last_offset=last)
        entries.append(stored_entry(base, last, raw))
        base = last + 1
    return entries


@settings(max_examples=100, deadline=None)
@given(
    logs(),
    st.lists(
        st.tuples(st.integers(0, 25), st.integers(-1, 900) | st.just(LARGE), st.integers(1, 900)),
        min_size=1,
        max_size=5,
    ),
    st.sampled_from([0, 1, 2, 3]),
    st.booleans(),
)
def test_consumers_get_of_long_runs_what_they_get_of_their_batches(
    entries, asked, version, is_joined
):
    replies = []
    for least, at_once in ((1, 0), (LARGE, 0), (LARGE, AT_ONCE_UNPACKED_BYTES)):
        env = open_environment()
        env.topic("orders", 2)
        put(env, *entries)
        put(env, *entries, index=1)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(fetch_conversions, "LONG_RUN_BATCHES", least)
            patch.setattr(conversion, "AT_ONCE_UNPACKED_BYTES", at_once)
            if not is_joined:
                patch.setattr(type(env.partition().log), "read_run", lambda *_, **__: None)
            replies.append(
                [
                    [
                        (row.error_code, payload(row))
                        for row in fetch(
                            env,
                            version,
                            from_offset(min(offset, entries[-1].last_offset), 0, limit),
                            from_offset(0, 1, limit),
                            max_bytes=max_bytes,
                        )
                    ]
                    for offset, limit, max_bytes in asked
                ]
            )
    assert replies[0] == replies[1] == replies[2]
