"""The steps of `make bench`: warm-up, then rounds in which the servers take turns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from bench import clients
from bench.clients import RECORD_BYTES, record_count
from bench.measurements import Measurement
from bench.servers import BenchServer, in_turn
from tests.testkit.kafka import VERSION

T = TypeVar("T")

CODECS = ("none", "lz4", "gzip", "snappy", "zstd")

#: Client versions by row. Versions below 2.1 do not support zstd.
READERS = {
    "fetch, as stored": VERSION,
    "fetch, to format 1": "0.10.2.2",
    "fetch, to format 0": "0.9.0.1",
}

#: Topic config with which Kafka acknowledges only synced records, as the gateway always does.
SYNCED = {"flush.messages": "1"}
BOTH_SYNC = ", both sync"

PACED = f"produce at {clients.PACE} records/s"

#: Estimates for the progress line: seconds to start a client, and MiB/s on two cores shared by
#: client and server.
_START_SECONDS, _PRODUCED, _FETCHED, _FETCHED_PACKED = 2.0, 17.0, 70.0, 25.0
_PRODUCED_SMALL = 3.0


class WarmUpLimits(msgspec.Struct, frozen=True):
    """The warm-up ends when two consecutive passes differ by less than `share`, or after `limit`
    passes.
    """

    mib: int = 64
    share: float = 0.1
    limit: int = 6


#: MiB of record values in each topic of small batches: 16,384 batches.
SMALL_MIB = 16


class RoundLoad(msgspec.Struct, frozen=True):
    """One round: topics of `mib` MiB of record values, for each codec and number of partitions.

    `small_partitions` are the numbers of partitions of topics with batches of one record; with
    `only_small` nothing else is measured. The record values of full batches are lines of the file
    `values`, or random letters.
    """

    mib: int
    codecs: tuple[str, ...]
    partitions: tuple[int, ...]
    small_partitions: tuple[int, ...] = ()
    only_small: bool = False
    values: Path | None = None

    def mib_per_round(self) -> int:
        """MiB that one server stores per round, before compression."""
        small = SMALL_MIB * len(self.small_partitions)
        if self.only_small:
            return small
        topics = len(self.partitions) + (1 in self.partitions)
        return (
            small
            + self.mib * len(self.codecs) * topics
            + 2 * paced_record_count() * RECORD_BYTES // (1 << 20)
        )


def paced_record_count() -> int:
    return clients.PACE * (clients.PACE_WARM_UP_SECONDS + clients.PACE_SECONDS)


class Step(msgspec.Struct, frozen=True):
    """A measurement to make. `seconds` is its estimated duration."""

    name: str
    seconds: float
    run: Callable[[], Measurement]


def plan(servers: Sequence[BenchServer], rounds: int, load: RoundLoad) -> list[Step]:
    """All steps. The servers take turns at every step, and the first one changes every round.

    All keep running from round to round.
    """
    return [
        step for number in range(rounds) for step in _round(number, in_turn(servers, number), load)
    ]


def _round(number: int, servers: Sequence[BenchServer], load: RoundLoad) -> Iterator[Step]:
    for partitions in load.small_partitions:
        for server in servers:
            yield _produce_small(server, f"bench-{number}-small-{partitions}", partitions)
    if not load.only_small:
        yield from _round_of_full_batches(number, servers, load)


def _round_of_full_batches(
    number: int, servers: Sequence[BenchServer], load: RoundLoad
) -> Iterator[Step]:
    for codec in load.codecs:
        for partitions in load.partitions:
            for server in servers:
                yield _produce(server, _topic(number, codec, partitions), partitions, codec, load)
        for server in servers if 1 in load.partitions else ():
            yield _produce(
                server, f"{_topic(number, codec, 1)}-synced", 1, codec, load, is_synced=True
            )
        # Fetch steps read the topic with one partition.
        for row, client in readers(codec).items() if 1 in load.partitions else ():
            for server in servers:
                yield _fetch(server, row, _topic(number, codec, 1), load.mib, codec, client)
    for server in servers:
        yield _paced(server, f"bench-{number}-paced")
    for server in servers:
        yield _paced(server, f"bench-{number}-paced-synced", is_synced=True)


def _topic(number: int, codec: str, partitions: int) -> str:
    return f"bench-{number}-{codec}-{partitions}"


def readers(codec: str) -> dict[str, str]:
    return {row: client for row, client in READERS.items() if codec != "zstd" or client == VERSION}


def _produce(
    server: BenchServer,
    topic: str,
    partitions: int,
    codec: str,
    load: RoundLoad,
    *,
    is_synced: bool = False,
) -> Step:
    row = f"produce, {partitions} partition{'s' if partitions > 1 else ''}{BOTH_SYNC * is_synced}"

    def run() -> Measurement:
        clients.create(server.bootstrap, topic, partitions, SYNCED if is_synced else None)
        rate, seconds = cpu_of(server, lambda: _send(server, topic, load.mib, codec, load.values))
        return Measurement(row, codec, server.name, seconds * 1024 / load.mib, rate)

    return Step(f"{row}, {codec}, {server.name}", _START_SECONDS + load.mib / _PRODUCED, run)


def _send(server: BenchServer, topic: str, mib: int, codec: str, values: Path | None) -> float:
    return clients.produce(server.bootstrap, topic, record_count(mib), codec, values=values)


def _produce_small(server: BenchServer, topic: str, partitions: int) -> Step:
    row = f"produce, 1 record per batch, {partitions} partition{'s' if partitions > 1 else ''}"

    def run() -> Measurement:
        clients.create(server.bootstrap, topic, partitions)
        rate, seconds = cpu_of(server, lambda: _send_small(server, topic))
        return Measurement(row, "none", server.name, seconds * 1024 / SMALL_MIB, rate)

    return Step(f"{row}, none, {server.name}", _START_SECONDS + SMALL_MIB / _PRODUCED_SMALL, run)


def _send_small(server: BenchServer, topic: str) -> float:
    return clients.produce(
        server.bootstrap,
        topic,
        record_count(SMALL_MIB),
        "none",
        batch_bytes=clients.SMALL_BATCH_BYTES,
        linger_ms=clients.SMALL_LINGER_MS,
    )


def _fetch(server: BenchServer, row: str, topic: str, mib: int, codec: str, client: str) -> Step:
    def run() -> Measurement:
        rate, seconds = cpu_of(
            server, lambda: clients.fetch(server.bootstrap, topic, record_count(mib), client)
        )
        return Measurement(row, codec, server.name, seconds * 1024 / mib, rate)

    is_slow = codec == "gzip" and client != VERSION
    return Step(
        f"{row}, {codec}, {server.name}",
        _START_SECONDS + mib / (_FETCHED_PACKED if is_slow else _FETCHED),
        run,
    )


def _paced(server: BenchServer, topic: str, *, is_synced: bool = False) -> Step:
    row = PACED + BOTH_SYNC * is_synced

    def run() -> Measurement:
        marks: list[float] = []
        clients.create(server.bootstrap, topic, 1, SYNCED if is_synced else None)
        latencies = clients.produce_at_pace(
            server.bootstrap, topic, lambda: marks.append(server.cpu_seconds())
        )
        began, ended = marks
        mib = clients.PACE * clients.PACE_SECONDS * RECORD_BYTES / (1 << 20)
        return Measurement(
            row,
            "none",
            server.name,
            (ended - began) * 1024 / mib,
            mib / clients.PACE_SECONDS,
            latencies.p50,
            latencies.p99,
        )

    return Step(
        f"{row}, none, {server.name}",
        _START_SECONDS + clients.PACE_WARM_UP_SECONDS + clients.PACE_SECONDS,
        run,
    )


def cpu_of(server: BenchServer, work: Callable[[], T]) -> tuple[T, float]:
    """The result of `work`, and the CPU seconds that the server used meanwhile."""
    before = server.cpu_seconds()
    result = work()
    return result, server.cpu_seconds() - before


def warm_up(
    server: BenchServer, load: RoundLoad, settled: WarmUpLimits, say: Callable[[str], None]
) -> None:
    """Repeat what the rounds do until its CPU cost is stable.

    Kafka's JVM compiles code while it runs; without a warm-up, the interpreter would be measured.
    """
    mib = min(settled.mib, load.mib)
    passes = iter(range(settled.limit))

    def one() -> float:
        number = next(passes)
        before = server.cpu_seconds()
        if load.only_small:
            topic = f"warm-{number}-small"
            clients.create(server.bootstrap, topic, max(load.small_partitions))
            _send_small(server, topic)
            return (server.cpu_seconds() - before) * 1024 / SMALL_MIB
        for codec in load.codecs:
            _pass(server, f"warm-{number}-{codec}", mib, codec, load.values)
        return (server.cpu_seconds() - before) * 1024 / mib / len(load.codecs)

    repeat_until_stable(one, settled, lambda line: say(f"warm-up, {server.name}, {line}"))


def _pass(server: BenchServer, topic: str, mib: int, codec: str, values: Path | None) -> None:
    clients.create(server.bootstrap, topic, 1)
    _send(server, topic, mib, codec, values)
    for client in readers(codec).values():
        clients.fetch(server.bootstrap, topic, record_count(mib), client)


def repeat_until_stable(
    one: Callable[[], float], settled: WarmUpLimits, say: Callable[[str], None]
) -> None:
    """Repeat `one`, which returns its CPU cost per GiB, until the cost is stable."""
    before = None
    for number in range(1, settled.limit + 1):
        cost = one()
        say(f"pass {number} of at most {settled.limit}: {cost:.2f} CPU s/GiB")
        if before is not None and abs(cost - before) < settled.share * before:
            return
        before = cost
    say(f"not stable after {settled.limit} passes")
