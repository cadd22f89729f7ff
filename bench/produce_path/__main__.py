"""What one request costs from received bytes to the bytes of its reply, without sockets.

`make bench-path` sends requests as bytes to a connection of a broker in this process. The requests
of a burst arrive in one read, or in one read each, and their appends are completed together, as a
store does after a sync. The log is in memory: stores and system calls are not measured. With
--embedded it is in an embedded store, in the directory for temporary files.

CPU time is the minimum of many rounds, of the main thread. With --instructions the requests run
under Valgrind's callgrind, which counts the same on any machine, in all threads together.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Iterable, Sequence
from pathlib import Path
from struct import pack
from typing import Any

import msgspec

import gateway.handlers  # noqa: F401 - registers the routes
from bench.produce_path.embedded import EmbeddedStore
from gateway.net.connection import KafkaConnection
from gateway.net.flow_control import LoginBudget, MemoryBudget
from gateway.protocol.wire import compiled
from storage.bridge import Completion
from storage.log import Entry, LogStatus
from tests.fakes.broker import BrokerEnvironment, open_environment
from tests.records.sample_records import Sample, batch

TOPIC = "orders"
PRODUCER_ID = 4_000
CLIENT_ID = b"perf-producer-client"

#: Requests of one connection that are unanswered at a time: Java's default.
BURST = 5

#: Bursts of one round, and rounds. Short rounds: one without an interruption is enough.
BURSTS, ROUNDS = 40, 60

#: Bursts that callgrind counts.
COUNTED_BURSTS = 20


class Shape(msgspec.Struct, frozen=True):
    """The requests of a producer: `records` records of `size` bytes for each of `partitions`.

    `version` is that of Produce. `idempotent` producers send an id and sequences.
    """

    name: str
    records: int
    size: int
    partitions: int = 1
    version: int = 11
    idempotent: bool = True


SHAPES = (
    Shape("1 record of 1 KiB", 1, 1024),
    Shape("1 record of 1 KiB, Produce v3 without id", 1, 1024, version=3, idempotent=False),
    Shape("1 record of 1 KiB for each of 8 partitions", 1, 1024, partitions=8),
    Shape("15 records of 1 KiB", 15, 1024),
)

#: What is measured: the requests, and the number of reads in which a burst of them arrives.
LOADS = tuple((shape, reads) for shape in SHAPES for reads in (1, BURST))


class HeldLog:
    """A log in memory that forgets what it stores.

    Like the embedded store's, it completes the appends of a burst together, in order.
    """

    leader_epoch = 0
    start_offset = 0

    def __init__(self) -> None:
        self.status = LogStatus()
        self.end_offset = self.next_offset = 0
        self.size = 0
        self._waiting: list[tuple[Completion[None], int]] = []

    def append(self, entries: Sequence[Entry]) -> Awaitable[None]:
        done: Completion[None] = Completion()
        self.next_offset = entries[-1].last_offset + 1
        self._waiting.append((done, self.next_offset))
        return done

    def deliver(self) -> None:
        """Complete all appends."""
        waiting, self._waiting = self._waiting, []
        for _, end in waiting:
            self.end_offset = end
        for done, _ in waiting:
            done.callback(None)


class Socket:
    """The transport of a connection; it counts the replies' bytes."""

    def __init__(self) -> None:
        self.sent = 0
        self.writes = 0

    def writeSequence(self, buffers: Sequence[bytes]) -> None:
        self.writes += 1
        self.sent += sum(map(len, buffers))

    def setTcpNoDelay(self, enabled: bool) -> None: ...
    def setTcpKeepAlive(self, enabled: bool) -> None: ...
    def registerProducer(self, producer: object, streaming: bool) -> None: ...
    def pauseProducing(self) -> None: ...
    def resumeProducing(self) -> None: ...


class _Listener:
    """What a connection needs of its listener."""

    def __init__(self, environment: BrokerEnvironment) -> None:
        self.name = "PLAINTEXT"
        self.broker = environment.broker
        self.budget = MemoryBudget(1 << 30, environment.clock)
        self.login_budget = LoginBudget(1 << 20)
        self.mechanisms = None
        self.principal_rules = None

    def opened(self, connection: Any, /) -> None: ...
    def closed(self, connection: Any, /) -> None: ...


class RecordedProducer:
    """A connection that sends requests of one shape, to an embedded store or to memory."""

    def __init__(self, shape: Shape, *, reads: int, is_embedded: bool) -> None:
        self._shape = shape
        self._reads = reads
        self._environment = environment = open_environment()
        environment.topic(TOPIC, shape.partitions)
        self._store = EmbeddedStore(TOPIC, shape.partitions) if is_embedded else None
        logs: list[Any] = self._store.logs if self._store else []
        self._held = [] if self._store else [HeldLog() for _ in range(shape.partitions)]
        self._logs = logs or self._held
        for index, log in enumerate(self._logs):
            environment.partition(TOPIC, index).log = log
        self._connection = KafkaConnection(_Listener(environment), "192.0.2.1", 5000)
        self.socket = Socket()
        self._connection.makeConnection(self.socket)  # type: ignore[arg-type]
        self._sent = 0

    def bursts(self, count: int) -> list[list[bytes]]:
        """The reads of the next bursts: BURST requests in `reads` reads each."""
        found = []
        for _ in range(count):
            requests = []
            for _ in range(BURST):
                requests.append(produce_frame(self._shape, self._sent))
                self._sent += 1
            step = -(-BURST // self._reads)
            found.append(
                [b"".join(requests[first : first + step]) for first in range(0, BURST, step)]
            )
        return found

    def serve(self, bursts: list[list[bytes]]) -> None:
        received, advance, store = (
            self._connection.dataReceived,
            self._environment.clock.advance,
            self._store,
        )
        for reads in bursts:
            if store is not None:
                store.expect(BURST * len(self._logs))
            for read in reads:
                received(read)
                advance(0)
            if store is not None:
                next_offsets = [log.next_offset for log in self._logs]
                store.run_until(lambda ends=next_offsets: self.end_offsets() == ends)
            for log in self._held:
                log.deliver()
            advance(0)

    def end_offsets(self) -> list[int]:
        """The log end offset of each partition."""
        return [log.end_offset for log in self._logs]

    def close(self) -> None:
        self._connection.connectionLost()
        if self._store is not None:
            self._store.close()


def produce_frame(shape: Shape, number: int) -> bytes:
    """The `number`th request of a connection, with its length."""
    producer = (PRODUCER_ID, 0, number * shape.records) if shape.idempotent else (-1, -1, -1)
    samples = [
        Sample(index, 1_700_000_000_000, None, bytes(shape.size)) for index in range(shape.records)
    ]
    records = batch(samples, producer=producer)
    flexible = shape.version >= 9
    frame = pack(">hhih", 0, shape.version, number, len(CLIENT_ID)) + CLIENT_ID
    if flexible:
        frame += b"\0\0" + pack(">hi", -1, 30_000) + b"\x02"
        frame += bytes([len(TOPIC) + 1]) + TOPIC.encode() + bytes([shape.partitions + 1])
        for index in range(shape.partitions):
            frame += pack(">i", index) + _uvarint(len(records) + 1) + records + b"\0"
        frame += b"\0\0"
    else:
        frame += pack(">hhii", -1, -1, 30_000, 1)
        frame += pack(">h", len(TOPIC)) + TOPIC.encode() + pack(">i", shape.partitions)
        for index in range(shape.partitions):
            frame += pack(">ii", index, len(records)) + records
    return pack(">i", len(frame)) + frame


def _uvarint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def cpu_microseconds(load: tuple[Shape, int], *, is_embedded: bool) -> float:
    """CPU time of one request, the minimum of all rounds."""
    shape, reads = load
    producer = RecordedProducer(shape, reads=reads, is_embedded=is_embedded)
    producer.serve(producer.bursts(BURSTS))
    best = min(_cpu_seconds(producer) for _ in range(ROUNDS))
    producer.close()
    return best * 1e6 / (BURSTS * BURST)


def _cpu_seconds(producer: RecordedProducer) -> float:
    bursts = producer.bursts(BURSTS)
    began = time.thread_time()
    producer.serve(bursts)
    return time.thread_time() - began


def count_instructions(loads: Sequence[int], *, is_embedded: bool) -> list[float]:
    """Instructions of one request of each of these LOADS, counted by callgrind."""
    with tempfile.TemporaryDirectory() as folder:
        argv = [
            "valgrind",
            "--tool=callgrind",
            # Each call of this function ends a part of the counts.
            "--dump-before=getppid",
            f"--callgrind-out-file={folder}/part",
            sys.executable,
            "-m",
            "bench.produce_path",
            "--serve",
            "--loads",
            *map(str, loads),
            *(["--embedded"] if is_embedded else []),
        ]
        # A fixed hash seed: dictionaries with other collisions need other numbers of instructions.
        environment = {**os.environ, "PYTHONHASHSEED": "0"}
        subprocess.run(argv, env=environment, capture_output=True, check=True)
        # Parts with even numbers are the requests, those before them the preparations.
        return [
            _total(Path(folder, f"part.{2 * number + 2}")) / (COUNTED_BURSTS * BURST)
            for number in range(len(loads))
        ]


def _total(part: Path) -> int:
    found = re.search(r"^totals: (\d+)", part.read_text(), re.MULTILINE)
    if found is None:
        raise RuntimeError("callgrind wrote no total")
    return int(found[1])


def _serve(loads: Sequence[int], *, is_embedded: bool) -> None:
    """Serve the requests that callgrind counts."""
    for shape, reads in (LOADS[number] for number in loads):
        producer = RecordedProducer(shape, reads=reads, is_embedded=is_embedded)
        producer.serve(producer.bursts(COUNTED_BURSTS // 2))
        bursts = producer.bursts(COUNTED_BURSTS)
        os.getppid()
        producer.serve(bursts)
        os.getppid()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, prog="bench.produce_path")
    parser.add_argument("--instructions", action="store_true", help="count them with callgrind")
    numbers = range(len(LOADS))
    parser.add_argument(
        "--loads",
        nargs="+",
        type=int,
        choices=numbers,
        default=list(numbers),
        metavar="N",
        help=f"rows of the table to measure, of 0 to {numbers[-1]} (default: all)",
    )
    parser.add_argument("--embedded", action="store_true", help="use an embedded store")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        _serve(options.loads, is_embedded=options.embedded)
        return 0
    unit = "instructions" if options.instructions else "CPU us"
    loads = [LOADS[number] for number in options.loads]
    costs: Iterable[float] = (
        count_instructions(options.loads, is_embedded=options.embedded)
        if options.instructions
        else (cpu_microseconds(load, is_embedded=options.embedded) for load in loads)
    )
    print(f"codec functions: {compiled.KERNEL}, Python {sys.version.split()[0]}")
    print(f"| Produce | requests per read | {unit} |")
    print("| --- | --- | --- |")
    for (shape, reads), cost in zip(loads, costs, strict=True):
        print(f"| {shape.name} | {BURST // reads} | {cost:,.1f} |", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
