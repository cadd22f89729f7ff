"""Hostile and faulty clients against a gateway in a separate process.

Each request gets Kafka's error or is refused with one log line. The gateway's memory stays below a
limit derived from its settings, and a well-behaved client is served throughout.
"""

from __future__ import annotations

import os
import random
import resource
import socket
import ssl
import struct
import time
from contextlib import contextmanager

import pytest
from kafka.protocol.metadata.api_versions import ApiVersionsResponse
from kafka.protocol.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

from tests.records.sample_records import GZIP, LZ4, SNAPPY, ZSTD, Sample, batch, compress, message
from tests.testkit.gateway import (
    MIB,
    BackgroundClient,
    encode_request,
    fetch_request,
    gateway,
    produce_request,
)

pytestmark = [pytest.mark.peer, pytest.mark.xdist_group("hostile")]

#: Memory limit of the gateway: requests in flight (and an eighth), unsent responses plus a batch
#: per reader, two unpacked batches, cached batches, and the process with its threads. The allocator
#: keeps memory that was used, so this also limits the peak.
IN_FLIGHT = 64 * MIB
READERS = 40
BATCH = 1 * MIB
UNPACKED = 32 * MIB
RESIDENT = 16 * MIB
ITSELF = 120 * MIB
MEMORY = IN_FLIGHT * 9 // 8 + IN_FLIGHT + READERS * 2 * BATCH + 2 * UNPACKED + RESIDENT + ITSELF

#: Limit of a produce and fetch by the witness, by the stopwatch. The longest observed was 0.5 s,
#: the gateway's work for the attack.
PATIENCE = 5.0

IDLE_CONNECTIONS = 5_000
TOKEN = b"\0alice\0secret"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with gateway(
        tmp_path_factory.mktemp("hostile"),
        by_fork=False,
        socket_request_max_bytes=32 * MIB,
        max_in_flight_bytes=IN_FLIGHT,
        max_decompressed_bytes=UNPACKED,
        lmdb_resident_bytes=RESIDENT,
        message_max_bytes=8 * MIB,
        fetch_max_bytes=16 * MIB,
    ) as started:
        yield started
        assert started.stop() == 0


@pytest.fixture
def under_attack(server):
    """Serve the witness during the test; afterwards check it, the memory and the log."""
    begun = len(server.lines())
    with BackgroundClient(server) as witness:
        yield witness
        goes_on = witness.makes_progress()
    assert witness.failure is None
    assert goes_on
    assert witness.slowest < PATIENCE
    assert server.memory() < MEMORY
    assert server.process.poll() is None
    bugs = [line for line in server.lines()[begun:] if " error " in line or "raceback" in line]
    assert bugs == []


@pytest.fixture
def peer(server):
    with server.peer() as made:
        yield made


@pytest.fixture
def topic(server, request):
    name = request.node.name.replace("[", ".").replace("]", "")[:200]
    name = "".join(c if c.isalnum() or c in "._-" else "_" for c in name)
    with server.peer() as made:
        made.create_topic(name)
    return name


def refused(server, peer):
    """Return the log lines about this peer, at least one."""
    words = f"peer={peer.name} "
    server.wait_for_lines(1, words, peer.lines_before)
    return [line for line in server.lines()[peer.lines_before :] if words in line]


def test_random_bytes_close_the_connection_or_wait_for_the_rest_of_a_frame(server, under_attack):
    noise = random.Random(1)
    for _ in range(200):
        with server.peer() as peer:
            stream = noise.randbytes(noise.randint(1, 3000))
            peer.send_bytes(stream)
            announced = int.from_bytes(stream[:4], "big", signed=True)
            may_wait = len(stream) < 4 or 0 <= announced <= 32 * MIB
            if not may_wait:
                assert peer.is_closed()
                assert len(refused(server, peer)) == 1


@pytest.mark.parametrize(
    "words",
    [
        b"GET / HTTP/1.1\r\nHost: kafka\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        bytes.fromhex("16030100f8010000f40303") + bytes(240),
    ],
    ids=["HTTP", "SSH", "TLS"],
)
def test_other_protocols_are_refused_with_one_log_line(server, under_attack, peer, words):
    peer.send_bytes(words)
    assert peer.is_closed()
    (line,) = refused(server, peer)
    assert "refused" in line


def test_incomplete_frames_are_discarded(server, under_attack, topic):
    request = encode_request(produce_request(topic, batch([Sample(0, 1, b"k", b"v" * 50)])), 7)
    whole = struct.pack(">i", len(request)) + request
    for length in range(len(whole)):
        with server.peer() as peer:
            peer.send_bytes(whole[:length])
    with server.peer() as peer:
        assert peer.fetch(topic, 0).high_watermark == 0


@pytest.mark.parametrize("length", [-1, -(2**31), 32 * MIB + 1, 2**31 - 1])
def test_invalid_frame_length_is_refused_with_one_log_line(server, under_attack, peer, length):
    peer.send_bytes(struct.pack(">i", length) + b"x" * 100)
    assert peer.is_closed()
    (line,) = refused(server, peer)
    assert str(length) in line


def test_announced_frame_lengths_reserve_no_memory(server, under_attack):
    before = server.memory()
    liars = [server.peer() for _ in range(200)]
    for liar in liars:
        liar.send_bytes(struct.pack(">i", 32 * MIB) + b"x" * 10)
    assert under_attack.makes_progress()
    assert server.memory() < before + 10 * MIB
    for liar in liars:
        liar.reset()


def test_partial_large_frames_stay_within_the_memory_budget(server, under_attack):
    hoarders = [server.peer() for _ in range(8)]
    piece = bytes(MIB)
    for hoarder in hoarders:
        hoarder.socket.settimeout(0.5)
        try:
            hoarder.socket.sendall(struct.pack(">i", 32 * MIB) + piece * 31)
        except TimeoutError:
            continue
    assert under_attack.makes_progress()
    assert server.memory() < MEMORY
    for hoarder in hoarders:
        hoarder.reset()


def test_large_requests_behind_long_polls_stay_within_the_memory_budget(
    server, under_attack, topic
):
    poll = encode_request(fetch_request(topic, 0, max_wait_ms=2**31 - 1), 4)
    hoarders = [server.peer() for _ in range(8)]
    for hoarder in hoarders:
        hoarder.send(poll)
        hoarder.socket.settimeout(0.2)
        try:
            hoarder.socket.sendall(struct.pack(">i", 31 * MIB) + bytes(31 * MIB))
        except TimeoutError:
            continue
    assert under_attack.makes_progress()
    assert server.memory() < MEMORY
    for hoarder in hoarders:
        hoarder.reset()


@pytest.mark.parametrize(
    ("version", "body"),
    [
        (1, struct.pack(">i", 2**31 - 1)),
        (1, struct.pack(">i", 2**31 - 1) + b"\0\0" * MIB),
        (1, struct.pack(">i", MIB) + b"\0\0" * MIB),
        (1, struct.pack(">ih", 1, 20_000) + b"short"),
        (9, b"\0" + b"\xff" * MIB),
        (9, b"\0" + b"\xff\xff\xff\xff\x0f" + b"\x02a\0" * MIB),
        (9, b"\0\x01\0\0" + b"\xff\xff\xff\xff\x0f" + b"\x05\0" * MIB),
    ],
    ids=[
        "count",
        "count of tiny rows",
        "true count of tiny rows",
        "length",
        "endless varint",
        "compact count",
        "tags",
    ],
)
def test_wrong_lengths_and_counts_are_refused_with_one_log_line(
    server, under_attack, peer, version, body
):
    # The header of a flexible request ends with tagged fields, the first byte of these bodies.
    peer.send(struct.pack(">hhih", 3, version, 1, -1) + body)
    assert peer.is_closed()
    (line,) = refused(server, peer)
    assert "api_key=3" in line
    assert f"version={version}" in line


def test_produce_of_a_million_partitions_is_refused(server, under_attack, peer):
    body = (
        struct.pack(">hii", 1, 1000, 1)
        + b"\0\x01t"
        + struct.pack(">i", MIB)
        + struct.pack(">ii", 0, -1) * MIB
    )
    peer.send(struct.pack(">hhih", 0, 0, 1, -1) + body)
    assert peer.is_closed()
    assert len(refused(server, peer)) == 1


@pytest.mark.parametrize(
    ("api_key", "version"), [(0, 99), (3, -1), (4, 0), (999, 0), (-1, 0), (32767, 32767)]
)
def test_unsupported_api_is_refused_with_one_log_line(server, under_attack, peer, api_key, version):
    peer.send(struct.pack(">hhih", api_key, version, 1, -1) + bytes(20))
    assert peer.is_closed()
    (line,) = refused(server, peer)
    assert f"api_key={api_key} " in line


def test_unknown_api_versions_version_is_answered_with_v0(under_attack, peer):
    peer.send(struct.pack(">hhih", 18, 77, 5, -1) + b"\0whatever may come")
    frame = peer.receive()
    assert frame[:4] == b"\0\0\0\x05"
    assert ApiVersionsResponse.decode(frame[4:], version=0).error_code == 35


# Records


SAMPLES = [Sample(0, 1_700_000_000_000, b"key", b"value" * 10)]


def broken(records, position):
    damaged = bytearray(records)
    damaged[position] ^= 0xFF
    return bytes(damaged)


@pytest.mark.parametrize(
    ("version", "records"),
    [
        (1, broken(message(0, b"k", b"value", magic=0), 13)),
        (2, broken(message(0, b"k", b"value", magic=1), 13)),
        (2, broken(message(0, b"k", b"value", magic=1), -1)),
        (7, broken(batch(SAMPLES), 18)),
        (7, broken(batch(SAMPLES), -1)),
        (7, batch(SAMPLES)[:-5]),
        (7, batch(SAMPLES)[:40]),
        (2, message(0, b"k", b"value", magic=1)[:-3]),
        (2, b"\xff" * 100),
        (7, b"\0" * 100),
    ],
)
def test_damaged_records_are_corrupt_or_invalid(under_attack, peer, topic, version, records):
    assert peer.produce(topic, records, version).error_code in (2, 87)
    assert peer.fetch(topic, 0).high_watermark == 0


@pytest.mark.parametrize("length", [0, -1, 49, 2**31 - 1, -(2**31)])
def test_wrong_batch_length_is_corrupt_or_invalid(under_attack, peer, topic, length):
    records = bytearray(batch(SAMPLES))
    struct.pack_into(">i", records, 8, length)
    assert peer.produce(topic, bytes(records)).error_code in (2, 87)


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_unknown_codec_is_unsupported_compression_type(under_attack, peer, topic, codec):
    assert peer.produce(topic, batch(SAMPLES, attributes=codec)).error_code == 76
    assert (
        peer.produce(topic, message(0, None, b"packed", magic=1, attributes=codec), 2).error_code
        == 76
    )


def test_zstd_before_produce_7_is_unsupported_compression_type(under_attack, peer, topic):
    assert peer.produce(topic, batch(SAMPLES, codec=ZSTD), 3).error_code == 76
    assert peer.produce(topic, batch(SAMPLES, codec=ZSTD), 7).error_code == 0


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4])
@pytest.mark.parametrize("magic", [0, 1])
def test_old_format_decompression_bomb_is_refused_within_the_memory_limit(
    server, under_attack, peer, topic, codec, magic
):
    packed = compress(codec, bytes(150 * MIB), magic=magic)
    if len(packed) > 8 * MIB:
        packed = compress(codec, bytes(60 * MIB), magic=magic)
    records = message(0, None, packed, magic=magic, attributes=codec)
    assert peer.produce(topic, records, 2).error_code in (2, 10)
    assert server.memory() < MEMORY


@pytest.mark.parametrize("codec", [GZIP, LZ4, ZSTD])
def test_stored_decompression_bomb_is_skipped_by_conversion(
    server, under_attack, peer, topic, codec
):
    records = batch(SAMPLES, codec=codec, content=bytes(150 * MIB))
    assert peer.produce(topic, records).error_code == 0
    for _ in range(3):
        assert (
            peer.fetch(topic, 0, version=2).error_code,
            peer.fetch(topic, 0, version=2).records,
        ) == (0, b"")
    assert server.memory() < MEMORY
    (line,) = server.wait_for_lines(1, f"topic={topic} ", peer.lines_before)
    assert "max_decompressed_bytes" in line
    assert peer.fetch(topic, 0, version=10).records == records


def test_concurrent_decompression_bombs_stay_within_the_memory_limit(server, under_attack, topic):
    records = message(0, None, compress(GZIP, bytes(150 * MIB), magic=1), magic=1, attributes=GZIP)
    peers = [server.peer() for _ in range(20)]
    most = 0
    for peer in peers:
        peer.send(encode_request(produce_request(topic, records, 2), 2))
    for peer in peers:
        assert peer.receive() is not None
        most = max(most, server.memory())
        peer.reset()
    assert most < MEMORY


@pytest.mark.parametrize("offset", [-1, -5, 1, 2**40, 2**63 - 1, -(2**63)])
def test_fetch_outside_of_the_log_is_offset_out_of_range(under_attack, peer, topic, offset):
    assert peer.fetch(topic, offset).error_code == 1


@pytest.mark.parametrize("size", [0, -1, -(2**31), 2**31 - 1])
def test_fetch_with_unusual_max_bytes_is_answered(under_attack, peer, topic, size):
    peer.produce(topic, batch(SAMPLES))
    assert peer.fetch(topic, 0, max_bytes=size).error_code == 0


# Behavior


@pytest.fixture(scope="module")
def big(server):
    """A topic of 64 MiB."""
    with server.peer() as peer:
        peer.create_topic("big")
        records = batch([Sample(0, 1_700_000_000_000, None, os.urandom(BATCH))])
        for _ in range(64):
            assert peer.produce("big", records).error_code == 0
    return "big"


def test_unsent_responses_of_slow_readers_are_limited(server, under_attack, big):
    before = server.memory()
    readers = [server.peer(receive_buffer=4096) for _ in range(READERS)]
    for reader in readers:
        reader.send(*[encode_request(fetch_request(big, 0), 4)] * 5)
    time.sleep(2)
    assert under_attack.makes_progress()
    grown = server.memory() - before
    for reader in readers:
        reader.reset()
    # The requested responses total 3 GiB.
    assert grown < IN_FLIGHT + READERS * 3 * BATCH


def test_slow_reader_gets_all_responses(server, under_attack, big):
    with server.peer(receive_buffer=4096) as reader:
        reader.send(
            encode_request(fetch_request(big, 0), 4), encode_request(fetch_request(big, 1), 4)
        )
        time.sleep(0.5)
        assert len(reader.receive()) > BATCH
        assert len(reader.receive()) > BATCH


def test_connections_closed_during_requests_are_cleaned_up(server, under_attack, topic):
    files = server.open_files()
    poll = encode_request(fetch_request(topic, 0, max_wait_ms=2**31 - 1), 4)
    append = encode_request(
        produce_request(topic, batch([Sample(0, 1, None, os.urandom(100_000))])), 7
    )
    for index in range(300):
        peer = server.peer()
        match index % 4:
            case 0:
                peer.send(poll)
            case 1:
                peer.send(append, append, append)
            case 2:
                peer.send_bytes(struct.pack(">i", len(append)) + append[: len(append) // 2])
            case 3:
                peer.send(poll, append, append)
        peer.reset()
    end = time.monotonic() + 60
    while server.open_files() > files and time.monotonic() < end:
        time.sleep(0.02)
    assert server.open_files() <= files


def test_requests_are_not_read_while_responses_are_unread(server, under_attack):
    request = struct.pack(">hhih", 18, 0, 1, -1)
    flood = (struct.pack(">i", len(request)) + request) * 20_000
    before = server.memory()
    floods = [server.peer(receive_buffer=4096) for _ in range(20)]
    for peer in floods:
        peer.socket.settimeout(0.2)
        try:
            for _ in range(20):
                peer.socket.sendall(flood)
        except TimeoutError:
            continue
    assert under_attack.makes_progress()
    assert server.memory() < before + 20 * 8 * MIB
    for peer in floods:
        peer.reset()


def test_five_thousand_idle_connections_do_not_block_other_clients(server, under_attack):
    wanted = IDLE_CONNECTIONS + 500
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < wanted:
        message = f"the test needs {wanted} open files; the hard limit is {hard} (`ulimit -Hn`)"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (wanted if hard == resource.RLIM_INFINITY else hard, hard)
    )
    resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (hard, hard))
    before = server.memory()
    idle = []
    try:
        for _ in range(IDLE_CONNECTIONS):
            client = socket.create_connection(server.address, timeout=60)
            idle.append(client)
        for client in idle[::50]:
            client.sendall(struct.pack(">ihhih", 10, 18, 0, 7, -1))
            assert client.recv(8)[4:] == b"\0\0\0\x07"
        assert under_attack.makes_progress()
        # Twice the documented memory per connection (`max_connections`).
        assert server.memory() - before < IDLE_CONNECTIONS * 6 * 1024
    finally:
        for client in idle:
            client.close()


# Authentication


@pytest.fixture(scope="module")
def secured(tmp_path_factory):
    """A gateway that requires authentication."""
    with gateway_with_login(tmp_path_factory.mktemp("secured")) as started:
        yield started


@pytest.fixture
def impatient(tmp_path):
    """A gateway with an authentication timeout of two seconds."""
    with gateway_with_login(tmp_path, connection_authentication_timeout_ms=2000) as started:
        yield started


@contextmanager
def gateway_with_login(folder, **settings):
    users = folder / "users"
    from auth.users import PasswordHash, edit_users

    with edit_users(users) as found:
        found["alice"] = PasswordHash.of("secret")
    with gateway(
        folder,
        listeners=("SASL_PLAINTEXT",),
        by_fork=False,
        users_file=users,
        sasl_max_waiting_checks=20,
        **settings,
    ) as started:
        yield started
        assert started.stop() == 0
        assert not [line for line in started.lines() if " error " in line]


def log_in(peer, token, version):
    """Send a handshake and a token; return the response to the token, or None if the connection is
    closed.
    """
    reply = peer.request(
        SaslHandshakeRequest(version=version, mechanism="PLAIN"), SaslHandshakeResponse, version
    )
    assert reply.error_code == 0
    if version:
        peer.send(encode_request(SaslAuthenticateRequest(version=0, auth_bytes=token), 0))
        frame = peer.receive()
        return (
            None
            if frame is None
            else SaslAuthenticateResponse.decode(frame[4:], version=0).error_code
        )
    peer.send(token)
    return peer.receive()


def test_correct_password_is_accepted_with_handshake_v0_and_v1(secured):
    with secured.peer() as bare, secured.peer() as wrapped:
        assert log_in(bare, TOKEN, 0) == b""
        assert log_in(wrapped, TOKEN, 1) == 0
        bare.create_topic("accepted")
        wrapped.create_topic("accepted")


def test_wrong_password_is_refused_and_closes_the_connection(secured):
    for version, told in ((0, None), (1, 58)):
        with secured.peer() as peer:
            assert log_in(peer, b"\0alice\0wrong-password", version) == told
            assert peer.is_closed()
            (line,) = refused(secured, peer)
            assert "login failed" in line
    assert "wrong-password" not in secured.log.read_text()


def test_requests_after_a_wrong_password_are_not_served(secured):
    with secured.peer() as peer:
        handshake = encode_request(SaslHandshakeRequest(version=1, mechanism="PLAIN"), 1)
        wrong = encode_request(SaslAuthenticateRequest(version=0, auth_bytes=b"\0alice\0no"), 0)
        peer.send(
            handshake,
            wrong,
            encode_request(fetch_request("accepted", 0), 4),
            encode_request(SaslAuthenticateRequest(version=0, auth_bytes=TOKEN), 0),
        )
        assert peer.receive() is not None
        assert SaslAuthenticateResponse.decode(peer.receive()[4:], version=0).error_code == 58
        assert peer.receive() is None


def test_silent_connection_is_closed_at_the_authentication_timeout(impatient):
    handshake = encode_request(SaslHandshakeRequest(version=0, mechanism="PLAIN"), 0)
    silences = [
        b"",
        b"\0\0",
        struct.pack(">i", len(handshake)) + handshake,
        struct.pack(">i", 1000) + b"x",
    ]
    peers = [impatient.peer() for _ in silences]
    for peer, said in zip(peers, silences, strict=True):
        peer.send_bytes(said)
    for peer in peers:
        assert peer.is_closed()
        assert len(refused(impatient, peer)) == 1
        peer.reset()


def test_token_over_the_limit_closes_the_connection(secured):
    for version in (0, 1):
        with secured.peer() as peer:
            peer.send(
                encode_request(SaslHandshakeRequest(version=version, mechanism="PLAIN"), version)
            )
            peer.receive()
            peer.send_bytes(struct.pack(">i", 600 << 10) + b"x" * 1000)
            assert peer.is_closed()
            assert len(refused(secured, peer)) == 1


def test_first_wrong_token_ends_a_flood_of_tokens(secured):
    before = secured.memory()
    with secured.peer() as peer:
        peer.send(encode_request(SaslHandshakeRequest(version=0, mechanism="PLAIN"), 0))
        peer.receive()
        flood = b"".join(struct.pack(">i", 20) + b"\0alice\0" + b"x" * 13 for _ in range(5000))
        for _ in range(20):
            peer.send_bytes(flood)
        assert peer.is_closed()
    assert secured.memory() < before + 40 * MIB


def test_many_wrong_passwords_do_not_block_logins_for_long(secured):
    storm = [secured.peer() for _ in range(200)]
    for peer in storm:
        peer.send(
            encode_request(SaslHandshakeRequest(version=0, mechanism="PLAIN"), 0), b"\0alice\0guess"
        )
    began = time.monotonic()
    while True:
        with secured.peer() as alice:
            # Logins beyond `sasl_max_waiting_checks` are closed; the client reconnects.
            if log_in(alice, TOKEN, 0) == b"":
                break
        assert time.monotonic() - began < 180
    for peer in storm:
        assert peer.is_closed()
        peer.reset()
    assert secured.memory() < MEMORY


def test_raw_gssapi_token_is_refused_naming_gssapi(secured):
    with secured.peer() as peer:
        peer.send(bytes.fromhex("6082024b06092a864886f71201020201006e") + bytes(500))
        assert peer.is_closed()
        (line,) = refused(secured, peer)
        assert "GSSAPI" in line


# TLS


@pytest.fixture(scope="module")
def tls_server(tmp_path_factory):
    from tests.testkit.certificates import Authority

    folder = tmp_path_factory.mktemp("tls_server")
    authority = Authority()
    certificate, key = authority.sign("server").write(folder, "server")
    with gateway(
        folder,
        listeners=("SSL",),
        ssl_certificate_file=certificate,
        ssl_key_file=key,
        max_connections=3,
    ) as started:
        started.trust = ssl.create_default_context(cafile=str(authority.write(folder)))
        yield started
        assert started.stop() == 0
        assert not [line for line in started.lines() if " error " in line]


def test_plaintext_on_a_tls_listener_closes_the_connection(tls_server):
    with tls_server.peer() as peer:
        peer.send(struct.pack(">hhih", 18, 0, 1, -1))
        assert peer.is_closed()


def test_tls_listener_enforces_max_connections(tls_server):
    inside = [connect_with_tls(tls_server) for _ in range(3)]
    with tls_server.peer() as fourth:
        assert fourth.is_closed()
        assert "max_connections=3" in refused(tls_server, fourth)[0]
    for one in inside:
        one.close()
    connect_with_tls(tls_server).close()


def connect_with_tls(tls_server):
    """Connect, retrying while closed connections still count toward the limit."""
    end = time.monotonic() + 60
    while True:
        late = tls_server.peer()
        try:
            wrapped = tls_server.trust.wrap_socket(late.socket, server_hostname="localhost")
            wrapped.sendall(struct.pack(">ihhih", 10, 18, 0, 7, -1))
            assert wrapped.recv(8)[4:] == b"\0\0\0\x07"
            return wrapped
        except OSError:
            late.socket.close()
            assert time.monotonic() < end
            time.sleep(0.05)
