"""Runs of the simulated cluster: faults chosen by a seed, then recovery.

    python -m tests.gateway.cluster.simulation.cluster_run FIRST [LAST]

runs these seeds and prints the notes of each that fails.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.gateway.cluster.simulation.invariants import Invariants, Violated
from tests.gateway.cluster.simulation.simulated_process import Rules, SimulatedProcess
from tests.gateway.cluster.simulation.simulated_pulsar import SimulatedPulsar, Time

NO_FAULTS = {"drop": 0.0, "put_lost": 0.0, "put_unacknowledged": 0.0, "slow": 0.0}

#: Seconds after the last fault until all shards have leaders and are balanced.
RECOVERY = 30.0

#: Seconds without a written row that end a run.
QUIET = 3.0


@dataclass
class SimulatedCluster:
    """A cluster and its faults."""

    seed: int
    rules: Rules = field(default_factory=Rules)

    def __post_init__(self) -> None:
        self.time = Time(self.seed)
        self.random = self.time.random
        self.pulsar = SimulatedPulsar(self.time, self.rules.shard_count, dict(NO_FAULTS))
        self.checks = Invariants(self.pulsar)
        self.has_faults = True
        self._incarnations: Counter[int] = Counter()

    # Processes

    def start(self, node_id: int) -> SimulatedProcess:
        """Start a process whose clock has a random rate and offset."""
        self._incarnations[node_id] += 1
        process = SimulatedProcess(
            self.pulsar,
            node_id,
            f"{node_id}-{self._incarnations[node_id]}",
            self.rules,
            self.checks,
            rate=self.random.uniform(0.975, 1.025),
            offset=self.random.uniform(0, 1e6),
        )
        process.start()
        return process

    def alive(self) -> list[SimulatedProcess]:
        return [process for process in self.pulsar.processes if process.is_alive]

    def members(self) -> list[SimulatedProcess]:
        return [process for process in self.alive() if process.member is not None]

    def served(self) -> dict[int, int]:
        """The node that serves each served shard."""
        return {
            shard: process.node_id
            for process in self.members()
            if not process.is_paused and process.member is not None
            for shard in process.shards
            if process.member.leads(shard, process.clock())
        }

    # Running

    def run_until(self, condition: Callable[[], bool], timeout: float, step: float = 0.25) -> float:
        """Run until `condition` holds. Returns the seconds that this took.

        Raises Violated after `timeout`.
        """
        start = self.time.now
        while not condition():
            if self.time.now - start > timeout:
                raise Violated(f"not within {timeout} s: {condition.__name__}; {self.summary()}")
            self.time.run(self.time.now + step)
        return self.time.now - start

    def summary(self) -> str:
        return f"served {self.served()}, nodes {sorted(self.checks.image.nodes)}"

    def is_recovered(self) -> bool:
        """Whether the nodes that the log names serve all shards, and have balanced loads."""
        image = self.checks.image
        served = self.served()
        if set(served) != set(range(self.rules.shard_count)):
            return False
        registered = {
            (process.node_id, process.member.node.registration)
            for process in self.alive()
            if process.member is not None
        }
        if len(registered) < len(self.alive()) or registered != {
            (node_id, row.registration) for node_id, row in image.nodes.items()
        }:
            return False
        if any(
            row.leader != served[shard] or row.successor >= 0 for shard, row in image.shards.items()
        ):
            return False
        loads = Counter(served.values())
        found = [loads[node] for node in image.nodes]
        return max(found) - min(found) <= 1

    def is_quiet(self) -> bool:
        if not self.alive():
            self.start(1)
        return self.is_recovered() and self.time.now - self.checks.last_write > QUIET

    def inject(self, delay: float, fault: Callable[[SimulatedCluster], object]) -> None:
        """Cause a fault, or end it, after a delay; no effect after `end_faults`."""
        self.time.after(delay, lambda: self.has_faults and fault(self))

    def end_faults(self) -> None:
        """Reconnect and resume all processes; from now on no message is lost."""
        self.has_faults = False
        self.pulsar.rates = dict(NO_FAULTS)
        self.pulsar.end_restart()
        self.pulsar.disconnect_dead()
        for process in self.alive():
            if process.is_paused:
                process.resume()
            if not process.is_connected:
                process.heal()

    def recover(self) -> None:
        self.end_faults()
        self.checks.note("faults end")
        # Operations that began before the end continue: wait at least QUIET.
        self.checks.last_write = self.time.now
        self.run_until(self.is_quiet, RECOVERY)
        writes = self.checks.writes
        self.time.run(self.time.now + QUIET)
        self.checks.require(self.is_recovered(), f"it did not stay recovered: {self.summary()}")
        self.checks.require(self.checks.writes == writes, "rows are written without need")
        self.checks.at_end()

    # Faults

    def random_run(self) -> None:
        random = self.random
        count = random.randint(1, 5)
        for node_id in range(1, count + 1):
            self.inject(random.uniform(0, 2), lambda run, node_id=node_id: run.start(node_id))
        self.pulsar.rates = {
            "drop": random.choice((0, 0, 0.05, 0.3)),
            "put_lost": random.choice((0, 0, 0.1)),
            "put_unacknowledged": random.choice((0, 0, 0.1)),
            "slow": random.choice((0, 0.02, 0.1)),
        }
        end = random.uniform(5, 15)
        for _ in range(random.randint(0, 6)):
            self.inject(random.uniform(1, end), random.choice(FAULTS))
        # Sometimes wait for the keep-alive of unreachable processes.
        self.time.run(end + random.choice((0, 1, 3, 10, 65)) * random.random())
        self.recover()

    def victim(self) -> Any:
        """Choose a process for a fault, often the controller; None if no process runs."""
        members = self.members()
        controllers = [process for process in members if process.controller is not None]
        if not members:
            return None
        if controllers and self.random.random() < 0.4:
            return self.random.choice(controllers)
        return self.random.choice(members)

    def duration(self) -> float:
        """Seconds of an outage: shorter than a lease, or longer than a session or keep-alive."""
        low, high = self.random.choice(((0.1, 1), (1, 4), (3, 8), (35, 70)))
        return self.random.uniform(low, high)


def kill(run: SimulatedCluster) -> None:
    victim = run.victim()
    if victim is None:
        return
    victim.kill()
    if run.random.random() < 0.8:
        delay = run.random.choice((0.05, 1, 5)) * run.random.random()
        run.inject(delay, lambda run: run.start(victim.node_id))


def pause(run: SimulatedCluster) -> None:
    victim = run.victim()
    if victim is None or victim.is_paused:
        return
    run.checks.note(f"{victim!r} is paused")
    victim.pause()
    run.inject(run.duration(), lambda run: _resume(victim))


def _resume(victim: SimulatedProcess) -> None:
    if victim.is_alive and victim.is_paused:
        victim.note("continues")
        victim.resume()


def cut(run: SimulatedCluster) -> None:
    victim = run.victim()
    if victim is None or not victim.is_connected:
        return
    run.checks.note(f"{victim!r} is disconnected")
    victim.cut()
    run.inject(run.duration(), lambda run: _heal(victim))


def _heal(victim: SimulatedProcess) -> None:
    if victim.is_alive and not victim.is_connected:
        victim.note("is connected")
        victim.heal()


def restart_broker(run: SimulatedCluster) -> None:
    if run.pulsar.is_up:
        run.checks.note("the broker restarts")
        run.pulsar.restart(run.random.choice((0.1, 1, 5)) * run.random.random())


def leave(run: SimulatedCluster) -> None:
    victim = run.victim()
    if victim is not None and not victim.is_paused:
        victim.post(victim.leave)


def join(run: SimulatedCluster) -> None:
    used = {process.node_id for process in run.alive()}
    run.start(min(set(range(1, 10)) - used))


FAULTS: tuple[Callable[[SimulatedCluster], None], ...] = (
    kill, kill, pause, pause, cut, restart_broker, leave, join,
)  # fmt: skip


def random_run(seed: int, rules: Rules | None = None) -> SimulatedCluster:
    """Run a seed to its end. The message of a failure contains the seed and the notes."""
    if rules is None:
        rules = Rules(shard_count=1 + seed * 7 % 16)
    run = SimulatedCluster(seed, rules)
    try:
        run.random_run()
    except (Violated, RuntimeError, KeyError) as failure:
        notes = "\n".join(run.checks.notes)
        raise Violated(f"seed {seed}: {failure!r}\n{notes}") from failure
    return run


def main(first: int, last: int) -> int:
    failed = []
    events = 0
    for seed in range(first, last + 1):
        try:
            events += random_run(seed).time.events
        except Violated as failure:
            failed.append(seed)
            print(failure if first == last else str(failure).splitlines()[0], flush=True)
        if seed % 200 == 0:
            print(f"{seed}: {len(failed)} failed", flush=True)
    print(f"{last - first + 1} seeds, {events} events, failed: {failed}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[-1])))
