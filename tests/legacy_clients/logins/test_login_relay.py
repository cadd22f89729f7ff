"""The relay counts what clients send to log in, and tells which log-ins were decided."""

from __future__ import annotations

import socket
import struct

import pytest

from tests.legacy_clients.logins.login_relay import RelayedConnection, login_relay


def frame(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


# API key, version, correlation id and no client id; then the rest.
API_VERSIONS = frame(bytes.fromhex("0012 0000 00000001 ffff"))
HANDSHAKE = {
    version: frame(struct.pack(">hhihh5s", 17, version, 2, -1, 5, b"PLAIN")) for version in (0, 1)
}
AUTHENTICATE = frame(bytes.fromhex("0024 0000 00000003 ffff 00000003") + b"\0a\0")
BARE_TOKEN = frame(b"\0a\0b")


@pytest.mark.parametrize("step", [1, 7, 1000])
@pytest.mark.parametrize(("version", "token"), [(0, BARE_TOKEN), (1, AUTHENTICATE)])
def test_tokens_after_a_handshake_are_counted(version: int, token: bytes, step: int) -> None:
    relayed = RelayedConnection("127.0.0.1:1")
    wire = API_VERSIONS + HANDSHAKE[version] + token
    for at in range(0, len(wire), step):
        relayed.client_sent(wire[at : at + step])
    assert (relayed.handshake, relayed.tokens) == (version, 1)


def test_login_is_decided_when_the_last_token_is_answered() -> None:
    relayed = RelayedConnection("127.0.0.1:1")
    relayed.client_sent(HANDSHAKE[1] + AUTHENTICATE)
    assert not relayed.has_decided("PLAIN")
    relayed.broker_answered()
    assert relayed.has_decided("PLAIN")
    assert not relayed.has_decided("SCRAM-SHA-256")


def test_broker_that_closes_after_the_client_has_not_decided() -> None:
    relayed = RelayedConnection("127.0.0.1:1")
    relayed.client_sent(HANDSHAKE[0] + BARE_TOKEN)
    relayed.client_closed()
    relayed.broker_answered()
    assert not relayed.has_decided("PLAIN")


def test_tls_is_relayed_without_being_understood() -> None:
    relayed = RelayedConnection("127.0.0.1:1")
    relayed.client_sent(bytes.fromhex("16 03 01 02 00 01 00 01 fc 03 03") + bytes(1000))
    assert (relayed.handshake, relayed.tokens) == (None, 0)


def test_relay_copies_both_directions_and_notes_its_peer() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        login_relay(f"127.0.0.1:{server.getsockname()[1]}") as relay,
    ):
        host, _, port = relay.address.rpartition(":")
        with socket.create_connection((host, int(port)), 10) as client:
            client.sendall(HANDSHAKE[0])
            broker, peer = server.accept()
            with broker:
                broker.settimeout(10)
                assert broker.recv(1000) == HANDSHAKE[0]
                broker.sendall(b"answer")
                assert client.recv(1000) == b"answer"
            assert client.recv(1000) == b""
    (relayed,) = relay.connections
    assert relayed.peer == "{}:{}".format(*peer)
    assert relayed.handshake == 0
    assert relay.began is not None
