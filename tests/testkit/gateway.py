"""Runs a gateway in its own process and measures it; a raw client that controls every byte it
sends.
"""

from __future__ import annotations

import os
import re
import select
import signal
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from kafka.protocol.consumer.fetch import FetchRequest, FetchResponse
from kafka.protocol.metadata.metadata import MetadataRequest, MetadataResponse
from kafka.protocol.producer.produce import ProduceRequest, ProduceResponse

from tests.records.sample_records import Sample, batch
from tests.testkit.forks.prepared_gateway import start_gateway

#: Limit on a busy machine; a gateway that starts in time is not waited for any longer.
START_SECONDS = 120.0
STOP_SECONDS = 60.0
MIB = 1 << 20
#: Limit for a reply to the background client, and for its next rounds. An attack that blocks other
#: clients would delay them forever.
WITNESS_SECONDS = 30.0


@dataclass
class GatewayProcess:
    """`addresses` maps listener names to host and port."""

    process: subprocess.Popen[str]
    log: Path
    addresses: Mapping[str, tuple[str, int]] = field(default_factory=dict)

    @property
    def address(self) -> tuple[str, int]:
        return next(iter(self.addresses.values()))

    def memory(self) -> int:
        """Anonymous resident memory in bytes. Mapped files are not counted: the kernel can reclaim
        them.
        """
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"^RssAnon:\s+(\d+) kB$", status, re.MULTILINE)[1]) << 10

    def open_files(self) -> int:
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))

    def lines(self) -> list[str]:
        """Complete log lines; the last line may still be being written."""
        return self.log.read_text().rpartition("\n")[0].splitlines()

    def wait_for_lines(
        self, count: int, words: str, after: int = 0, seconds: float = 60.0
    ) -> list[str]:
        """The lines from index `after` on that contain `words`, once there are `count` of them.

        After `seconds`, returns the lines found so far.
        """
        end = time.monotonic() + seconds
        while True:
            found = [line for line in self.lines()[after:] if words in line]
            if len(found) >= count or time.monotonic() > end:
                return found
            time.sleep(0.02)

    def peer(self, *, receive_buffer: int | None = None) -> Peer:
        """Open a connection. Ports are reused, so only lines logged from now on belong to this
        peer.
        """
        return Peer(self.address, receive_buffer=receive_buffer, lines_before=len(self.lines()))

    def stop(self) -> int:
        """Send SIGTERM and return the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(STOP_SECONDS)

    def stop_measured(self, watch: Stopwatch) -> tuple[int, float]:
        """Send SIGTERM, possibly again; return the exit code and the seconds measured by
        `watch`.
        """
        self.process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + STOP_SECONDS
        # /proc keeps the process's statistics until its exit code is read.
        while os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
            assert time.monotonic() < deadline, "\n".join(self.lines())
            watch.note()
            time.sleep(0.01)
        seconds = watch.seconds()
        return self.process.wait(), seconds


@contextmanager
def gateway(
    folder: Path,
    *arguments: str,
    listeners: tuple[str, ...] = ("PLAINTEXT",),
    environment: Mapping[str, str] | None = None,
    within: Sequence[str] = (),
    by_fork: bool | None = None,
    **settings: object,
) -> Iterator[GatewayProcess]:
    """Run `kopgate serve` on free loopback ports, with its store and log in `folder`.

    At the end the process is killed without warning. `environment`, `within` and `by_fork` are
    those of `start_gateway`.
    """
    words = ["serve", "--store", f"lmdb:{folder / 'store'}", *arguments]
    words += [word for name in listeners for word in ("--listener", f"{name}://127.0.0.1:0")]
    words += [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    log = folder / "gateway.log"
    with (
        log.open("w") as errors,
        start_gateway(
            words, errors, within=within, environment=environment, by_fork=by_fork
        ) as process,
    ):
        started = GatewayProcess(process, log)
        try:
            overdue = threading.Timer(START_SECONDS, process.kill)
            overdue.start()
            ready = process.stdout.readline()
            overdue.cancel()
            assert ready.startswith("ready "), log.read_text()
            for name, port in re.findall(r"([A-Z_]+)://127\.0\.0\.1:(\d+)", ready):
                started.addresses = {**started.addresses, name: ("127.0.0.1", int(port))}
            yield started
        finally:
            process.kill()


class Peer:
    """A raw client connection.

    `seconds` limits every wait; `lines_before` is the number of lines in the gateway's log when the
    connection was opened.
    """

    def __init__(
        self,
        address: tuple[str, int],
        *,
        seconds: float = 60.0,
        receive_buffer: int | None = None,
        lines_before: int = 0,
    ) -> None:
        self.lines_before = lines_before
        self.socket = socket.socket()
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(seconds)
        self.socket.connect(address)

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    @property
    def name(self) -> str:
        host, port = self.socket.getsockname()
        return f"{host}:{port}"

    def send(self, *frames: bytes) -> None:
        self.socket.sendall(b"".join(struct.pack(">i", len(frame)) + frame for frame in frames))

    def send_bytes(self, stream: bytes) -> None:
        """Send bytes without a frame. A connection that the gateway has closed is not an error."""
        try:
            self.socket.sendall(stream)
        except (ConnectionResetError, BrokenPipeError):
            return

    def receive(self) -> bytes | None:
        """The next frame, or None if the connection was closed."""
        head = self._exactly(4)
        return None if head is None else self._exactly(struct.unpack(">i", head)[0])

    def is_closed(self, seconds: float = 60.0) -> bool:
        """Whether the gateway closes the connection within `seconds`. Replies before that are
        discarded.
        """
        # Not `select`, which refuses descriptors above 1,023.
        readable = select.poll()
        readable.register(self.socket, select.POLLIN)
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if not readable.poll(left * 1000):
                return False
            try:
                if not self.socket.recv(MIB):
                    return True
            except (ConnectionResetError, BrokenPipeError):
                return True
        return False

    def reset(self) -> None:
        """Close with a TCP reset, as a host does that was switched off and on again."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def request(self, request: Any, response: Any, version: int) -> Any:
        """Send one request and decode its reply."""
        self.send(encode_request(request, version))
        frame = self.receive()
        assert frame is not None, "the gateway closed the connection"
        is_flexible = request.flexible_version_q(version)
        return response.decode(frame[5 if is_flexible else 4 :], version=version)

    def produce(self, topic: str, records: bytes, version: int = 7, acks: int = -1) -> Any:
        """The reply for the only partition."""
        reply = self.request(
            produce_request(topic, records, version, acks), ProduceResponse, version
        )
        return reply.responses[0].partition_responses[0]

    def fetch(self, topic: str, offset: int, version: int = 4, **more: Any) -> Any:
        """The reply for the only partition."""
        return (
            self.request(fetch_request(topic, offset, version, **more), FetchResponse, version)
            .responses[0]
            .partitions[0]
        )

    def create_topic(self, topic: str) -> None:
        """Create a topic through Metadata auto-creation."""
        asked = MetadataRequest(
            version=4,
            topics=[MetadataRequest.MetadataRequestTopic(name=topic)],
            allow_auto_topic_creation=True,
        )
        assert self.request(asked, MetadataResponse, 4).topics[0].error_code == 0

    def _exactly(self, size: int) -> bytes | None:
        got = bytearray()
        while len(got) < size:
            try:
                piece = self.socket.recv(size - len(got))
            except (ConnectionResetError, BrokenPipeError):
                return None
            if not piece:
                return None
            got += piece
        return bytes(got)


def one_record(value: bytes, producer: tuple[int, int, int] = (-1, -1, -1)) -> bytes:
    """A batch with one record; `producer` is the producer id, epoch and sequence."""
    return batch([Sample(0, 1_700_000_000_000, None, value)], producer=producer)


def encode_request(request: Any, version: int, correlation_id: int = 1) -> bytes:
    request.API_VERSION = version
    request.with_header(correlation_id, "test")
    return bytes(request.encode(version=version, header=True))


def produce_request(topic: str, records: bytes, version: int = 7, acks: int = -1) -> Any:
    rows = [
        ProduceRequest.TopicProduceData(
            name=topic,
            partition_data=[
                ProduceRequest.TopicProduceData.PartitionProduceData(index=0, records=records)
            ],
        )
    ]
    return ProduceRequest(
        version=version, transactional_id=None, acks=acks, timeout_ms=10_000, topic_data=rows
    )


def fetch_request(
    topic: str,
    offset: int,
    version: int = 4,
    *,
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 50 * MIB,
) -> Any:
    partition = FetchRequest.FetchTopic.FetchPartition(
        partition=0, fetch_offset=offset, partition_max_bytes=max_bytes
    )
    return FetchRequest(
        version=version,
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        topics=[FetchRequest.FetchTopic(topic=topic, partitions=[partition])],
    )


class HasProcess(Protocol):
    """A gateway that runs in its own process."""

    process: Any


class Stopwatch:
    """Seconds since creation, without delays caused by other processes.

    Time that threads of the gateway or of the tests spend waiting for a processor is not counted.
    The gateway's own CPU time always counts, and so does everything it waits for, such as timers,
    disks and locks.
    """

    def __init__(self, server: HasProcess) -> None:
        self._process = Path(f"/proc/{server.process.pid}")
        self._run_queue: dict[str, float] = {}
        self.note()
        self._began = time.monotonic(), cpu_seconds(self._process), {**self._run_queue}

    def note(self) -> None:
        """Record how long each thread has waited for a processor. For a thread that has ended, the
        last record counts.
        """
        self._run_queue |= run_queue_seconds_by_thread(TESTS) | run_queue_seconds_by_thread(
            self._process
        )

    def seconds(self) -> float:
        began, cpu_before, stood = self._began
        elapsed = time.monotonic() - began
        self.note()
        # The sum over all threads: they hand work to each other, or hold what another thread waits
        # for (a lock, Python's GIL), so their delays are sequential.
        waited = sum(
            seconds - stood.get(thread, 0.0) for thread, seconds in self._run_queue.items()
        )
        return max(elapsed - waited, min(elapsed, cpu_seconds(self._process) - cpu_before))


TESTS = Path("/proc/self")


def cpu_seconds(process: Path) -> float:
    """CPU seconds of all threads of a process, given its folder in /proc."""
    times = (process / "stat").read_text().rpartition(")")[2].split()
    return (int(times[11]) + int(times[12])) / os.sysconf("SC_CLK_TCK")


def run_queue_seconds(thread: Path) -> float:
    """Seconds for which a thread was runnable but waited for a processor, given its folder in
    /proc.
    """
    return int((thread / "schedstat").read_text().split()[1]) / 1e9


def run_queue_seconds_by_thread(process: Path) -> dict[str, float]:
    """`run_queue_seconds` of each thread of a process, by thread id."""
    seconds = {}
    for thread in (process / "task").iterdir():
        # The thread may have ended meanwhile.
        with suppress(OSError):
            seconds[thread.name] = run_queue_seconds(thread)
    return seconds


class BackgroundClient:
    """A well-behaved client that produces and fetches in the background.

    Entering the context waits until the first round is done. `slowest` is the longest round in
    stopwatch seconds; in wall-clock time no round takes longer than WITNESS_SECONDS.
    """

    def __init__(self, server: GatewayProcess, topic: str = "witness") -> None:
        self._server = server
        self._topic = topic
        self._is_running = threading.Event()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.slowest = 0.0
        self.rounds = 0
        self.failure: BaseException | None = None

    def __enter__(self) -> BackgroundClient:
        self._thread.start()
        self._is_running.wait(WITNESS_SECONDS)
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join(60)

    def makes_progress(self, rounds: int = 3) -> bool:
        """Whether the client completes this many more rounds."""
        wanted, end = self.rounds + rounds, time.monotonic() + WITNESS_SECONDS
        while self.rounds < wanted and self.failure is None and time.monotonic() < end:
            time.sleep(0.01)
        return self.rounds >= wanted

    def _run(self) -> None:
        try:
            with Peer(self._server.address, seconds=WITNESS_SECONDS) as peer:
                peer.create_topic(self._topic)
                while not self._is_over.is_set():
                    self._round(peer)
                    self._is_running.set()
                    self._is_over.wait(0.02)
        except BaseException as failure:
            self.failure = failure

    def _round(self, peer: Peer) -> None:
        watch = Stopwatch(self._server)
        stored = peer.produce(self._topic, batch([Sample(0, 1_700_000_000_000, b"k", b"v" * 100)]))
        assert stored.error_code == 0
        read = peer.fetch(self._topic, stored.base_offset)
        assert read.error_code == 0
        assert read.records
        self.slowest = max(self.slowest, watch.seconds())
        self.rounds += 1
