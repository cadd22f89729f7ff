"""A chaos run: clients of three generations, planned faults, and the checks at the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from tests.peers.chaos.client_processes import (
    ChaosClients,
    ChaosMember,
    ChaosProducer,
    ToolMember,
)
from tests.peers.chaos.evidence import EXAMPLES, Commits, Log, Observations, complaints
from tests.peers.chaos.faults import ServerFault
from tests.peers.chaos.observers import Observer, read_whole_log
from tests.peers.chaos.servers import GatewayDied, Servers
from tests.peers.cluster.load import create_topic
from tests.testkit.kafka import BrokerFailed
from tests.testkit.verifiable import TOPIC, ToolProcess

#: Records per second of each producer: some are in flight while a server is absent, and two cores
#: are enough.
PACE = 10
#: Between two reads of what all clients have reported.
LOOK_SECONDS = 0.1
#: Acknowledgements after which a producer counts as recovered.
ANSWERS = 10
#: For JVMs that start concurrently on few cores that other processes use as well.
START_SECONDS = 480.0
#: Recovery of the slowest client after a fault: twice the session timeout of a member that a long
#: pause expelled, and the longest back-off, on a busy machine.
RECOVER_SECONDS = 480.0
#: Faults that are injected regardless of time; fewer would show little.
MIN_FAULTS = 3


class NotRecovered(Exception):
    """A client did not recover in time; the message has its last output and the gateway's."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """Times in seconds.

    `began` counts from the start of the run, `served` from the fault until the servers were ready
    again, and `clients` from then on until each client had recovered.
    """

    fault: ServerFault
    began: float
    served: float
    clients: Mapping[str, float]


@dataclass(slots=True)
class Outcome:
    recoveries: list[Recovery] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    records: int = 0
    hidden_copies: int = 0
    failed: dict[str, int] = field(default_factory=dict)
    skipped_faults: int = 0
    """Planned faults for which there was no time."""
    unused_offsets: int = 0
    queries: int = 0
    """Committed offsets of a group that were compared with the earlier ones."""
    epochs: int = 0
    """Leader epochs of all partitions in which messages were stored."""


class Service(Protocol):
    """A gateway, or all gateways of a cluster."""

    @property
    def bootstrap(self) -> str: ...
    def launch(self) -> None: ...
    def kill(self) -> None: ...
    def end(self) -> None: ...
    def assert_running(self) -> None: ...
    def log(self) -> str: ...
    def unexpected_errors(self) -> list[str]: ...


@dataclass(frozen=True, slots=True)
class Stage:
    """The servers of a run, and the number of partitions of its topic.

    `others` reads the log without the gateways, given what was read through them.
    `wait_until_whole` returns when all gateways serve after the last fault.
    """

    service: Service
    servers: Servers
    partitions: int
    others: Callable[[Log], Iterable[Log]] = lambda found: ()
    wait_until_whole: Callable[[], object] = lambda: None
    allows_gaps: bool = False


class Run:
    """The clients and their results. `say` receives one line per event."""

    def __init__(
        self, folder: Path, stage: Stage, say: Callable[[str], None], clients: ChaosClients
    ) -> None:
        self._folder = folder
        self._gateway = stage.service
        self._servers = stage.servers
        self._partitions = stage.partitions
        self._say = say
        self._kinds = clients
        self._began = time.monotonic()
        self.sightings = Observations()
        self.commits = {
            kind.name: Commits(kind.name, reports_reads=kind.is_tool) for kind in clients.groups
        }
        self.producers: list[ChaosProducer] = []
        self.members: list[ChaosMember | ToolMember] = []
        self.outcome = Outcome()
        self._is_all_sent = False

    def start(self, stack: ExitStack) -> None:
        """Start all clients and wait until each makes progress."""
        create_topic(self._gateway.bootstrap, TOPIC, self._partitions)
        bootstrap = self._gateway.bootstrap
        for kind in self._kinds.producers:
            producer = ChaosProducer(self._folder, bootstrap, kind, PACE, self.sightings)
            stack.callback(producer.close)
            self.producers.append(producer)
        for group in self._kinds.groups:
            for number in range(self._kinds.members):
                member = group.join(
                    self._folder, bootstrap, number, self.sightings, self.commits[group.name]
                )
                stack.callback(member.close)
                self.members.append(member)
        self._wait_until(
            lambda: all(one.assigned for one in self.members),
            START_SECONDS,
            lambda: "every member has partitions",
        )
        self._wait_for_recovery(START_SECONDS)
        self._began = time.monotonic()

    def run_faults(self, faults: Sequence[ServerFault], seconds: float) -> None:
        """Inject the faults that can begin within `seconds`, in order, and at least the first
        MIN_FAULTS.
        """
        for number, fault in enumerate(faults):
            if number >= MIN_FAULTS and time.monotonic() > self._began + seconds:
                self.outcome.skipped_faults = len(faults) - number
                return
            self._watch(self._began + fault.at - time.monotonic())
            self.outcome.recoveries.append(recovery := self._run_fault(fault))
            slowest = max(recovery.clients, key=lambda name: recovery.clients[name])
            self._say(
                f"{fault}: servers ready after {recovery.served:.1f} s, clients recovered "
                f"{recovery.clients[slowest]:.1f} s later ({slowest} last)"
            )

    def _run_fault(self, fault: ServerFault) -> Recovery:
        struck_at = time.monotonic()
        self._servers.inject(fault)
        self._watch(fault.duration, is_struck=True)
        self._servers.recover(fault)
        served = time.monotonic()
        return Recovery(
            fault,
            struck_at - self._began,
            served - struck_at,
            self._wait_for_recovery(RECOVER_SECONDS),
        )

    def _wait_for_recovery(self, seconds: float) -> dict[str, float]:
        """Seconds until each client has recovered.

        A producer has recovered after ANSWERS new acknowledgements. A group has recovered when each
        member has read records and committed up to what was stored meanwhile.
        """
        began = time.monotonic()
        answers = {one.name: len(one.sent.stored) + ANSWERS for one in self.producers}
        reads = {one.name: one.read for one in self.members}
        times: dict[str, float] = {}
        goals: dict[int, int] = {}

        def looks() -> bool:
            now = time.monotonic() - began
            times.update(
                {
                    one.name: now
                    for one in self.producers
                    if one.name not in times and len(one.sent.stored) >= answers[one.name]
                }
            )
            if not goals and len(times) == len(self.producers):
                goals.update(self._acknowledged_ends())
            if goals:
                back = [
                    one
                    for one in self.members
                    if one.name not in times
                    and one.read > reads[one.name]
                    and self._has_reached(one, goals)
                ]
                times.update({one.name: now for one in back})
            return len(times) == len(answers) + len(reads)

        self._wait_until(
            looks,
            seconds,
            lambda: (
                "recovery of " + ", ".join(sorted((answers.keys() | reads.keys()) - times.keys()))
            ),
        )
        return times

    def _acknowledged_ends(self) -> dict[int, int]:
        """Acknowledged log end offset of each partition."""
        ends: dict[int, int] = {}
        for one in self.producers:
            for (partition, offset), _ in one.sent.stored:
                ends[partition] = max(offset + 1, ends.get(partition, 0))
        return ends

    def _has_reached(self, member: ChaosMember | ToolMember, goals: Mapping[int, int]) -> bool:
        promised = member.commits.minimums()
        return all(
            promised.get(partition, 0) >= goals.get(partition, 0) for partition in member.assigned
        )

    def finish(self) -> None:
        """Stop all clients, after the groups have read and committed everything."""
        for producer in self.producers:
            producer.finish()
            self.outcome.failed[producer.name] = len(producer.failed)
        self._is_all_sent = True
        ends = self._acknowledged_ends()

        def is_read() -> bool:
            return all(
                group.minimums().get(partition, 0) >= end
                for group in self.commits.values()
                for partition, end in ends.items()
            )

        self._wait_until(
            is_read,
            RECOVER_SECONDS,
            lambda: (
                f"every group reads to the end, {ends}: "
                f"{[one.minimums() for one in self.commits.values()]}"
            ),
        )
        for member in self.members:
            member.finish()

    def judge(self, log: Log) -> None:
        self.outcome.records = len(log.values)
        self.outcome.hidden_copies += log.hidden_copies
        self.outcome.epochs += len(log.leaders)
        self.outcome.complaints += complaints(
            log, [one.sent for one in self.producers], self.sightings, self.commits.values()
        )

    def _watch(self, seconds: float, *, is_struck: bool = False) -> None:
        """Process client events for this time, without injecting a fault."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._receive(is_struck=is_struck)
            time.sleep(LOOK_SECONDS)

    def _wait_until(
        self, is_so: Callable[[], bool], seconds: float, what: Callable[[], str]
    ) -> None:
        end = time.monotonic() + seconds
        while True:
            self._receive()
            if is_so():
                return
            if time.monotonic() > end:
                words = [one.errors() for one in self._clients() if one.name in what()]
                raise NotRecovered(
                    "\n".join(
                        [f"not within {seconds:.0f} s: {what()}", *words, self._gateway.log()]
                    )
                )
            time.sleep(LOOK_SECONDS)

    def _receive(self, *, is_struck: bool = False) -> None:
        for client in self._clients():
            client.receive()
            if client.process.poll() is not None:
                raise NotRecovered(f"the client exited: {client.errors()}\n{self._gateway.log()}")
        if not is_struck:
            self._gateway.assert_running()

    def _clients(self) -> list[ToolProcess]:
        """Clients that are running."""
        return [*([] if self._is_all_sent else self.producers), *self.members]


def run_chaos(
    folder: Path,
    stage: Stage,
    faults: Sequence[ServerFault],
    seconds: float,
    say: Callable[[str], None],
    clients: ChaosClients,
) -> Outcome:
    """Run the clients, inject faults for `seconds` from the time at which all of them make
    progress, and check the result.

    A client or a server that does not recover is the last complaint.
    """
    here = Run(folder, stage, say, clients)
    gateway, partitions = stage.service, stage.partitions
    with ExitStack() as stack:
        gateway.launch()
        stack.callback(gateway.kill)
        try:
            here.start(stack)
            with Observer(
                gateway.bootstrap, partitions, here.sightings, list(here.commits.values())
            ) as observer:
                here.run_faults(faults, seconds)
                stage.wait_until_whole()
                here.finish()
            if observer.failure:
                raise observer.failure
            here.outcome.queries = observer.queries
            # Check what is stored, not the gateway's caches.
            gateway.end()
            gateway.launch()
            found = read_whole_log(gateway.bootstrap, partitions)
            found = replace(found, allows_gaps=stage.allows_gaps)
            for log in [found, *stage.others(found)]:
                here.judge(log)
            here.outcome.unused_offsets = sum(found.ends.values()) - len(found.values)
            gateway.end()
        except (NotRecovered, GatewayDied, BrokerFailed) as failure:
            here.outcome.complaints.append(str(failure))
        here.outcome.complaints += gateway.unexpected_errors()[:EXAMPLES]
    return here.outcome
