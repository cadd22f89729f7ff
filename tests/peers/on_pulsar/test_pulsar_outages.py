"""Pulsar unavailable: at the start, for a minute, and permanently.

The gateway logs it, stays within its memory limits and loses no acknowledged record.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka.errors import for_code
from kafka.protocol.metadata.api_versions import ApiVersionsRequest, ApiVersionsResponse
from kafka.protocol.metadata.metadata import MetadataRequest, MetadataResponse
from kafka.protocol.producer.produce import ProduceResponse

from tests.legacy_clients.brokers import in_pulsar
from tests.peers.chaos.observers import read_whole_log
from tests.peers.chaos.servers import GatewayDied, RestartableGateway, RetryingGateway
from tests.peers.on_pulsar.writers import IdempotentProducer
from tests.testkit.gateway import MIB, Stopwatch, encode_request, one_record, produce_request
from tests.testkit.gateway import GatewayProcess as Process
from tests.testkit.kafka import free_ports
from tests.testkit.pulsar import Pulsar
from tests.testkit.verifiable import TOPIC

pytestmark = [pytest.mark.peer, pytest.mark.timeout(1800)]

#: In CI, and in `make slow`.
SHORT_OUTAGE_SECONDS, OUTAGE_SECONDS = 12.0, 60.0
#: The outcome of a message is unknown after this; well within the outage.
SEND_TIMEOUT_MS = 8_000
#: Until all clients are served after Pulsar has recovered.
RECOVER_SECONDS = 300.0
#: Connections that send as fast as they can, and the size of each record.
PUSHERS = 16
RECORD_BYTES = 256 << 10
#: After an error, as clients back off before a retry. Until then the connection still has
#: UNANSWERED - 1 requests in the gateway.
BACK_OFF_SECONDS = 0.5
#: Unanswered requests per connection.
UNANSWERED = 20
#: Limit of all requests in the gateway: a fifth of what the producers would fill.
IN_FLIGHT = 16 * MIB
#: The frames, the copies in Pulsar's client until they are acknowledged, and the reads of a
#: reopened partition.
MOST_GROWTH = 6 * IN_FLIGHT
ANSWERS = 60
#: Limit of a response, by the stopwatch: the connection check of an impatient client.
ANSWER_SECONDS = 2.0
#: Limit of a shutdown, by the stopwatch: the gateway's drain timeout, and pulsar-client's close.
END_SECONDS = 30.0


@pytest.fixture
def gateway(tmp_path: Path, restartable_pulsar: Pulsar) -> Iterator[RestartableGateway]:
    """A running gateway that has the topic."""
    store = in_pulsar(restartable_pulsar.tenant())
    limits = {
        "num_partitions": 1,
        "max_in_flight_bytes": IN_FLIGHT,
        "socket_request_max_bytes": IN_FLIGHT,
        "pulsar_send_timeout_ms": SEND_TIMEOUT_MS,
    }
    made = RetryingGateway(tmp_path, store, limits)
    # Its memory is measured.
    made.by_fork = False
    made.launch()
    with made.peer() as peer:
        peer.create_topic(TOPIC)
    yield made
    made.kill()


class FloodingProducers:
    """Connections that send further requests before the previous ones are answered.

    `stored`: records by offset; `codes`: error codes and their counts.
    """

    def __init__(self, gateway: RestartableGateway) -> None:
        self._gateway = gateway
        self._change = threading.Condition()
        self._is_over = False
        self._threads = [
            threading.Thread(target=self._run, args=(number,), daemon=True)
            for number in range(PUSHERS)
        ]
        self.stored: dict[int, str] = {}
        self.codes: dict[int, int] = {}
        self.failures: list[str] = []

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def _run(self, pusher: int) -> None:
        sent: list[str] = []
        answered = 0
        try:
            with self._gateway.peer(seconds=OUTAGE_SECONDS * 3) as peer:
                while not self._is_over or answered < len(sent):
                    while not self._is_over and len(sent) - answered < UNANSWERED:
                        sent.append(f"{pusher}-{len(sent)}")
                        value = sent[-1].encode() + b" " + b"." * RECORD_BYTES
                        peer.send(
                            encode_request(produce_request(TOPIC, one_record(value)), 7, len(sent))
                        )
                    self._told(peer.receive(), sent[answered])
                    answered += 1
        except (OSError, AssertionError) as failure:
            self.failures.append(f"{pusher}: {failure!r}")

    def _told(self, frame: bytes | None, value: str) -> None:
        assert frame is not None, "the connection was closed"
        answer = ProduceResponse.decode(frame[4:], version=7).responses[0].partition_responses[0]
        with self._change:
            if answer.error_code:
                self.codes[answer.error_code] = self.codes.get(answer.error_code, 0) + 1
            else:
                self.stored[answer.base_offset] = value
            self._change.notify_all()
        if answer.error_code:
            time.sleep(BACK_OFF_SECONDS)

    def wait_for_answers(self, count: int, seconds: float) -> None:
        with self._change:
            goal = len(self.stored) + count
            assert self._change.wait_for(lambda: len(self.stored) >= goal, seconds), (
                f"{self.codes} {self.failures[:3]}\n{self._gateway.log()}"
            )

    def stop(self) -> None:
        self._is_over = True
        for thread in self._threads:
            thread.join(RECOVER_SECONDS)
        assert self.failures == []


@pytest.mark.parametrize("absent", ["broker", "admin API"])
def test_gateway_exits_naming_the_unreachable_address_of_pulsar(
    tmp_path: Path, restartable_pulsar: Pulsar, absent: str
) -> None:
    (unused,) = free_ports(1)
    tenant = restartable_pulsar.tenant()
    wrong = f"127.0.0.1:{unused}"
    there = tenant.service_url if absent == "broker" else tenant.admin_url
    store = [word.replace(there.partition("://")[2], wrong) for word in in_pulsar(tenant)]
    gateway = RestartableGateway(
        tmp_path, store, {"pulsar_operation_timeout_ms": 2_000, "pulsar_admin_timeout_ms": 2_000}
    )
    with pytest.raises(GatewayDied, match="exit code 1\n") as died:
        gateway.launch()
    assert not gateway.has_logged("store not ready"), (
        "the start is not retried without a connection to Pulsar"
    )
    assert wrong in str(died.value), died.value
    assert "Traceback" not in str(died.value)


@pytest.mark.parametrize(
    ("how", "seconds"),
    [
        ("killed", SHORT_OUTAGE_SECONDS),
        pytest.param("killed", OUTAGE_SECONDS, marks=pytest.mark.slow),
        pytest.param("paused", OUTAGE_SECONDS, marks=pytest.mark.slow),
    ],
)
def test_outage_loses_no_acknowledged_record_and_stays_within_memory(
    gateway: RestartableGateway, restartable_pulsar: Pulsar, how: str, seconds: float
) -> None:
    pushers, application = FloodingProducers(gateway), IdempotentProducer(gateway)
    pushers.start()
    pushers.wait_for_answers(ANSWERS, RECOVER_SECONDS)
    before = memory(gateway)
    restartable_pulsar.kill() if how == "killed" else restartable_pulsar.pause()
    most = peak_memory(gateway, seconds)
    assert not [code for code in pushers.codes if not for_code(code).retriable], pushers.codes
    assert sum(pushers.codes.values()) >= PUSHERS, "producers get retriable errors"

    restartable_pulsar.launch() if how == "killed" else restartable_pulsar.resume()
    served = time.monotonic()
    pushers.wait_for_answers(1, RECOVER_SECONDS)
    print(
        f"{how}: {(most - before) / MIB:.0f} MiB more, acknowledged "
        f"{time.monotonic() - served:.1f} s after Pulsar served again, {pushers.codes}"
    )
    pushers.wait_for_answers(ANSWERS, RECOVER_SECONDS)
    pushers.stop()
    application.stop()

    assert most - before < MOST_GROWTH
    log = {
        offset: value.split(" ")[0]
        for (_, offset), value in read_whole_log(gateway.bootstrap, 1).values.items()
    }
    assert [*log] == list(range(len(log)))
    assert {offset: log.get(offset) for offset in pushers.stored} == pushers.stored
    application.assert_all_stored_once(log)
    gateway.assert_running()
    assert gateway.unexpected_errors() == []


def test_gateway_without_pulsar_logs_outage_answers_metadata_and_can_be_stopped(
    gateway: RestartableGateway, restartable_pulsar: Pulsar, tmp_path: Path
) -> None:
    pushers = FloodingProducers(gateway)
    pushers.start()
    pushers.wait_for_answers(ANSWERS, RECOVER_SECONDS)
    restartable_pulsar.kill()
    peak_memory(gateway, 1.5 * SEND_TIMEOUT_MS / 1000)
    for _ in range(10):
        watch = Stopwatch(gateway)
        connect_and_fetch_metadata(gateway)
        assert watch.seconds() < ANSWER_SECONDS

    said = [line for line in gateway.log().splitlines() if " warning " in line]
    assert any(TOPIC in line for line in said), "the log names the unavailable partition"
    assert gateway.unexpected_errors() == []
    code, seconds = Process(gateway.process, tmp_path / "gateway.log").stop_measured(
        Stopwatch(gateway)
    )
    assert code == 0, gateway.log()
    assert seconds < END_SECONDS


def connect_and_fetch_metadata(gateway: RestartableGateway) -> None:
    """Request versions and metadata on a new connection."""
    with gateway.peer() as peer:
        assert peer.request(ApiVersionsRequest(), ApiVersionsResponse, 0).error_code == 0
        wanted = [MetadataRequest.MetadataRequestTopic(name=TOPIC)]
        asked = MetadataRequest(version=4, topics=wanted, allow_auto_topic_creation=False)
        reply = peer.request(asked, MetadataResponse, 4)
    assert [topic.error_code for topic in reply.topics] == [0]
    assert [broker.port for broker in reply.brokers] == [gateway.port]


def peak_memory(gateway: RestartableGateway, seconds: float) -> int:
    """Return the highest memory of the gateway, which must stay alive, in this time."""
    end = time.monotonic() + seconds
    most = 0
    while time.monotonic() < end:
        gateway.assert_running()
        most = max(most, memory(gateway))
        time.sleep(0.2)
    return most


def memory(gateway: RestartableGateway) -> int:
    """The gateway's private memory in bytes."""
    (line,) = [
        line
        for line in Path(f"/proc/{gateway.process.pid}/status").read_text().splitlines()
        if line.startswith("RssAnon:")
    ]
    return int(line.split()[1]) << 10
