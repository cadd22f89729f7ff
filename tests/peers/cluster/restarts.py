"""Restarts of one broker after the other while a client produces and reads."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import cycle
from typing import Protocol, Self

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

from tests.legacy_clients.clients import (
    GRACE_SECONDS,
    Acknowledged,
    Client,
    DriverFailed,
    Record,
    acknowledged_from,
    line_of,
    producing,
)

#: From the beginning of a restart to the beginning of the next one, unless the cluster needs
#: longer until it has settled.
INTERVAL_SECONDS = 5.0
#: At least this many seconds pass from one restart to the next.
PAUSE_SECONDS = 2.0
READ_SECONDS = 120.0

Place = tuple[int, int]
"""Partition and offset."""


class RestartableNode(Protocol):
    def end(self) -> None: ...
    def kill(self) -> None: ...
    def launch(self) -> None: ...


class Brokers(Protocol):
    """The nodes of a cluster by id."""

    @property
    def nodes(self) -> Mapping[int, RestartableNode]: ...
    @property
    def bootstrap(self) -> str: ...
    def wait_until_settled(self, topic: str) -> None: ...
    def unexpected_errors(self) -> list[str]: ...


class Restarts:
    """Stops the nodes in turn, by SIGTERM and SIGKILL alternately, and starts each again.

    The next node follows once the former is ready and the leadership of the partitions of `topic`
    has settled, as with an operator. Runs during the context; a restart that has begun is finished.
    `seconds` has the duration of each restart until the leadership has settled.
    """

    def __init__(self, brokers: Brokers, topic: str) -> None:
        self._brokers = brokers
        self._topic = topic
        self._is_over = threading.Event()
        self._changed = threading.Condition()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.seconds: list[float] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def wait_for(self, count: int) -> None:
        """Wait until this many nodes have been restarted. Raises what stopped the restarts."""
        with self._changed:
            self._changed.wait_for(lambda: len(self.seconds) >= count or self._failure)
        if self._failure:
            raise self._failure

    def _run(self) -> None:
        # With an odd number of nodes, each is ended and killed in turn.
        nodes, ways = cycle(self._brokers.nodes.values()), cycle(["end", "kill"])
        try:
            while not self._is_over.is_set():
                began = time.monotonic()
                node = next(nodes)
                (node.end if next(ways) == "end" else node.kill)()
                node.launch()
                self._brokers.wait_until_settled(self._topic)
                took = time.monotonic() - began
                with self._changed:
                    self.seconds.append(took)
                    self._changed.notify_all()
                self._is_over.wait(max(PAUSE_SECONDS, INTERVAL_SECONDS - took))
        except BaseException as failure:
            with self._changed:
                self._failure = failure
                self._changed.notify_all()


def produce_blocks(
    client: Client,
    bootstrap: str,
    words: Sequence[str],
    blocks: Iterable[Sequence[Record]],
    timeout: float,
) -> list[Acknowledged]:
    """Send each block when the iterator yields it; return one response per record, in order.

    Raises DriverFailed unless all are acknowledged.
    """
    sent = 0
    with (
        tempfile.TemporaryFile("w+", errors="replace") as errors,
        producing(client, bootstrap, *words, timeout=timeout, errors=errors) as process,
    ):
        assert process.stdin
        assert process.stdout
        try:
            for block in blocks:
                process.stdin.write("".join(map(line_of, block)))
                process.stdin.flush()
                sent += len(block)
        except BrokenPipeError:
            # Its exit code and stderr say why.
            pass
        with suppress(BrokenPipeError):
            process.stdin.close()
        overdue = threading.Timer(timeout + GRACE_SECONDS, process.kill)
        overdue.start()
        printed = process.stdout.read()
        code = process.wait()
        overdue.cancel()
        answers = [acknowledged_from(line) for line in printed.splitlines()]
        if code or len(answers) != sent:
            errors.seek(0)
            why = f"exit code {code}, {len(answers)} of {sent} records acknowledged"
            raise DriverFailed(client, "produce", why, printed, errors.read())
    return answers


def read_log(bootstrap: str, topic: str, partitions: int) -> dict[Place, str]:
    """Every record of the topic."""
    reader = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    reader.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(partitions)])
    found: dict[Place, str] = {}
    ended: set[int] = set()
    deadline = time.monotonic() + READ_SECONDS
    try:
        while len(ended) < partitions:
            assert time.monotonic() < deadline, f"only the partitions {ended} were read"
            for one in reader.consume(500, 0.2):
                error = one.error()
                if error is None:
                    found[one.partition(), one.offset()] = one.value().decode()
                else:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    ended.add(one.partition())
    finally:
        reader.close()
    return found
