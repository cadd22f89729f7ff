"""A gateway whose disk fails below the embedded store, at each step at which a write can fail.

A refused record gets an error and is never visible. An acknowledged record stays, also after a kill
or a power cut. When the disk works again, writes continue without a restart.
"""

from __future__ import annotations

import errno
import os
import random
import select
import shutil
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import confluent_kafka
import pytest
from kafka.protocol.admin.topics import CreateTopicsRequest, CreateTopicsResponse
from kafka.protocol.producer.produce import ProduceResponse
from kafka.protocol.producer.transaction import InitProducerIdRequest, InitProducerIdResponse
from kafka.record import MemoryRecords

from tests.legacy_clients.brokers import are_required
from tests.testkit.cache import CannotInstall, cached, command, fingerprint
from tests.testkit.gateway import (
    GatewayProcess,
    encode_request,
    gateway,
    one_record,
    produce_request,
)

pytestmark = [pytest.mark.peer]

SHIM = Path(__file__).with_name("failing_disk.c")
TOPIC = "orders"
OUT_OF_ORDER_SEQUENCE_NUMBER = 45
KAFKA_STORAGE_ERROR = 56

#: The steps of an append; each fails alone.
FAILURES = ["data", "data full", "sync"]

#: The steps of a commit of LMDB that an append does not have.
COMMIT_FAILURES = ["meta", "meta-undone"]


@dataclass
class Disk:
    """A disk that fails as the file `orders` says while that exists, and its contents after a power
    cut. See failing_disk.c.
    """

    orders: Path
    shim: Path
    failure: str

    @property
    def environment(self):
        return {
            "LD_PRELOAD": str(self.shim),
            "FAILING_DISK": str(self.orders),
            "POWER_CUT": str(self.medium),
        }

    @property
    def medium(self):
        return self.orders.with_name("medium")

    def lose_power(self, folder):
        """Replace the store of a killed gateway by what had reached the medium."""
        store = folder / "store"
        shutil.copy(self.medium / "data.mdb", store)
        shutil.rmtree(store / "journal")
        (store / "journal").mkdir()
        for path in self.medium.glob("[0-9]*"):
            shutil.copy(path, store / "journal")

    @contextmanager
    def failing(self):
        unfinished = self.orders.with_suffix(".unfinished")
        unfinished.write_text(self.failure)
        unfinished.rename(self.orders)
        try:
            yield
        finally:
            self.orders.unlink()


@pytest.fixture(scope="session")
def shim():
    """The library loaded with LD_PRELOAD; built once."""
    library = SHIM.with_suffix(".so").name

    def build(folder):
        command(
            [
                "cc",
                "-shared",
                "-fPIC",
                "-O1",
                "-Wall",
                "-Wextra",
                "-Werror",
                "-o",
                folder / library,
                SHIM,
                "-ldl",
            ]
        )

    try:
        return cached(f"failing-disk/{fingerprint([SHIM.read_bytes()])}", build) / library
    except CannotInstall as missing:
        (pytest.fail if are_required() else pytest.skip)(str(missing))


@pytest.fixture
def disk(tmp_path, shim, request):
    return Disk(tmp_path / "orders", shim, request.param)


def start_on(folder, disk):
    """A gateway on that disk that keeps no records in memory, so that every read is served from the
    store.
    """
    disk.medium.mkdir(exist_ok=True)
    return gateway(folder, environment=disk.environment, by_fork=True, lmdb_resident_bytes=0)


@pytest.fixture(scope="module", params=FAILURES)
def shared_gateway(request, shim, tmp_path_factory):
    folder = tmp_path_factory.mktemp("failing")
    disk = Disk(folder / "orders", shim, request.param)
    with start_on(folder, disk) as server:
        yield server, disk


@dataclass
class GatewayOnDisk:
    server: GatewayProcess
    disk: Disk
    topic: str


@pytest.fixture
def env(shared_gateway, request):
    """A topic with one record, on a gateway whose disk can fail."""
    server, disk = shared_gateway
    topic = request.function.__name__
    with server.peer() as peer:
        peer.create_topic(topic)
        assert produce_value(peer, topic, "first") == 0
    yield GatewayOnDisk(server, disk, topic)
    assert server.process.poll() is None


def produce_value(peer, topic, value, producer=(-1, -1, -1)):
    """Produce a record and return its offset, or None if it was refused."""
    reply = peer.produce(topic, one_record(value.encode(), producer))
    assert reply.error_code in (0, KAFKA_STORAGE_ERROR)
    return None if reply.error_code else reply.base_offset


def new_producer(peer):
    """Producer id and epoch of a new producer."""
    asked = InitProducerIdRequest(version=0, transactional_id=None, transaction_timeout_ms=1000)
    identity = peer.request(asked, InitProducerIdResponse, 0)
    assert identity.error_code == 0
    return identity.producer_id, identity.producer_epoch


def visible(server, topic):
    """All values that a consumer sees. Offsets are checked to be continuous from 0 to the high
    watermark.
    """
    found = []
    with server.peer() as peer:
        while True:
            reply = peer.fetch(topic, len(found))
            assert reply.error_code == 0
            if len(found) == reply.high_watermark:
                return found
            for one in batches(reply.records):
                for record in one:
                    assert record.offset == len(found)
                    found.append(record.value.decode())


def batches(raw):
    stored = MemoryRecords(raw)
    while one := stored.next_batch():
        assert one.validate_crc()
        yield one


def parse_produce_reply(frame):
    return ProduceResponse.decode(frame[4:], version=7).responses[0].partition_responses[0]


def test_refused_writes_stay_invisible_and_leave_no_offset_gap(
    env,
):
    server, topic = env.server, env.topic
    with server.peer() as peer:
        with env.disk.failing():
            for _ in range(10):
                assert produce_value(peer, topic, "lost") is None
                assert visible(server, topic) == ["first"]
        assert [produce_value(peer, topic, value) for value in ("second", "third")] == [1, 2]
    assert visible(server, topic) == ["first", "second", "third"]


def test_reads_continue_while_disk_fails(env):
    with env.server.peer() as peer, Reader(env.server, env.topic) as reader:
        with env.disk.failing():
            for _ in range(100):
                assert produce_value(peer, env.topic, "lost") is None
            assert reader.wait_for_replies(20)
        assert produce_value(peer, env.topic, "second") == 1
    assert not reader.failures


class Reader:
    """A consumer that repeatedly reads the first record. `failures` are the replies without
    records.
    """

    def __init__(self, server, topic):
        self._server = server
        self._topic = topic
        self._is_over = threading.Event()
        self._change = threading.Condition()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.answers = 0
        self.failures = []

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._is_over.set()
        self._thread.join(240)

    def wait_for_replies(self, more):
        """Whether `more` replies arrive from now on."""
        with self._change:
            wanted = self.answers + more
            return self._change.wait_for(lambda: self.answers >= wanted, 240)

    def _run(self):
        with self._server.peer() as peer:
            while not self._is_over.is_set():
                reply = peer.fetch(self._topic, 0)
                with self._change:
                    self.answers += 1
                    if not reply.records:
                        self.failures.append(reply)
                    self._change.notify_all()


@pytest.mark.parametrize("disk", FAILURES, indirect=True)
def test_disk_failure_logs_one_line_at_start_and_one_at_end(disk, tmp_path):
    with start_on(tmp_path, disk) as server, server.peer() as peer:
        peer.create_topic(TOPIC)
        with disk.failing():
            for _ in range(20):
                assert produce_value(peer, TOPIC, "lost") is None
        assert produce_value(peer, TOPIC, "first") == 0
        began, ended = server.wait_for_lines(2, " storage.lmdb")
        assert warnings_and_errors(server) == [began, ended]
    reason = os.strerror(errno.ENOSPC if "full" in disk.failure else errno.EIO)
    assert (
        f' error storage.lmdb.writer message text="appending to {tmp_path / "store"} fails: '
        f"segment 1 of the journal: {reason}; " in began
    )
    assert (
        f' warning storage.lmdb.writer message text="appending to {tmp_path / "store"} '
        'succeeds again"' in ended
    )


@pytest.mark.parametrize("disk", ["sync"], indirect=True)
def test_appends_refused_without_a_write_do_not_end_disk_failure(disk, tmp_path):
    with start_on(tmp_path, disk) as server, server.peer() as peer:
        peer.create_topic(TOPIC)
        frames = [encode_request(produce_request(TOPIC, one_record(b"lost")), 7)] * 50
        with disk.failing():
            for _ in range(20):
                peer.send(*frames)
                assert [parse_produce_reply(peer.receive()).error_code for _ in frames] == [
                    KAFKA_STORAGE_ERROR
                ] * 50
        assert produce_value(peer, TOPIC, "first") == 0
        began, ended = server.wait_for_lines(2, " storage.lmdb")
        assert warnings_and_errors(server) == [began, ended]


def warnings_and_errors(server):
    return [line for line in server.lines() if " warning " in line or " error " in line]


def test_retries_of_refused_idempotent_batches_are_stored_once(
    env,
):
    server, topic = env.server, env.topic
    with server.peer() as peer:
        who = new_producer(peer)
        assert produce_value(peer, topic, "number 0", (*who, 0)) == 1
        frames = [
            encode_request(produce_request(topic, one_record(b"number %d" % n, (*who, n))), 7)
            for n in range(1, 5)
        ]
        with env.disk.failing():
            for _ in range(3):
                peer.send(*frames)
                codes = [parse_produce_reply(peer.receive()).error_code for _ in frames]
                # A batch written after the first one has failed is refused because of the sequence
                # gap.
                late = codes.count(OUT_OF_ORDER_SEQUENCE_NUMBER)
                assert late < len(codes)
                assert (
                    codes
                    == [KAFKA_STORAGE_ERROR] * (len(codes) - late)
                    + [OUT_OF_ORDER_SEQUENCE_NUMBER] * late
                )
        for _ in range(2):
            peer.send(*frames)
            assert [parse_produce_reply(peer.receive()).base_offset for _ in frames] == [2, 3, 4, 5]
    assert visible(server, topic) == ["first", *(f"number {n}" for n in range(5))]


@pytest.mark.parametrize("disk", FAILURES, indirect=True)
def test_kill_or_power_cut_in_disk_failure_leaves_exactly_acknowledged_records(disk, tmp_path):
    who, acknowledged, last = produce_until_killed(disk, tmp_path)
    kept = list(acknowledged)
    with gateway(tmp_path) as again, again.peer() as peer:
        assert visible(again, TOPIC) == acknowledged
        if not last:
            assert produce_next(acknowledged, peer, who)
        assert (
            produce_value(peer, TOPIC, acknowledged[-1], (*who, len(acknowledged) - 1))
            == len(acknowledged) - 1
        )
        assert visible(again, TOPIC) == acknowledged
    disk.lose_power(tmp_path)
    with gateway(tmp_path) as again:
        assert visible(again, TOPIC) == kept


def produce_until_killed(disk, folder):
    """Run an idempotent producer through several disk failures, then kill the gateway.

    Returns the producer's identity, the acknowledged values, and whether the last value was
    acknowledged.
    """
    acknowledged = []
    with start_on(folder, disk) as server, server.peer() as peer:
        peer.create_topic(TOPIC)
        who = new_producer(peer)
        for _ in range(5):
            assert produce_next(acknowledged, peer, who)
            with disk.failing():
                for _ in range(2):
                    produce_next(acknowledged, peer, who)
                    assert visible(server, TOPIC) == acknowledged
        with disk.failing():
            last = produce_next(acknowledged, peer, who)
            server.process.kill()
            server.process.wait()
    return who, acknowledged, last


def produce_next(acknowledged, peer, who):
    """Produce the next number; if it is acknowledged, append it to the list and return True."""
    number = len(acknowledged)
    offset = produce_value(peer, TOPIC, str(number), (*who, number))
    if offset is None:
        return False
    assert offset == number
    acknowledged.append(str(number))
    return True


@pytest.mark.parametrize("disk", [*COMMIT_FAILURES, "meta-kept"], indirect=True)
def test_records_are_stored_while_lmdb_cannot_commit(disk, tmp_path):
    with start_on(tmp_path, disk) as server, server.peer() as peer:
        peer.create_topic(TOPIC)
        with disk.failing():
            values = [str(number) for number in range(20)]
            assert [produce_value(peer, TOPIC, value) for value in values] == [*range(20)]
            assert visible(server, TOPIC) == values
            server.process.kill()
            server.process.wait()
    disk.lose_power(tmp_path)
    with gateway(tmp_path) as again, again.peer() as peer:
        assert visible(again, TOPIC) == values
        assert produce_value(peer, TOPIC, "20") == 20


@pytest.mark.parametrize("disk", [""], indirect=True)
def test_damaged_record_makes_no_other_record_of_its_partition_unavailable(disk, tmp_path):
    """An idempotent producer continues, as do consumers before and after the damage."""
    with start_on(tmp_path, disk) as server, server.peer() as peer:
        peer.create_topic(TOPIC)
        who, other = new_producer(peer), new_producer(peer)
        for number in range(6):
            # The last batch of the other producer will be damaged.
            producer = (*other, 0) if number == 2 else (*who, number - (number > 2))
            assert produce_value(peer, TOPIC, f"number {number}", producer) == number
        server.process.kill()
        server.process.wait()
    (segment,) = (tmp_path / "store" / "journal").glob("0*")
    segment.write_bytes(segment.read_bytes().replace(b"number 2", b"Number 2"))
    with start_on(tmp_path, disk) as server, server.peer() as peer:
        assert produce_value(peer, TOPIC, "number 5", (*who, 4)) == 5
        assert produce_value(peer, TOPIC, "number 6", (*who, 5)) == 6
        assert produce_value(peer, TOPIC, "after the damage", (*other, 1)) == 7
        assert produce_value(peer, TOPIC, "without a producer") == 8
        found = {offset: peer.fetch(TOPIC, offset) for offset in (0, 2, 3)}
        # NOT_LEADER_OR_FOLLOWER: this version of Fetch has no KAFKA_STORAGE_ERROR.
        assert [found[offset].error_code for offset in found] == [0, 6, 0]
        assert values(found[0].records) == ["number 0", "number 1"]
        assert values(found[3].records) == [
            *(f"number {number}" for number in range(3, 7)),
            "after the damage",
            "without a producer",
        ]
        server.process.kill()
        server.process.wait()
    with start_on(tmp_path, disk) as server, server.peer() as peer:
        assert produce_value(peer, TOPIC, "after the damage", (*other, 1)) == 7
        assert produce_value(peer, TOPIC, "next", (*other, 2)) == 9


def values(raw):
    return [record.value.decode() for one in batches(raw) for record in one]


def created(peer, topic):
    """The error code of the creation of a topic."""
    return peer.request(create_request(topic), CreateTopicsResponse, 2).topics[0].error_code


def create_request(topic):
    asked = CreateTopicsRequest.CreatableTopic
    return CreateTopicsRequest(
        version=2,
        topics=[
            asked(name=topic, num_partitions=1, replication_factor=1, assignments=[], configs=[])
        ],
        timeout_ms=60_000,
        validate_only=False,
    )


@pytest.mark.parametrize("disk", [*FAILURES, *COMMIT_FAILURES], indirect=True)
def test_topic_is_created_once_the_disk_works_again(disk, tmp_path):
    with start_on(tmp_path, disk) as server, server.peer() as peer:
        with disk.failing():
            assert created(peer, TOPIC) != 0
        assert created(peer, TOPIC) == 0
        assert produce_value(peer, TOPIC, "first") == 0
        server.process.kill()
        server.process.wait()
    disk.lose_power(tmp_path)
    with gateway(tmp_path) as again:
        assert visible(again, TOPIC) == ["first"]


@pytest.mark.parametrize("disk", ["meta-kept"], indirect=True)
def test_commit_that_took_effect_despite_write_error_survives_power_cut(disk, tmp_path):
    with start_on(tmp_path, disk) as server, server.peer() as peer:
        with disk.failing():
            assert created(peer, TOPIC) == 0
        server.process.kill()
        server.process.wait()
    disk.lose_power(tmp_path)
    with gateway(tmp_path) as again:
        assert visible(again, TOPIC) == []


@pytest.mark.parametrize("disk", ["meta-kept unsynced"], indirect=True)
def test_effective_commit_is_not_acknowledged_before_sync(disk, tmp_path):
    with start_on(tmp_path, disk) as server, server.peer() as peer:
        with disk.failing():
            peer.send(encode_request(create_request(TOPIC), 2))
            assert server.wait_for_lines(1, " error storage.lmdb")
            assert not select.select([peer.socket], [], [], 0)[0]
        frame = peer.receive()
        assert CreateTopicsResponse.decode(frame[4:], version=2).topics[0].error_code == 0
        assert visible(server, TOPIC) == []


@pytest.mark.parametrize("disk", [""], indirect=True)
def test_power_cut_at_random_time_loses_no_acknowledged_record(disk, tmp_path):
    moments = random.Random(7)
    acknowledged = []
    for _ in range(4):
        with start_on(tmp_path, disk) as server, server.peer() as peer:
            peer.create_topic(TOPIC)
            found = visible(server, TOPIC)
            assert found[: len(acknowledged)] == acknowledged
            acknowledged = found
            peer.send(
                *(
                    encode_request(produce_request(TOPIC, one_record(str(number).encode())), 7)
                    for number in range(len(acknowledged), len(acknowledged) + 300)
                )
            )
            for _ in range(moments.randint(1, 250)):
                acknowledged.append(str(parse_produce_reply(peer.receive()).base_offset))
            server.process.kill()
            while (frame := peer.receive()) is not None:
                acknowledged.append(str(parse_produce_reply(frame).base_offset))
        disk.lose_power(tmp_path)
    with gateway(tmp_path) as again:
        assert visible(again, TOPIC)[: len(acknowledged)] == acknowledged


@pytest.mark.parametrize("disk", [""], indirect=True)
def test_idempotent_client_stores_records_once_and_in_order_through_failures(disk, tmp_path):
    with start_on(tmp_path, disk) as server:
        with Load(server) as load:
            for count, disk.failure in enumerate(FAILURES * 2, start=1):
                load.wait_for_replies(50)
                with disk.failing():
                    assert len(server.wait_for_lines(count, " error storage.lmdb")) == count
                assert len(server.wait_for_lines(count, " warning storage.lmdb")) == count
        assert load.failures == []
        assert visible(server, TOPIC) == [str(number) for number in range(load.sent)]


class Load:
    """librdkafka's idempotent producer, which sends numbers while the context is open and then
    waits for all acknowledgements.
    """

    def __init__(self, server):
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": "{}:{}".format(*server.address),
                "enable.idempotence": True,
                "linger.ms": 1,
                "batch.num.messages": 10,
                "retry.backoff.ms": 10,
                "log_level": 0,
            }
        )
        self._is_over = threading.Event()
        self._change = threading.Condition()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.sent = self._answers = 0
        self.failures = []

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._is_over.set()
        self._thread.join()

    def wait_for_replies(self, more):
        with self._change:
            wanted = self._answers + more
            assert self._change.wait_for(lambda: self._answers >= wanted, 240)

    def _record_reply(self, failure, _):
        with self._change:
            self._answers += 1
            if failure:
                self.failures.append(failure)
            self._change.notify_all()

    def _run(self):
        while not self._is_over.is_set():
            self._producer.produce(TOPIC, str(self.sent).encode(), on_delivery=self._record_reply)
            self.sent += 1
            while self._producer.poll(0) or len(self._producer) >= 100:
                self._producer.poll(0.05)
        self._producer.flush(240)
