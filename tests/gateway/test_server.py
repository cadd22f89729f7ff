"""A gateway process: start, connection limits, TLS, and shutdown within a bounded time."""

from __future__ import annotations

import select
import signal
import socket
import ssl
import struct
import threading
import time
from contextlib import suppress

import pytest
from kafka.protocol.consumer.fetch import FetchResponse
from kafka.protocol.producer.produce import ProduceResponse

from gateway.net.transport import HALF_CLOSE_SECONDS
from tests.records.sample_records import Sample, batch
from tests.testkit.certificates import Authority
from tests.testkit.gateway import (
    MIB,
    Peer,
    Stopwatch,
    encode_request,
    fetch_request,
    gateway,
    produce_request,
)

pytestmark = [pytest.mark.peer]

RECORDS = batch([Sample(0, 1_700_000_000_000, b"k", b"v" * 100)])

#: Seconds for a shutdown, by the stopwatch: far below that of PATIENT, however busy the machine. It
#: takes one second, in which a client may close its side (`transport.HALF_CLOSE_SECONDS`).
SOON = 20.0
PATIENT = {"shutdown_timeout_ms": 90_000}

#: Seconds for the shutdown of an idle gateway, by the stopwatch; it takes 0.04 s.
IDLE_STOP_SECONDS = 0.5


def stop(server):
    """Send SIGTERM and return (exit code, seconds by the stopwatch)."""
    return server.stop_measured(Stopwatch(server))


def start_long_poll(peer):
    """Start a long poll. It is sent with a request whose reply shows that both arrived."""
    peer.send(
        encode_request(fetch_request("t", 0), 4),
        encode_request(fetch_request("t", 0, max_wait_ms=60_000), 4),
    )
    assert peer.receive() is not None
    time.sleep(0.3)


def has_unread_reply(peer):
    """Whether unread bytes of a reply have arrived."""
    return bool(select.select([peer.socket], [], [], 60)[0])


def test_idle_gateway_stops_in_half_a_second_and_logs_it(tmp_path):
    with gateway(tmp_path, **PATIENT) as server, Peer(server.address) as idle:
        idle.create_topic("t")
        begun = len(server.lines())
        # A client that was active until now gets time to close its side.
        time.sleep(1.5 * HALF_CLOSE_SECONDS)
        code, seconds = stop(server)
        (line,) = server.lines()[begun:]
        assert (code, " stopped seconds=" in line) == (0, True)
        assert seconds < IDLE_STOP_SECONDS
        assert idle.receive() is None


def test_shutdown_ends_and_answers_long_poll(tmp_path):
    with gateway(tmp_path, **PATIENT) as server, Peer(server.address) as consumer:
        consumer.create_topic("t")
        start_long_poll(consumer)
        watch = Stopwatch(server)
        server.process.send_signal(signal.SIGTERM)
        frame = consumer.receive()
        reply = FetchResponse.decode(frame[4:], version=4)
        assert reply.responses[0].partitions[0].error_code == 0
        assert consumer.receive() is None
        code, seconds = server.stop_measured(watch)
        assert code == 0
        assert seconds < SOON


@pytest.mark.parametrize("names", [1, 5000])
def test_large_request_behind_waiting_fetch_ends_wait(tmp_path, names):
    """The rest of the request is read only after the Fetch is answered.

    A Fetch of many partitions is large as well.
    """
    with gateway(tmp_path) as server, Peer(server.address) as peer:
        peer.create_topic("t")
        asked = fetch_request("t", 0, max_wait_ms=600_000)
        asked.topics[0].partitions *= names
        peer.send(encode_request(asked, 4))
        time.sleep(0.3)
        peer.send(
            encode_request(
                produce_request(
                    "t", batch([Sample(0, 1_700_000_000_000, b"k", b"v" * (MIB - 1000))])
                ),
                7,
            )
        )
        assert (
            FetchResponse.decode(peer.receive()[4:], version=4)
            .responses[0]
            .partitions[0]
            .error_code
            == 0
        )
        assert (
            ProduceResponse.decode(peer.receive()[4:], version=7)
            .responses[0]
            .partition_responses[0]
            .error_code
            == 0
        )


def test_acknowledged_records_survive_and_sent_requests_are_answered(tmp_path):
    count = 50
    with gateway(tmp_path) as server, Peer(server.address) as producer:
        producer.create_topic("t")
        producer.send(
            *[encode_request(produce_request("t", RECORDS), 7, index) for index in range(count)]
        )
        first = producer.receive()
        server.process.send_signal(signal.SIGTERM)
        answered = [first]
        while (frame := producer.receive()) is not None:
            answered.append(frame)
        assert server.process.wait(60) == 0
    offsets = [
        ProduceResponse.decode(frame[4:], version=7).responses[0].partition_responses[0].base_offset
        for frame in answered
    ]
    assert offsets == list(range(len(answered)))
    assert [int.from_bytes(frame[:4], "big") for frame in answered] == list(range(len(answered)))
    with gateway(tmp_path) as server, Peer(server.address) as consumer:
        assert consumer.fetch("t", 0).high_watermark >= len(answered)


def test_shutdown_under_load_does_not_reset_connections(tmp_path):
    """A reset would discard replies that the client has not read yet."""
    asked = encode_request(produce_request("t", RECORDS), 7)
    with gateway(tmp_path) as server, Peer(server.address) as busy:
        busy.create_topic("t")
        is_over = threading.Event()

        def send_requests():
            while not is_over.is_set():
                busy.send_bytes((struct.pack(">i", len(asked)) + asked) * 100)

        asking = threading.Thread(target=send_requests, daemon=True)
        asking.start()
        try:
            assert busy.receive() is not None
            server.process.send_signal(signal.SIGTERM)
            # A reset raises here.
            while busy.socket.recv(MIB):
                pass
        finally:
            is_over.set()
            with suppress(OSError):
                busy.socket.shutdown(socket.SHUT_RDWR)
            asking.join(10)
        assert server.process.wait(60) == 0


def test_connection_with_unread_reply_is_aborted_at_drain_timeout(tmp_path):
    with (
        gateway(tmp_path, shutdown_timeout_ms=1000) as server,
        Peer(server.address, receive_buffer=4096) as slow,
    ):
        slow.create_topic("t")
        large = batch([Sample(0, 1_700_000_000_000, None, bytes(MIB - 200))])
        for _ in range(16):
            slow.produce("t", large)
        slow.send(encode_request(fetch_request("t", 0), 4))
        assert has_unread_reply(slow)
        began = time.monotonic()
        code, seconds = stop(server)
        assert code == 0
        assert time.monotonic() - began > 0.9
        assert seconds < 1 + SOON
        assert (
            len(
                [
                    line
                    for line in server.lines()
                    if "connections aborted at the drain timeout" in line
                ]
            )
            == 1
        )


def test_slow_reader_receives_whole_reply_during_shutdown(tmp_path):
    with gateway(tmp_path, **PATIENT) as server, Peer(server.address, receive_buffer=4096) as slow:
        slow.create_topic("t")
        large = batch([Sample(0, 1_700_000_000_000, None, bytes(MIB - 200))])
        for _ in range(8):
            slow.produce("t", large)
        slow.send(encode_request(fetch_request("t", 0), 4))
        assert has_unread_reply(slow)
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        assert len(slow.receive()) > 8 * (MIB - 200)
        assert server.process.wait(60) == 0


def connect_repeatedly(seconds, server):
    watch = Stopwatch(server)
    while watch.seconds() < seconds:
        socket.create_connection(server.address, timeout=60).close()
        time.sleep(0.02)


def test_no_connection_is_accepted_after_shutdown_begins(tmp_path):
    with gateway(tmp_path, **PATIENT) as server, Peer(server.address, receive_buffer=4096) as slow:
        slow.create_topic("t")
        large = batch([Sample(0, 1_700_000_000_000, None, bytes(MIB - 200))])
        for _ in range(16):
            slow.produce("t", large)
        slow.send(encode_request(fetch_request("t", 0), 4))
        assert has_unread_reply(slow)
        server.process.send_signal(signal.SIGTERM)
        with pytest.raises(ConnectionRefusedError):
            connect_repeatedly(SOON, server)
        assert server.process.poll() is None
        slow.reset()
        assert server.process.wait(60) == 0


def test_second_sigterm_is_ignored(tmp_path):
    with gateway(tmp_path) as server, Peer(server.address) as consumer:
        consumer.create_topic("t")
        start_long_poll(consumer)
        begun = len(server.lines())
        server.process.send_signal(signal.SIGTERM)
        assert consumer.receive() is not None
        server.process.send_signal(signal.SIGINT)
        assert server.stop() == 0
        assert all(" stopped " in line for line in server.lines()[begun:])
        assert len(server.lines()) == begun + 1


def test_client_that_keeps_sending_does_not_delay_shutdown(tmp_path):
    with gateway(tmp_path, **PATIENT) as server, Peer(server.address) as busy:
        busy.create_topic("t")
        is_over = threading.Event()

        def send_requests():
            request = encode_request(fetch_request("t", 0), 4)
            while not is_over.is_set():
                busy.send_bytes(struct.pack(">i", len(request)) + request)

        def read():
            while busy.receive() is not None:
                pass

        threads = [threading.Thread(target=work, daemon=True) for work in (send_requests, read)]
        for thread in threads:
            thread.start()
        time.sleep(0.3)
        code, seconds = stop(server)
        is_over.set()
        for thread in threads:
            thread.join(10)
        assert code == 0
        assert seconds < SOON


# TLS


@pytest.fixture(scope="module")
def authority():
    return Authority()


@pytest.fixture
def files(authority, tmp_path):
    certificate, key = authority.sign("server").write(tmp_path, "server")
    return {"ssl_certificate_file": certificate, "ssl_key_file": key}


@pytest.fixture
def trust(authority, tmp_path):
    return ssl.create_default_context(cafile=str(authority.write(tmp_path)))


@pytest.mark.parametrize("is_idle", [True, False])
def test_shutdown_does_not_wait_for_tls_close_notify(tmp_path, files, trust, is_idle):
    with gateway(tmp_path, listeners=("SSL",), **PATIENT, **files) as server:
        with trust.wrap_socket(Peer(server.address).socket, server_hostname="localhost") as silent:
            silent.sendall(struct.pack(">ihhih", 10, 18, 0, 7, -1))
            assert silent.recv(MIB)[4:8] == b"\0\0\0\x07"
            time.sleep(1.5 * HALF_CLOSE_SECONDS if is_idle else 0)
            code, seconds = stop(server)
            # The gateway's close_notify. Without it this raises SSLEOFError.
            assert silent.recv(1) == b""
        assert code == 0
        assert seconds < SOON
        (line,) = server.lines()
        assert " stopped seconds=" in line


def test_shutdown_does_not_wait_for_tls_handshake(tmp_path, files):
    with (
        gateway(tmp_path, listeners=("SSL",), **PATIENT, **files) as server,
        Peer(server.address) as silent,
    ):
        silent.send_bytes(b"\x16\x03\x01")
        time.sleep(0.3)
        code, seconds = stop(server)
        assert code == 0
        assert seconds < SOON
        (line,) = server.lines()
        assert " stopped seconds=" in line


def test_shutdown_does_not_wait_for_tls_client_that_closes(tmp_path, files, trust):
    with gateway(tmp_path, listeners=("SSL",), **PATIENT, **files) as server:
        with trust.wrap_socket(Peer(server.address).socket, server_hostname="localhost") as polite:
            polite.sendall(struct.pack(">ihhih", 10, 18, 0, 7, -1))
            assert polite.recv(MIB)[4:8] == b"\0\0\0\x07"
            watch = Stopwatch(server)
            server.process.send_signal(signal.SIGTERM)
            assert polite.recv(1) == b""
            polite.unwrap()
        code, seconds = server.stop_measured(watch)
        assert code == 0
        assert seconds < SOON
        assert all(" stopped " in line for line in server.lines())


def test_plain_text_on_tls_listener_is_logged_in_one_line(tmp_path, files):
    with gateway(tmp_path, listeners=("SSL",), **files) as server, Peer(server.address) as peer:
        peer.send(struct.pack(">hhih", 18, 0, 1, -1))
        assert peer.is_closed()
        (line,) = server.wait_for_lines(1, f"peer={peer.name} ")
        assert "TLS" in line


def test_untrusted_certificate_is_logged_in_one_line(tmp_path, files):
    with gateway(tmp_path, listeners=("SSL",), **files) as server, Peer(server.address) as peer:
        name = peer.name
        with pytest.raises(ssl.SSLCertVerificationError):
            ssl.create_default_context().wrap_socket(peer.socket, server_hostname="localhost")
        (line,) = server.wait_for_lines(1, f"peer={name} ")
        assert "TLS" in line


def test_tls_handshake_has_login_timeout(tmp_path, files, trust):
    with (
        gateway(
            tmp_path, listeners=("SSL",), connection_authentication_timeout_ms=5000, **files
        ) as server,
        Peer(server.address) as silent,
    ):
        peer = Peer(server.address)
        with trust.wrap_socket(peer.socket, server_hostname="localhost") as quick:
            assert silent.is_closed()
            assert "in time" in server.wait_for_lines(1, f"peer={silent.name} ")[0]
            quick.sendall(struct.pack(">ihhih", 10, 18, 0, 7, -1))
            assert quick.recv(8)[4:] == b"\0\0\0\x07"


def test_port_scan_is_not_logged(tmp_path, files):
    with gateway(tmp_path, listeners=("SSL", "PLAINTEXT"), **files) as server:
        begun = len(server.lines())
        for address in server.addresses.values():
            Peer(address).socket.close()
            Peer(address).reset()
        time.sleep(0.3)
        assert server.lines()[begun:] == []


# compiled modules


@pytest.mark.parametrize(
    ("missing", "words"),
    [
        (["records._kernel"], "records are converted in plain Python"),
        (["gateway.protocol.wire._plain"], "produce and fetch requests are read in plain Python"),
        (
            ["records._kernel", "gateway.protocol.wire._plain"],
            "records are converted in plain Python",
        ),
    ],
    ids=["kernel", "plain", "both"],
)
def test_missing_compiled_module_is_logged_at_start(tmp_path, missing, words):
    (tmp_path / "sitecustomize.py").write_text(
        f"import sys\nsys.modules.update(dict.fromkeys({missing}))\n"
    )
    with (
        gateway(tmp_path, environment={"PYTHONPATH": str(tmp_path)}) as server,
        Peer(server.address) as peer,
    ):
        peer.create_topic("t")
        assert peer.produce("t", RECORDS).error_code == 0
        assert peer.fetch("t", 0, version=2).error_code == 0
        (line,) = server.wait_for_lines(1, "")
        assert words in line


def test_pure_python_can_be_selected(tmp_path):
    with gateway(tmp_path, environment={"KOPGATE_PURE_PYTHON": "1"}) as server:
        (line,) = server.wait_for_lines(1, "")
        assert "KOPGATE_PURE_PYTHON is set" in line


# connection limits


def test_connections_over_limit_are_refused_until_others_close(
    tmp_path,
):
    with gateway(tmp_path, max_connections=2) as server:
        inside = [Peer(server.address) for _ in range(2)]
        for peer in inside:
            peer.create_topic("t")
        with Peer(server.address) as third:
            assert third.is_closed()
            (line,) = server.wait_for_lines(1, f"peer={third.name} ")
            assert "max_connections=2" in line
        inside[0].create_topic("u")
        inside.pop().reset()
        connect_when_possible(server)


def connect_when_possible(server):
    """Connect, retrying until the gateway has noticed that others closed."""
    end = time.monotonic() + 60
    while True:
        with Peer(server.address) as late:
            late.send_bytes(struct.pack(">ihhih", 10, 18, 0, 7, -1))
            if late.receive() is not None:
                return
        assert time.monotonic() < end
        time.sleep(0.05)


def test_connections_per_address_are_limited(tmp_path):
    with gateway(tmp_path, max_connections_per_ip=1) as server, Peer(server.address) as first:
        first.create_topic("t")
        with Peer(server.address) as second:
            assert second.is_closed()
            assert "max_connections_per_ip=1" in server.wait_for_lines(1, f"peer={second.name} ")[0]


def test_shutdown_does_not_wait_for_the_header_of_a_proxy(tmp_path):
    with gateway(tmp_path, proxy_protocol_from="127.0.0.1") as server, Peer(server.address) as peer:
        peer.send_bytes(b"PROXY TCP4 192.0.2.7 ")
        with Peer(server.address) as other:
            other.send_bytes(b"PROXY UNKNOWN\r\n")
            other.create_topic("t")
        begun = len(server.lines())
        assert server.stop() == 0
        assert peer.is_closed()
        assert [line for line in server.lines()[begun:] if "stopped" not in line] == []


def test_idle_connection_is_closed(tmp_path):
    # Long enough for a request on a machine that stalls for a second or two.
    with gateway(tmp_path, connections_max_idle_ms=5000) as server, Peer(server.address) as peer:
        peer.create_topic("t")
        begun = len(server.lines())
        assert peer.is_closed()
        assert server.lines()[begun:] == []
