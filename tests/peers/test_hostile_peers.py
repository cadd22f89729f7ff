"""Peers that mean harm, or know no better, against a gateway in a process of its own.

Each is answered with Kafka's error or refused with one line of log; the gateway's memory stays below a limit that follows from its settings,
and a well-behaved client is served all the while.
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

from tests.compat.records.building import GZIP, LZ4, SNAPPY, ZSTD, Sample, batch, compress, message
from tests.peers.gateway import (
    MIB,
    BackgroundClient,
    encode_request,
    fetch_request,
    gateway,
    produce_request,
)

pytestmark = [pytest.mark.peer, pytest.mark.xdist_group("hostile")]

#: What the gateway under test may hold: requests in flight (and an eighth), replies on their way out and beyond them a batch each, two batches
#: unpacked, its newest batches, and itself with its threads. The allocator keeps what was once used, so this is its highest as well.
IN_FLIGHT = 64 * MIB
READERS = 40
BATCH = 1 * MIB
UNPACKED = 32 * MIB
RESIDENT = 16 * MIB
ITSELF = 120 * MIB
MEMORY = IN_FLIGHT * 9 // 8 + IN_FLIGHT + READERS * 2 * BATCH + 2 * UNPACKED + RESIDENT + ITSELF

#: Limit of a produce and fetch by the witness, by the stopwatch. The longest seen took 0.5 s, the gateway's work for the attack.
PATIENCE = 5.0

IDLE_CONNECTIONS = 5_000
TOKEN = b"\0alice\0secret"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with gateway(
        tmp_path_factory.mktemp("hostile"),
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
def bad_day(server):
    """The test runs while the witness is served; afterwards the gateway is as it was before."""
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
    """The reasons for which this peer was refused."""
    words = f"peer={peer.name} "
    server.wait_for_lines(1, words, peer.lines_before)
    return [line for line in server.lines()[peer.lines_before :] if words in line]


def test_random_bytes_are_hung_up_on_or_wait_for_the_rest_of_their_frame(server, bad_day):
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
def test_another_protocol_is_hung_up_on_with_one_line(server, bad_day, peer, words):
    peer.send_bytes(words)
    assert peer.is_closed()
    (line,) = refused(server, peer)
    assert "refused" in line


def test_frames_cut_short_anywhere_cost_nothing(server, bad_day, topic):
    request = encode_request(produce_request(topic, batch([Sample(0, 1, b"k", b"v" * 50)])), 7)
    whole = struct.pack(">i", len(request)) + request
    for length in range(len(whole)):
        with server.peer() as peer:
            peer.send_bytes(whole[:length])
    with server.peer() as peer:
        assert peer.fetch(topic, 0).high_watermark == 0


@pytest.mark.parametrize("length", [-1, -(2**31), 32 * MIB + 1, 2**31 - 1])
def test_a_frame_of_an_impossible_length_is_hung_up_on_with_one_line(server, bad_day, peer, length):
    peer.send_bytes(struct.pack(">i", length) + b"x" * 100)
    assert peer.is_closed()
    (line,) = refused(server, peer)
    assert str(length) in line


def test_many_that_announce_much_and_send_nothing_use_nothing_up(server, bad_day):
    before = server.memory()
    liars = [server.peer() for _ in range(200)]
    for liar in liars:
        liar.send_bytes(struct.pack(">i", 32 * MIB) + b"x" * 10)
    assert bad_day.makes_progress()
    assert server.memory() < before + 10 * MIB
    for liar in liars:
        liar.reset()


def test_many_that_send_most_of_a_large_frame_hold_no_more_than_the_budget(server, bad_day):
    hoarders = [server.peer() for _ in range(8)]
    piece = bytes(MIB)
    for hoarder in hoarders:
        hoarder.socket.settimeout(0.5)
        try:
            hoarder.socket.sendall(struct.pack(">i", 32 * MIB) + piece * 31)
        except TimeoutError:
            continue
    assert bad_day.makes_progress()
    assert server.memory() < MEMORY
    for hoarder in hoarders:
        hoarder.reset()


def test_large_requests_behind_endless_polls_use_nothing_up(server, bad_day, topic):
    poll = encode_request(fetch_request(topic, 0, max_wait_ms=2**31 - 1), 4)
    hoarders = [server.peer() for _ in range(8)]
    for hoarder in hoarders:
        hoarder.send(poll)
        hoarder.socket.settimeout(0.2)
        try:
            hoarder.socket.sendall(struct.pack(">i", 31 * MIB) + bytes(31 * MIB))
        except TimeoutError:
            continue
    assert bad_day.makes_progress()
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
def test_lying_lengths_and_counts_are_refused_with_one_line(server, bad_day, peer, version, body):
    # The header of a flexible request ends in tags, which is the first byte of those bodies.
    peer.send(struct.pack(">hhih", 3, version, 1, -1) + body)
    assert peer.is_closed()
    (line,) = refused(server, peer)
    assert "api_key=3" in line
    assert f"version={version}" in line


def test_a_produce_request_of_a_million_partitions_is_refused(server, bad_day, peer):
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
def test_what_is_not_served_is_refused_with_one_line(server, bad_day, peer, api_key, version):
    peer.send(struct.pack(">hhih", api_key, version, 1, -1) + bytes(20))
    assert peer.is_closed()
    (line,) = refused(server, peer)
    assert f"api_key={api_key} " in line


def test_versions_of_the_future_are_answered(bad_day, peer):
    peer.send(struct.pack(">hhih", 18, 77, 5, -1) + b"\0whatever may come")
    frame = peer.receive()
    assert frame[:4] == b"\0\0\0\x05"
    assert ApiVersionsResponse.decode(frame[4:], version=0).error_code == 35


# records


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
def test_records_that_are_damaged_are_answered_with_corrupt_or_invalid(
    bad_day, peer, topic, version, records
):
    assert peer.produce(topic, records, version).error_code in (2, 87)
    assert peer.fetch(topic, 0).high_watermark == 0


@pytest.mark.parametrize("length", [0, -1, 49, 2**31 - 1, -(2**31)])
def test_a_batch_that_lies_about_its_length_is_corrupt(bad_day, peer, topic, length):
    records = bytearray(batch(SAMPLES))
    struct.pack_into(">i", records, 8, length)
    assert peer.produce(topic, bytes(records)).error_code in (2, 87)


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_a_codec_that_nobody_knows_is_told_so(bad_day, peer, topic, codec):
    assert peer.produce(topic, batch(SAMPLES, attributes=codec)).error_code == 76
    assert (
        peer.produce(topic, message(0, None, b"packed", magic=1, attributes=codec), 2).error_code
        == 76
    )


def test_zstd_where_the_producer_may_not_use_it_is_told_so(bad_day, peer, topic):
    assert peer.produce(topic, batch(SAMPLES, codec=ZSTD), 3).error_code == 76
    assert peer.produce(topic, batch(SAMPLES, codec=ZSTD), 7).error_code == 0


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4])
@pytest.mark.parametrize("magic", [0, 1])
def test_a_bomb_in_an_old_format_is_told_so_and_costs_no_more_than_its_limit(
    server, bad_day, peer, topic, codec, magic
):
    packed = compress(codec, bytes(150 * MIB), magic=magic)
    if len(packed) > 8 * MIB:
        packed = compress(codec, bytes(60 * MIB), magic=magic)
    records = message(0, None, packed, magic=magic, attributes=codec)
    assert peer.produce(topic, records, 2).error_code in (2, 10)
    assert server.memory() < MEMORY


@pytest.mark.parametrize("codec", [GZIP, LZ4, ZSTD])
def test_a_bomb_that_was_stored_opaque_does_not_go_off_when_it_is_converted(
    server, bad_day, peer, topic, codec
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


def test_many_bombs_at_a_time_go_off_one_after_the_other(server, bad_day, topic):
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
def test_an_impossible_offset_is_out_of_range(bad_day, peer, topic, offset):
    assert peer.fetch(topic, offset).error_code == 1


@pytest.mark.parametrize("size", [0, -1, -(2**31), 2**31 - 1])
def test_an_impossible_fetch_size_is_answered(bad_day, peer, topic, size):
    peer.produce(topic, batch(SAMPLES))
    assert peer.fetch(topic, 0, max_bytes=size).error_code == 0


# behaviour


@pytest.fixture(scope="module")
def big(server):
    """A topic of 64 MiB."""
    with server.peer() as peer:
        peer.create_topic("big")
        records = batch([Sample(0, 1_700_000_000_000, None, os.urandom(BATCH))])
        for _ in range(64):
            assert peer.produce("big", records).error_code == 0
    return "big"


def test_slow_readers_of_a_big_topic_hold_no_more_than_the_limit(server, bad_day, big):
    before = server.memory()
    readers = [server.peer(receive_buffer=4096) for _ in range(READERS)]
    for reader in readers:
        reader.send(*[encode_request(fetch_request(big, 0), 4)] * 5)
    time.sleep(2)
    assert bad_day.makes_progress()
    grown = server.memory() - before
    for reader in readers:
        reader.reset()
    # All that they asked for would be 3 GiB.
    assert grown < IN_FLIGHT + READERS * 3 * BATCH


def test_one_that_reads_slowly_gets_all_in_the_end(server, bad_day, big):
    with server.peer(receive_buffer=4096) as reader:
        reader.send(
            encode_request(fetch_request(big, 0), 4), encode_request(fetch_request(big, 1), 4)
        )
        time.sleep(0.5)
        assert len(reader.receive()) > BATCH
        assert len(reader.receive()) > BATCH


def test_clients_that_vanish_amid_a_request_leave_nothing_behind(server, bad_day, topic):
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


def test_a_flood_of_requests_whose_answers_nobody_reads_is_not_read(server, bad_day):
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
    assert bad_day.makes_progress()
    assert server.memory() < before + 20 * 8 * MIB
    for peer in floods:
        peer.reset()


def test_five_thousand_idle_connections_are_held_and_others_served(server, bad_day):
    wanted = IDLE_CONNECTIONS + 500
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < wanted:
        message = f"5,000 connections need {wanted} open files, and the hard limit is {hard} (`ulimit -Hn`)"
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
        assert bad_day.makes_progress()
        # Twice what `max_connections` says of each.
        assert server.memory() - before < IDLE_CONNECTIONS * 20 * 1024
    finally:
        for client in idle:
            client.close()


# log-in


@pytest.fixture(scope="module")
def locked(tmp_path_factory):
    """A gateway with a log-in."""
    with asking_who_is_there(tmp_path_factory.mktemp("locked")) as started:
        yield started


@pytest.fixture
def hasty(tmp_path):
    """One that gives a log-in two seconds."""
    with asking_who_is_there(tmp_path, connection_authentication_timeout_ms=2000) as started:
        yield started


@contextmanager
def asking_who_is_there(folder, **settings):
    users = folder / "users"
    from auth.users import PasswordHash, edit_users

    with edit_users(users) as found:
        found["alice"] = PasswordHash.of("secret")
    with gateway(
        folder,
        listeners=("SASL_PLAINTEXT",),
        users_file=users,
        sasl_max_waiting_checks=20,
        **settings,
    ) as started:
        yield started
        assert started.stop() == 0
        assert not [line for line in started.lines() if " error " in line]


def log_in(peer, token, version):
    """Handshake and token. What the gateway answers to the token; None for a hang-up."""
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


def test_the_right_password_is_let_in_on_both_roads(locked):
    with locked.peer() as bare, locked.peer() as wrapped:
        assert log_in(bare, TOKEN, 0) == b""
        assert log_in(wrapped, TOKEN, 1) == 0
        bare.create_topic("let-in")
        wrapped.create_topic("let-in")


def test_a_wrong_password_is_told_or_hung_up_on_and_never_left_hanging(locked):
    for version, told in ((0, None), (1, 58)):
        with locked.peer() as peer:
            assert log_in(peer, b"\0alice\0wrong-password", version) == told
            assert peer.is_closed()
            (line,) = refused(locked, peer)
            assert "login failed" in line
    assert "wrong-password" not in locked.log.read_text()


def test_requests_behind_a_wrong_password_are_not_served(locked):
    with locked.peer() as peer:
        handshake = encode_request(SaslHandshakeRequest(version=1, mechanism="PLAIN"), 1)
        wrong = encode_request(SaslAuthenticateRequest(version=0, auth_bytes=b"\0alice\0no"), 0)
        peer.send(
            handshake,
            wrong,
            encode_request(fetch_request("let-in", 0), 4),
            encode_request(SaslAuthenticateRequest(version=0, auth_bytes=TOKEN), 0),
        )
        assert peer.receive() is not None
        assert SaslAuthenticateResponse.decode(peer.receive()[4:], version=0).error_code == 58
        assert peer.receive() is None


def test_silence_is_hung_up_on_wherever_it_falls(hasty):
    handshake = encode_request(SaslHandshakeRequest(version=0, mechanism="PLAIN"), 0)
    silences = [
        b"",
        b"\0\0",
        struct.pack(">i", len(handshake)) + handshake,
        struct.pack(">i", 1000) + b"x",
    ]
    peers = [hasty.peer() for _ in silences]
    for peer, said in zip(peers, silences, strict=True):
        peer.send_bytes(said)
    for peer in peers:
        assert peer.is_closed()
        assert len(refused(hasty, peer)) == 1
        peer.reset()


def test_a_token_of_more_than_its_limit_is_hung_up_on(locked):
    for version in (0, 1):
        with locked.peer() as peer:
            peer.send(
                encode_request(SaslHandshakeRequest(version=version, mechanism="PLAIN"), version)
            )
            peer.receive()
            peer.send_bytes(struct.pack(">i", 600 << 10) + b"x" * 1000)
            assert peer.is_closed()
            assert len(refused(locked, peer)) == 1


def test_a_flood_of_tokens_on_one_connection_ends_with_the_first_that_fails(locked):
    before = locked.memory()
    with locked.peer() as peer:
        peer.send(encode_request(SaslHandshakeRequest(version=0, mechanism="PLAIN"), 0))
        peer.receive()
        flood = b"".join(struct.pack(">i", 20) + b"\0alice\0" + b"x" * 13 for _ in range(5000))
        for _ in range(20):
            peer.send_bytes(flood)
        assert peer.is_closed()
    assert locked.memory() < before + 40 * MIB


def test_a_storm_of_wrong_passwords_keeps_nobody_out_for_long(locked):
    storm = [locked.peer() for _ in range(200)]
    for peer in storm:
        peer.send(
            encode_request(SaslHandshakeRequest(version=0, mechanism="PLAIN"), 0), b"\0alice\0guess"
        )
    began = time.monotonic()
    while True:
        with locked.peer() as alice:
            # Too many wait: a client that is hung up on comes again.
            if log_in(alice, TOKEN, 0) == b"":
                break
        assert time.monotonic() - began < 180
    for peer in storm:
        assert peer.is_closed()
        peer.reset()
    assert locked.memory() < MEMORY


def test_a_raw_gssapi_token_is_refused_by_name(locked):
    with locked.peer() as peer:
        peer.send(bytes.fromhex("6082024b06092a864886f71201020201006e") + bytes(500))
        assert peer.is_closed()
        (line,) = refused(locked, peer)
        assert "GSSAPI" in line


# TLS


@pytest.fixture(scope="module")
def secure(tmp_path_factory):
    from tests.certificates import Authority

    folder = tmp_path_factory.mktemp("secure")
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


def test_plain_text_on_a_tls_listener_is_hung_up_on(secure):
    with secure.peer() as peer:
        peer.send(struct.pack(">hhih", 18, 0, 1, -1))
        assert peer.is_closed()


def test_a_tls_listener_turns_away_what_is_too_much(secure):
    inside = [let_in(secure) for _ in range(3)]
    with secure.peer() as fourth:
        assert fourth.is_closed()
        assert "max_connections=3" in refused(secure, fourth)[0]
    for one in inside:
        one.close()
    let_in(secure).close()


def let_in(secure):
    """A connection that is served, as soon as there is room for it: those that have gone may still be there."""
    end = time.monotonic() + 60
    while True:
        late = secure.peer()
        try:
            wrapped = secure.trust.wrap_socket(late.socket, server_hostname="localhost")
            wrapped.sendall(struct.pack(">ihhih", 10, 18, 0, 7, -1))
            assert wrapped.recv(8)[4:] == b"\0\0\0\x07"
            return wrapped
        except OSError:
            late.socket.close()
            assert time.monotonic() < end
            time.sleep(0.05)
