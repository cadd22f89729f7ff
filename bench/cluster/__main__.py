"""`make bench-cluster`: how long partitions have no leader when one of three gateways stops.

"led again" is the time until all partitions that this gateway led, about four of 12, have answered
a request at another one (`takeover.py`). "producer" is the longest time in which one of the 12 had
no acknowledgement. An idempotent producer of librdkafka sends a record to each of them every 20 ms.
Pulsar, gateways and producer share the machine.

"kill-both" kills the controller, and a member up to 2 s after the controller's partitions are
served again.

With --partitions N, a fourth gateway joins a cluster with N more partitions in topics of 100, and
the controller is killed. --rounds 0 leaves out the rest.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median

from confluent_kafka import KafkaError, KafkaException
from kafka.protocol.metadata.metadata import MetadataRequest

from bench.__main__ import replace_between_marks
from bench.cluster.takeover import Takeover
from bench.progress import StepProgress
from bench.servers import is_balanced, shards_led
from tests.legacy_clients.brokers import in_pulsar
from tests.peers.cluster.gateways import Gateways, end_offset, leaders
from tests.peers.cluster.load import ClusterLoad, create_topic
from tests.testkit.gateway import encode_request
from tests.testkit.pulsar import Pulsar
from tests.testkit.tenant import Tenant
from tests.testkit.verifiable import TOPIC

BEGIN, END = "<!-- cluster: begin -->", "<!-- cluster: end -->"
JOIN_BEGIN, JOIN_END = "<!-- partitions: begin -->", "<!-- partitions: end -->"
NODES = 3
SUSPENDED_SECONDS = 5.0
TOPIC_PARTITIONS = 100
TOPICS_PER_LINE = 10
METADATA_ROUNDS = 20
CREATE_ATTEMPTS = 10
#: Errors of CreateTopics that the outcome of another attempt decides.
RETRIED = (KafkaError.KAFKA_STORAGE_ERROR, KafkaError.REQUEST_TIMED_OUT, KafkaError.NOT_CONTROLLER)
EVENTS = (
    "kill-member",
    "kill-controller",
    "kill-both",
    "stop-member",
    "stop-controller",
    "restart",
)
#: Seconds from the takeover of the controller's partitions until a member is killed, in turns.
PAUSES_BETWEEN_KILLS = (0.0, 0.5, 1.0, 1.5, 2.0)

Times = Mapping[str, Sequence[float]]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="make bench-cluster ARGS=", description=__doc__)
    parser.add_argument("--rounds", type=int, default=10, help="of each event (default 10)")
    parser.add_argument(
        "--events", nargs="+", choices=EVENTS, default=EVENTS, help="default: all of them"
    )
    parser.add_argument("--partitions", type=int, default=0, help="for the fourth gateway")
    parser.add_argument(
        "--keep", type=Path, metavar="FILE", help="add to the times of earlier runs in this file"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="put the tables into this file")
    parser.add_argument("--pulsar", metavar="URL,URL", help="service and admin URL of a Pulsar")
    options = parser.parse_args(arguments)
    if options.pulsar:
        service_url, _, admin_url = options.pulsar.partition(",")
        tables = _measure(Tenant.make(service_url, admin_url), options)
    else:
        with Pulsar.start() as broker:
            tables = _measure(broker.tenant(), options)
    for marks, times in zip(((BEGIN, END), (JOIN_BEGIN, JOIN_END)), tables, strict=True):
        if times:
            block = f"{_heading(arguments)}\n\n{_table(times)}"
            print(block, flush=True)
            if options.out:
                text = options.out.read_text()
                options.out.write_text(replace_between_marks(text, block, *marks))
    return 0


def _measure(tenant: Tenant, options: argparse.Namespace) -> tuple[Times, Times]:
    """The times of gateways that stop, and of one that joins."""
    stopping: dict[str, list[float]] = defaultdict(list)
    joining: dict[str, list[float]] = defaultdict(list)
    if options.keep and options.keep.exists():
        stopping.update(json.loads(options.keep.read_text()))
    folder = Path(tempfile.mkdtemp(prefix="kopgate-cluster-"))
    with Gateways(folder, in_pulsar(tenant, None), NODES + 1, {}) as gateways:
        first = _seconds(gateways.nodes[1].launch)
        for number in range(2, NODES + 1):
            gateways.nodes[number].launch()
        if options.rounds:
            stopping["start of the first gateway"].append(first)
            _stop_in_turns(folder, gateways, options, stopping)
        if options.partitions:
            _join(gateways, options.partitions, joining)
    return stopping, joining


def _stop_in_turns(
    folder: Path, gateways: Gateways, options: argparse.Namespace, times: dict[str, list[float]]
) -> None:
    with ClusterLoad(folder, gateways, ()) as load:
        load.start()
        gateways.wait_until_settled(TOPIC)
        for number in range(options.rounds):
            _run_round(gateways, load, number, options.events, times)
            if options.keep:
                options.keep.write_text(json.dumps(times))
            print(f"after round {number + 1}:\n{_table(times)}", file=sys.stderr, flush=True)
        found = load.finish()
    if found:
        raise SystemExit("\n".join(found))


def _run_round(
    gateways: Gateways,
    load: ClusterLoad,
    number: int,
    events: Sequence[str],
    times: dict[str, list[float]],
) -> None:
    for name in ("member", "controller"):
        if f"kill-{name}" in events:
            _kill(gateways, load, name, number, times)
    if "kill-both" in events:
        _kill_both(gateways, load, number, times)
    for name in ("member", "controller"):
        if f"stop-{name}" in events:
            _suspend(gateways, load, name, number, times)
    if "restart" in events:
        _restart_all(gateways, load, times)


def _kill(
    gateways: Gateways, load: ClusterLoad, name: str, number: int, times: dict[str, list[float]]
) -> None:
    victim = find_victim(gateways, name, number)
    if victim is None:
        return
    load.producer.longest_gap()
    times[f"kill -9, {name}: led again"].append(_kill_one(gateways, victim))
    load.wait_for_progress()
    times[f"kill -9, {name}: producer"].append(load.producer.longest_gap())
    gateways.nodes[victim].launch()
    gateways.wait_until_settled(TOPIC)
    load.wait_for_progress()
    times["a gateway joins: producer"].append(load.producer.longest_gap())


def _kill_both(
    gateways: Gateways, load: ClusterLoad, number: int, times: dict[str, list[float]]
) -> None:
    controller = find_victim(gateways, "controller", number)
    if controller is None:
        return
    _kill_one(gateways, controller)
    gateways.until(gateways.controller, lambda successor: successor != controller)
    member = find_victim(gateways, "member", number)
    time.sleep(PAUSES_BETWEEN_KILLS[number % len(PAUSES_BETWEEN_KILLS)])
    if member is not None:
        times["kill -9, member soon after the controller: led again"].append(
            _kill_one(gateways, member)
        )
        load.wait_for_progress()
        gateways.nodes[member].launch()
    gateways.nodes[controller].launch()
    gateways.wait_until_settled(TOPIC)


def _kill_one(gateways: Gateways, victim: int) -> float:
    """Return the seconds until all its partitions are served again."""
    takeover = Takeover(gateways, TOPIC, victim)
    began = time.monotonic()
    gateways.nodes[victim].kill()
    return max(takeover.wait()) - began


def _suspend(
    gateways: Gateways, load: ClusterLoad, name: str, number: int, times: dict[str, list[float]]
) -> None:
    victim = find_victim(gateways, name, number)
    if victim is None:
        return
    takeover = Takeover(gateways, TOPIC, victim)
    load.producer.longest_gap()
    began = time.monotonic()
    gateways.nodes[victim].pause()
    led = max(takeover.wait()) - began
    times[f"SIGSTOP, {name}: led again"].append(led)
    time.sleep(max(SUSPENDED_SECONDS - led, 0))
    gateways.nodes[victim].resume()
    load.wait_for_progress()
    seconds = f"{SUSPENDED_SECONDS:.0f} s"
    times[f"SIGSTOP, {name}, for {seconds}: producer"].append(load.producer.longest_gap())
    gateways.wait_until_settled(TOPIC)


def _restart_all(gateways: Gateways, load: ClusterLoad, times: dict[str, list[float]]) -> None:
    began = time.monotonic()
    for victim in range(1, NODES + 1):
        load.wait_for_progress()
        load.producer.longest_gap()
        gateways.nodes[victim].end()
        load.wait_for_progress()
        times["SIGTERM: producer"].append(load.producer.longest_gap())
        gateways.nodes[victim].launch()
        gateways.wait_until_settled(TOPIC)
    times["rolling restart of all three"].append(time.monotonic() - began)


def find_victim(gateways: Gateways, role: str, number: int) -> int | None:
    """Return the gateway to stop in this round: one of the role that leads partitions.

    Rarely none does, because a gateway leads a third of the shards, and the topic is in some of
    them. Then the event is left out.
    """
    controller = gateways.controller()
    led = set(gateways.wait_until_led(TOPIC).values())
    leading = [one for one in sorted(led) if (one == controller) == (role == "controller")]
    if not leading:
        print(f"round {number + 1}: no {role} leads a partition", file=sys.stderr, flush=True)
        return None
    return leading[number % len(leading)]


def _join(gateways: Gateways, partitions: int, times: dict[str, list[float]]) -> None:
    """A fourth gateway, in a cluster with many partitions: until each gateway leads its share of
    the shards, and the fourth serves them.
    """
    topics = [f"many-{number}" for number in range(partitions // TOPIC_PARTITIONS)]
    progress = StepProgress([1.0] * len(topics), time.monotonic)
    for number, topic in enumerate(topics):
        line = progress.next(f"creating {topic} with {TOPIC_PARTITIONS} partitions")
        if number % TOPICS_PER_LINE == 0:
            print(line, file=sys.stderr, flush=True)
        times[f"a topic with {TOPIC_PARTITIONS} partitions created"].append(
            _seconds(partial(_create, gateways.nodes[1].bootstrap, topic))
        )
    fourth = gateways.nodes[NODES + 1]
    began = time.monotonic()
    fourth.launch()
    times["start of a fourth gateway"].append(time.monotonic() - began)
    gateways.until(lambda: shards_led(gateways), lambda led: is_balanced(led, NODES + 1))
    times["... until the shards are balanced"].append(time.monotonic() - began)
    gateways.until(lambda: _serves_its_shards(gateways, topics[0]), bool)
    times["... until it serves each of its shards"].append(time.monotonic() - began)
    asked = MetadataRequest(version=7, topics=None, allow_auto_topic_creation=False)
    frame = encode_request(asked, 7)
    for node in gateways.nodes.values():
        with node.peer() as peer:
            for attempt in range(METADATA_ROUNDS):
                began = time.monotonic()
                peer.send(frame)
                peer.receive()
                # The reply is cached until the metadata changes.
                which = "again" if attempt else "first request"
                times[f"Metadata for all topics, {which}"].append(time.monotonic() - began)
    _fail_over(gateways, times)


def _create(bootstrap: str, topic: str) -> None:
    """Create a topic, again after an error that a client may retry, as on a busy machine."""
    for _ in range(CREATE_ATTEMPTS):
        try:
            return create_topic(bootstrap, topic, TOPIC_PARTITIONS)
        except KafkaException as failure:
            code = failure.args[0].code()
            if code == KafkaError.TOPIC_ALREADY_EXISTS:
                return None
            if code not in RETRIED:
                raise
            print(f"creating {topic} again: {failure.args[0]}", file=sys.stderr, flush=True)
    raise SystemExit(f"{topic} was not created in {CREATE_ATTEMPTS} attempts")


def _serves_its_shards(gateways: Gateways, topic: str) -> bool:
    """Whether the fourth gateway serves its partitions of a topic that has some of each shard."""
    with gateways.nodes[NODES + 1].peer() as peer:
        led = [index for index, leader in leaders(peer, topic).items() if leader == NODES + 1]
        return bool(led) and not any(end_offset(peer, topic, index)[0] for index in led)


def _fail_over(gateways: Gateways, times: dict[str, list[float]]) -> None:
    """Kill the controller, and create a topic at its successor."""
    victim = gateways.controller()
    began = time.monotonic()
    gateways.nodes[victim].kill()
    gateways.until(gateways.controller, lambda controller: controller != victim)
    times["kill -9 of the controller: successor"].append(time.monotonic() - began)
    others = [one.bootstrap for one in gateways.nodes.values() if one.is_running()]
    create_topic(",".join(others), "created-by-successor", 1)
    times["kill -9 of the controller: a topic created"].append(time.monotonic() - began)


def _seconds(work: Callable[[], object]) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began


def _heading(arguments: Sequence[str]) -> str:
    options = f' ARGS="{" ".join(arguments)}"' if arguments else ""
    return (
        f"Measured with `make bench-cluster{options}`, Python {platform.python_version()}, "
        f"{os.cpu_count()} cores of {platform.machine()}, 1-minute load "
        f"{os.getloadavg()[0]:.0f} at the end, Pulsar and all gateways on the same cores."
    )


def _table(times: Times) -> str:
    rows = [
        f"| {name} | {len(found)} | {median(found):.2f} | {max(found):.2f} |"
        for name, found in times.items()
    ]
    head = ["| event | times | median s | worst s |", "| --- | --- | --- | --- |"]
    return "\n".join([*head, *rows])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
