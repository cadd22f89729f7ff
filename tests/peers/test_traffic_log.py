"""The traffic log of a gateway process: no secrets, little loss on a kill, readable by clients."""

from __future__ import annotations

import gzip
import secrets
import ssl
import subprocess
import sys
import time
from contextlib import closing, suppress
from itertools import islice
from pathlib import Path

import msgspec
import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import InvalidTopicError
from kafka.protocol.admin.configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from kafka.protocol.admin.topics import CreateTopicsRequest, CreateTopicsResponse
from kafka.protocol.consumer.group import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from kafka.protocol.metadata.api_versions import ApiVersionsRequest
from kafka.protocol.producer.transaction import InitProducerIdRequest, InitProducerIdResponse
from kafka.protocol.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

from gateway.topics.topic_names import TRAFFIC_TOPIC
from tests.records.sample_records import NONE, Sample, batch, message_set, wrapper
from tests.testkit.certificates import Authority
from tests.testkit.gateway import Stopwatch, encode_request, gateway, one_record, produce_request
from tests.testkit.traffic_rows import read_lines, read_rows, wait_for_rows

pytestmark = [pytest.mark.peer]

SECRET = "hunter2"
"""Part of everything that a client sends, except names of topics, groups, users and libraries."""
TIME = 1_700_000_000_000
TOPIC = "orders"


def users_file(folder: Path) -> Path:
    file = folder / "users"
    add = [
        sys.executable,
        "-m",
        "gateway",
        "users",
        "add",
        "alice",
        "--file",
        str(file),
        "--password-file",
        "-",
    ]
    subprocess.run(
        add,
        input=f"{SECRET}-password\n",
        text=True,
        check=True,
        timeout=240,
        stdout=subprocess.DEVNULL,
    )
    return file


def authenticate(peer, version, password):
    """Authenticate with PLAIN after this SaslHandshake version; return whether the connection stays
    open.
    """
    assert (
        peer.request(
            SaslHandshakeRequest(mechanism="PLAIN"), SaslHandshakeResponse, version
        ).error_code
        == 0
    )
    token = f"\0alice\0{password}".encode()
    if version == 0:
        peer.send(token)
        return peer.receive() is not None
    return (
        peer.request(
            SaslAuthenticateRequest(auth_bytes=token), SaslAuthenticateResponse, 1
        ).error_code
        == 0
    )


def produce_secrets(peer):
    key, value, header = (
        f"{SECRET}-key".encode(),
        f"{SECRET}-value".encode(),
        (f"{SECRET}-name".encode(), f"{SECRET}-header".encode()),
    )
    new = [Sample(0, TIME, key, value, (header,))]
    old = [Sample(0, TIME, key, value)]
    peer.create_topic(TOPIC)
    for version, records in [
        (0, message_set(old, magic=0)),
        (2, message_set(old, magic=1)),
        (2, wrapper(old, NONE + 1, magic=1)),
        (7, batch(new)),
        (7, batch(new)[:-3]),
    ]:
        peer.produce(TOPIC, records, version=version)
    assert peer.fetch(TOPIC, 0, version=4).records
    assert peer.fetch(TOPIC, 0, version=1).records


def use_group_with_secrets(peer):
    protocol = JoinGroupRequest.JoinGroupRequestProtocol(
        name="range", metadata=f"{SECRET}-subscription".encode()
    )
    joined = peer.request(
        JoinGroupRequest(
            group_id="g",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            member_id="",
            group_instance_id=f"{SECRET}-instance",
            protocol_type="consumer",
            protocols=[protocol],
            reason=f"{SECRET}-reason",
        ),
        JoinGroupResponse,
        8,
    )
    assert joined.error_code == 0
    assigned = SyncGroupRequest.SyncGroupRequestAssignment(
        member_id=joined.member_id, assignment=f"{SECRET}-assignment".encode()
    )
    member = {"group_id": "g", "generation_id": joined.generation_id, "member_id": joined.member_id}
    peer.request(
        SyncGroupRequest(**member, group_instance_id=f"{SECRET}-instance", assignments=[assigned]),
        SyncGroupResponse,
        3,
    )
    other = HeartbeatRequest(
        group_id="g", generation_id=1, member_id=f"{SECRET}-member", group_instance_id=None
    )
    assert peer.request(other, HeartbeatResponse, 3).error_code
    committed = OffsetCommitRequest.OffsetCommitRequestTopic
    row = committed.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=1, committed_metadata=f"{SECRET}-note"
    )
    commit = OffsetCommitRequest(
        group_id="other",
        generation_id_or_member_epoch=-1,
        member_id="",
        retention_time_ms=-1,
        topics=[committed(name=TOPIC, partitions=[row])],
    )
    assert peer.request(commit, OffsetCommitResponse, 2).topics[0].partitions[0].error_code == 0


def administer_with_secrets(peer):
    topic = CreateTopicsRequest.CreatableTopic
    config = topic.CreatableTopicConfig(name=f"{SECRET}.config", value=f"{SECRET}-value")
    made = topic(
        name="made", num_partitions=1, replication_factor=1, assignments=[], configs=[config]
    )
    peer.request(
        CreateTopicsRequest(topics=[made], timeout_ms=5000, validate_only=False),
        CreateTopicsResponse,
        4,
    )
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource
    change = resource.AlterableConfig(
        name="retention.ms", config_operation=0, value=f"{SECRET}-value"
    )
    altered = resource(resource_type=2, resource_name=TOPIC, configs=[change])
    peer.request(
        IncrementalAlterConfigsRequest(resources=[altered], validate_only=False),
        IncrementalAlterConfigsResponse,
        0,
    )
    begun = InitProducerIdRequest(
        transactional_id=f"{SECRET}-transaction", transaction_timeout_ms=1000
    )
    peer.request(begun, InitProducerIdResponse, 1)


def test_secrets_of_clients_are_not_logged(tmp_path):
    log = tmp_path / "traffic"
    settings = {
        "users_file": users_file(tmp_path),
        "group_initial_rebalance_delay_ms": 0,
        "traffic_log_interval_ms": 1000,
    }
    with gateway(
        tmp_path, "--traffic-log", str(log), listeners=("SASL_PLAINTEXT",), **settings
    ) as server:
        with server.peer() as peer:
            named = ApiVersionsRequest(
                client_software_name="library", client_software_version="1.2.3"
            )
            peer.send(encode_request(named, 3))
            assert peer.receive()
            assert authenticate(peer, 1, f"{SECRET}-password")
            produce_secrets(peer)
            use_group_with_secrets(peer)
            administer_with_secrets(peer)
        for version, password in [
            (0, f"{SECRET}-password"),
            (0, f"{SECRET}-wrong"),
            (1, f"{SECRET}-wrong"),
        ]:
            with server.peer() as peer:
                assert authenticate(peer, version, password) == (password == f"{SECRET}-password")
        with server.peer() as peer:
            peer.request(
                SaslHandshakeRequest(mechanism=f"{SECRET}-mechanism"), SaslHandshakeResponse, 1
            )
        with server.peer() as peer:
            # The first frame of a 0.9 client that uses Kerberos.
            peer.send(bytes.fromhex("6082024b06092a864886f71201020201006e") + SECRET.encode())
            assert peer.is_closed()
        # A shutdown may omit the last rows of the file.
        waits_until(lambda: len(reasons(log)) == 6)
        assert server.stop() == 0
    text = b"".join(read_lines(log))
    assert SECRET.encode() not in text
    assert b"alice" in text
    rows = read_rows(log)
    # The connection of a failed login is closed with a delay, so the next may be closed before it.
    assert sorted(reasons(log)) == [
        "client",
        "client",
        "error:login",
        "error:login",
        "error:mechanism",
        "error:mechanism",
    ]
    assert [row["event"] for row in rows if row.get("mechanism") == "GSSAPI"] == ["closed"]
    assert {row["api_key"] for row in rows if row["kind"] == "usage"} == {
        0,
        1,
        3,
        8,
        11,
        12,
        14,
        17,
        18,
        19,
        22,
        36,
        44,
    }
    assert [row["sequence"] for row in rows] == list(range(len(rows)))


def reasons(log):
    """The reason of each closed connection."""
    return [row["reason"] for row in read_rows(log) if row.get("event") == "closed"]


def test_salt_replaces_addresses(tmp_path):
    log, salt = tmp_path / "traffic", tmp_path / "salt"
    salt.write_text("pepper\n")
    with gateway(tmp_path, "--traffic-log", str(log), traffic_log_salt_file=salt) as server:
        for _ in range(2):
            with server.peer() as peer:
                peer.create_topic(TOPIC)
        assert server.stop() == 0
    text = b"".join(read_lines(log))
    assert b"127.0.0.1" not in text
    assert b"pepper" not in text
    assert len({row["peer"] for row in read_rows(log) if row["kind"] == "connection"}) == 1


def test_next_gateway_finishes_the_file_of_a_killed_one(
    tmp_path,
):
    log = tmp_path / "traffic"
    interval = {"traffic_log_interval_ms": 1000}
    with gateway(tmp_path, "--traffic-log", str(log), **interval) as server, server.peer() as peer:
        peer.create_topic(TOPIC)
        assert peer.produce(TOPIC, one_record(b"v")).error_code == 0
        assert wait_for_rows(log, lambda row: row.get("topic") == TOPIC and row.get("records") == 1)
        server.process.kill()
        server.process.wait()
    (left,) = log.rglob("*.jsonl")
    with left.open("ab") as file:
        file.write(b'{"kind":"usage","v":1,"at":17')
    before = read_lines(log)
    with gateway(tmp_path, "--traffic-log", str(log), **interval) as server:
        with server.peer() as peer:
            peer.create_topic(TOPIC)
        waits_until(lambda: not left.exists() and len(reasons(log)) == 1)
        assert not left.exists()
        assert server.stop() == 0
    assert read_lines(log)[: len(before)] == before
    assert len({row["connection"] for row in read_rows(log)}) == 2


def test_kill_under_load_loses_at_most_the_last_interval(tmp_path):
    log = tmp_path / "traffic"
    # At most 0.84 s was observed beside eight busy processes and a busy disk. The rest is for the
    # writer thread, which can stall while the gateway's other threads run.
    interval, leeway, pace = 1.0, 2.0, 0.05
    acknowledged = []

    def written():
        return sum(
            row.get("records", 0)
            for row in read_rows(log)
            if row.get("topic") == TOPIC and row["api_key"] == 0
        )

    def due():
        return len([at for at in acknowledged if at < acknowledged[-1] - interval - leeway])

    with (
        gateway(
            tmp_path, "--traffic-log", str(log), traffic_log_interval_ms=int(interval * 1000)
        ) as server,
        server.peer() as peer,
    ):
        peer.create_topic(TOPIC)
        now = 0.0
        while now < 6 * interval:
            watch = Stopwatch(server)
            assert peer.produce(TOPIC, one_record(b"v")).error_code == 0
            time.sleep(pace)
            # A kill could happen now: rows in the file remain.
            assert due() <= written()
            # If the machine stalled, so did the gateway, and its rows are due that much later.
            now += min(watch.seconds(), 2 * pace)
            acknowledged.append(now)
        server.process.kill()
        server.process.wait()
    assert due()
    assert due() <= written() <= len(acknowledged)


def test_retention_bytes_keep_the_newest_rows(tmp_path):
    log = tmp_path / "traffic"
    most, connections = 64 << 10, 400
    limits = {"traffic_log_rotate_bytes": 64 << 10, "traffic_log_retention_bytes": most}
    with gateway(tmp_path, "--traffic-log", str(log), **limits) as server:
        for _ in range(connections):
            with server.peer() as peer:
                # An incompressible name, so that few connections exceed the limit.
                peer.send(
                    encode_request(
                        ApiVersionsRequest(
                            client_software_name=secrets.token_hex(200), client_software_version="1"
                        ),
                        3,
                    )
                )
                assert peer.receive()
        waits_until(lambda: len(list(log.rglob("*.jsonl"))) <= 1)
        assert server.stop() == 0
    # A shutdown leaves little time for compression; the next start compresses the rest.
    with gateway(tmp_path, "--traffic-log", str(log), **limits) as server:
        waits_until(lambda: not list(log.rglob("*.jsonl")) and size_of(log) <= most)
        assert server.stop() == 0
    assert 0 < size_of(log) <= most
    # Most files are deleted; the remaining rows are the newest.
    numbers = [row["sequence"] for row in read_rows(log)]
    assert numbers == list(range(numbers[0], numbers[-1] + 1))
    assert numbers[0] >= connections
    assert numbers[-1] + 1 >= 2 * connections


def test_file_is_rotated_by_time_without_requests_and_keeps_its_order(tmp_path):
    log = tmp_path / "traffic"
    with gateway(tmp_path, "--traffic-log", str(log), traffic_log_rotate_ms=2000) as server:
        for _ in range(5):
            with server.peer() as peer:
                peer.create_topic(TOPIC)
        # On a slow machine the rows span several files.
        waits_until(lambda: len(finished(log)) >= 5 * 4)
        assert [msgspec.json.decode(line)["sequence"] for line in finished(log)] == list(
            range(5 * 4)
        )
        assert server.stop() == 0


def waits_until(is_so, seconds=240):
    """Wait until it is so or the time is up; the caller asserts the outcome."""
    end = time.monotonic() + seconds
    while not is_so() and time.monotonic() < end:
        time.sleep(0.05)


def size_of(log):
    """Bytes of all files; a file may be deleted meanwhile."""
    size = 0
    for path in log.rglob("*.jsonl*"):
        with suppress(FileNotFoundError):
            size += path.stat().st_size
    return size


def finished(log):
    """The lines of all finished files, ordered by file number."""
    files = sorted(
        log.rglob("*.jsonl.gz"), key=lambda path: int(path.name.split(".")[0].split("-")[-1])
    )
    return [line for path in files for line in gzip.decompress(path.read_bytes()).splitlines()]


def test_two_gateways_share_a_folder_and_a_kill_loses_no_written_row(tmp_path):
    log = tmp_path / "traffic"
    often = {"traffic_log_interval_ms": 1000, "traffic_log_rotate_ms": 1000}
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    with (
        gateway(tmp_path / "first", "--traffic-log", str(log), "--node-id", "1", **often) as first,
        gateway(
            tmp_path / "second", "--traffic-log", str(log), "--node-id", "2", **often
        ) as second,
    ):
        for _ in range(30):
            for server in (first, second):
                with server.peer() as peer:
                    peer.create_topic(TOPIC)
        for node in (1, 2):
            assert wait_for_rows(
                log, lambda row, node=node: row["node"] == node and row["sequence"] == 30 * 4 - 1
            )
        first.process.kill()
        first.process.wait()
        # The file that was open at the kill.
        left = list(log.rglob("1-*.jsonl"))
        with gateway(
            tmp_path / "first", "--traffic-log", str(log), "--node-id", "1", **often
        ) as again:
            with again.peer() as peer:
                peer.create_topic(TOPIC)
            waits_until(
                lambda: len(reasons(log)) == 30 + 30 + 1 and not any(path.exists() for path in left)
            )
            assert not [path for path in left if path.exists()]
            assert again.stop() == 0
        assert second.stop() == 0
    numbers = {}
    for row in read_rows(log):
        numbers.setdefault((row["node"], row["connection"].split("-")[1]), []).append(
            row["sequence"]
        )
    assert sorted(len(found) for found in numbers.values()) == [4, 30 * 4, 30 * 4]
    assert all(found == list(range(len(found))) for found in numbers.values())


def test_tls_version_and_plaintext_on_a_tls_listener_are_logged(tmp_path):
    authority = Authority()
    certificate, key = authority.sign("127.0.0.1").write(tmp_path, "server")
    trusted = ssl.create_default_context(cafile=authority.write(tmp_path))
    log = tmp_path / "traffic"
    files = {"ssl_certificate_file": certificate, "ssl_key_file": key}
    with gateway(tmp_path, "--traffic-log", str(log), listeners=("SSL",), **files) as server:
        for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            trusted.minimum_version = trusted.maximum_version = version
            with server.peer() as peer:
                peer.socket = trusted.wrap_socket(peer.socket, server_hostname="127.0.0.1")
                peer.create_topic(TOPIC)
                # With a close_notify alert, which not all clients send.
                peer.socket = peer.socket.unwrap()
        with server.peer() as peer:
            peer.send_bytes(encode_request(produce_request(TOPIC, one_record(b"v")), 7))
            assert peer.is_closed()
        waits_until(lambda: len(reasons(log)) == 3)
        assert server.stop() == 0
    closed = [row for row in read_rows(log) if row.get("event") == "closed"]
    assert [(row.get("tls"), row["protocol"], row["reason"]) for row in closed] == [
        ("TLSv1.2", "SSL", "client"),
        ("TLSv1.3", "SSL", "client"),
        (None, "SSL", "error:tls"),
    ]


def test_traffic_topic_has_the_same_rows_and_is_read_only(
    tmp_path,
):
    log = tmp_path / "traffic"
    with gateway(tmp_path, "--traffic-log", str(log), "--traffic-topic") as server:
        for _ in range(3):
            with server.peer() as peer:
                peer.create_topic(TOPIC)
                assert peer.produce(TOPIC, one_record(b"v")).error_code == 0
        waits_until(lambda: len(reasons(log)) == 3)
        least = len(read_rows(log))
        with server.peer() as peer:
            waits_until(lambda: peer.fetch(TRAFFIC_TOPIC, 0).high_watermark >= least)
        assert server.stop() == 0
    with gateway(tmp_path) as server:
        address = "{}:{}".format(*server.address)
        with (
            closing(KafkaProducer(bootstrap_servers=address)) as producer,
            pytest.raises(InvalidTopicError),
        ):
            producer.send(TRAFFIC_TOPIC, b"{}").get(240)
        consumer = KafkaConsumer(
            TRAFFIC_TOPIC,
            bootstrap_servers=address,
            auto_offset_reset="earliest",
            consumer_timeout_ms=240_000,
        )
        (end,) = consumer.end_offsets([TopicPartition(TRAFFIC_TOPIC, 0)]).values()
        records = list(islice(consumer, end))
        consumer.close()
    # A shutdown leaves little time: the topic or the file may lack the last rows.
    rows = [msgspec.json.decode(record.value) for record in records]
    both = min(len(rows), len(read_rows(log)))
    assert both >= least
    assert rows[:both] == read_rows(log)[:both]
    assert len({row["connection"] for row in rows}) == 4
