"""Pulsar as the cluster sees it, in virtual time: exclusive producers, logs, presence, messages.

Requests of a process arrive after a delay, and are held while the process is disconnected or the
broker is down. A request can fail although it was carried out. The broker notices a killed process
at once and an unreachable one after a keep-alive.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

#: Outcomes of a request, besides results.
FAILED, FENCED, IN_USE = "failed", "fenced", "in use"

REQUEST_TIMEOUT = 3.0


class Time:
    """Virtual time and the events to come."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.now = 0.0
        self.events = 0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0

    def after(self, delay: float, call: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._queue, (self.now + delay, self._number, call))

    def run(self, until: float) -> None:
        while self._queue and self._queue[0][0] <= until:
            self.now, _, call = heapq.heappop(self._queue)
            self.events += 1
            call()
        self.now = until


class Producer:
    """The right to write to a topic: one holder, identified by a token."""

    def __init__(self) -> None:
        self.token = 0
        self.holder: Any = None
        self.is_connected = False

    def acquire(self, process: Any, force: bool) -> int | None:
        if self.is_connected and not force:
            return None
        self.token += 1
        self.holder = process
        self.is_connected = True
        return self.token

    def use(self, token: int) -> bool:
        """Whether the token is still valid; a disconnected holder reconnects."""
        if token != self.token:
            return False
        self.is_connected = True
        return True

    def disconnect(self, process: Any) -> None:
        if self.holder is process:
            self.is_connected = False

    def release(self, token: int) -> None:
        if token == self.token:
            self.token += 1
            self.holder = None
            self.is_connected = False


class EntryLog:
    """A partition's log or a shard's table: entries are (epoch, value), the offset is the index."""

    def __init__(self) -> None:
        self.producer = Producer()
        self.entries: list[tuple[int, str]] = []
        self.opened_epoch = 0
        """Greatest epoch of a leader that has opened this log and found its lease valid."""

    @property
    def last_epoch(self) -> int:
        return self.entries[-1][0] if self.entries else 0


class SimulatedPulsar:
    """`rates` has the probabilities of faults: drop, put_lost, put_unacknowledged, slow."""

    def __init__(self, time: Time, shards: int, rates: dict[str, float]) -> None:
        self.time = time
        self.random = time.random
        self.rates = rates
        self.is_up = True
        self.end_restart: Callable[[], None] = lambda: None
        self.lock = Producer()
        self.writer = Producer()
        self.log: list[dict[bytes, bytes | None]] = []
        self.presence: dict[int, Producer] = {}
        self.watchers: dict[int, dict[Any, Callable[[], None]]] = {}
        """By node id and watching process, in the order in which they began."""
        self.processes: list[Any] = []
        self.partitions = [EntryLog() for _ in range(shards)]
        self.tables = [EntryLog() for _ in range(shards)]
        self.on_append: Callable[[dict[bytes, bytes | None]], None] = lambda rows: None

    def delay(self) -> float:
        if self.random.random() < self.rates["slow"]:
            return self.random.uniform(0.1, 1.5)
        return self.random.uniform(0.001, 0.02)

    # Requests

    def request(
        self, process: Any, execute: Callable[[], Any], done: Callable[[Any], None]
    ) -> None:
        """`done` runs in the process with the result of `execute`, FENCED or FAILED."""
        deadline = self.time.now + REQUEST_TIMEOUT

        def arrive() -> None:
            if not process.is_alive:
                # Half of a killed process's requests have reached the broker.
                if self.is_up and process.is_connected and self.random.random() < 0.5:
                    execute()
                    self.disconnect(process)
                return
            if process.is_connected and self.is_up:
                result = execute()
                self.time.after(self.delay(), lambda: answer(result))
            elif self.time.now >= deadline:
                process.post(lambda: done(FAILED))
            else:
                self.time.after(self.random.uniform(0.1, 0.4), arrive)

        def answer(result: Any) -> None:
            if process.is_connected:
                process.post(lambda: done(result))
            elif self.time.now >= deadline:
                process.post(lambda: done(FAILED))
            else:
                self.time.after(0.3, lambda: answer(result))

        self.time.after(self.delay(), arrive)

    # The metadata log

    def put(
        self, process: Any, token: int, rows: dict[bytes, bytes | None], done: Callable[[Any], None]
    ) -> None:
        chance = self.random.random()
        if chance < self.rates["put_lost"]:
            self.time.after(REQUEST_TIMEOUT / 3, lambda: process.post(lambda: done(FAILED)))
            return
        is_acknowledged = chance >= self.rates["put_lost"] + self.rates["put_unacknowledged"]

        def execute() -> Any:
            if not self.writer.use(token):
                return FENCED
            self.log.append(rows)
            self.on_append(rows)
            for follower in self.processes:
                self.replay(follower, len(self.log))
            return len(self.log) if is_acknowledged else FAILED

        self.request(process, execute, done)

    def replay(self, process: Any, end: int) -> None:
        """Deliver the log up to `end` to a process, later."""

        def arrive() -> None:
            if not process.is_alive:
                return
            if process.is_connected and self.is_up:
                process.post(lambda: process.replay(end))
            else:
                self.time.after(self.random.uniform(0.1, 0.5), arrive)

        self.time.after(self.delay() * process.replay_factor, arrive)

    # The inbox

    def send(self, sender: Any, node_id: int, message: Any) -> None:
        if not sender.is_connected or self.random.random() < self.rates["drop"]:
            return

        def arrive() -> None:
            for process in self.processes:
                if process.node_id == node_id and process.is_alive:
                    if process.is_connected and self.is_up:
                        process.post(partial(process.on_message, message))
                    elif self.random.random() < 0.5:
                        self.time.after(self.random.uniform(0.2, 2.0), arrive)

        self.time.after(self.delay(), arrive)

    # Connections

    def producers(self) -> list[Producer]:
        return [
            self.lock,
            self.writer,
            *self.presence.values(),
            *(log.producer for log in (*self.partitions, *self.tables)),
        ]

    def disconnect(self, process: Any) -> None:
        """The broker closes the process's connection."""
        for producer in self.producers():
            producer.disconnect(process)
        self._notify_watchers()

    def disconnect_dead(self) -> None:
        """Notice all processes that were killed while disconnected."""
        for producer in self.producers():
            if producer.holder is not None and not producer.holder.is_alive:
                producer.is_connected = False
        self._notify_watchers()

    def became_unreachable(self, process: Any) -> None:
        """Close the connection after the keep-alive, unless the process is reachable by then."""
        number = process.outages

        def expire() -> None:
            if process.is_alive and process.outages == number and not process.is_reachable:
                self.disconnect(process)

        self.time.after(self.random.uniform(30, 60), expire)

    def restart(self, down: float) -> None:
        """The broker closes all connections; producers reconnect within a second."""
        self.is_up = False

        def up() -> None:
            if self.is_up:
                return
            self.is_up = True
            for process in self.processes:
                if process.is_reachable and process.is_alive:
                    self.time.after(self.random.uniform(0, 1), lambda p=process: self.reconnect(p))
            self._notify_watchers()

        for process in self.processes:
            for producer in self.producers():
                producer.disconnect(process)
        self.time.after(down, up)
        self.end_restart = up

    def reconnect(self, process: Any) -> None:
        if not (process.is_alive and process.is_reachable and self.is_up):
            return
        for producer in self.producers():
            if producer.holder is process:
                producer.is_connected = True
        process.post(process.check_presence)

    # Presence

    def watch(self, process: Any, node_id: int, on_gone: Callable[[], None]) -> None:
        self.watchers.setdefault(node_id, {})[process] = on_gone
        self._notify_watchers()

    def unwatch(self, process: Any, node_id: int) -> None:
        self.watchers.get(node_id, {}).pop(process, None)

    def _notify_watchers(self) -> None:
        for node_id, watching in self.watchers.items():
            for process in watching:
                self.time.after(
                    self.random.uniform(0.001, 0.5), partial(self._notify, node_id, process)
                )

    def _notify(self, node_id: int, process: Any) -> None:
        """Give a free presence to a watcher, which returns it at once."""
        watching = self.watchers[node_id]
        producer = self.presence.setdefault(node_id, Producer())
        if process not in watching or producer.is_connected or not self.is_up:
            return
        if not process.is_alive:
            del watching[process]
        elif process.is_connected:
            on_gone = watching.pop(process)
            for other in self.processes:
                # Also a process that has lost its presence and not claimed it again yet.
                if other.node_id == node_id:
                    other.presence_lost_at = self.time.now
            producer.release(producer.token)
            process.post(on_gone)
        else:
            self.time.after(0.5, partial(self._notify, node_id, process))
