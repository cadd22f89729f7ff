"""Attacks before the log-in on a gateway process: requests, storms of wrong log-ins, and log-ins
that never end.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from kafka.protocol.admin.acl import DescribeAclsRequest, DescribeAclsResponse
from kafka.protocol.admin.groups import ListGroupsRequest, ListGroupsResponse
from kafka.protocol.admin.users import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)
from kafka.protocol.metadata.metadata import MetadataRequest, MetadataResponse
from kafka.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

from auth.scram import salt_password
from auth.users import PasswordHash, edit_users
from gateway import handlers as handlers  # registers their routes
from gateway.protocol.routes import supported_versions
from gateway.protocol.wire.api_keys import ApiKey
from tests.auth.test_scram import ScramClient
from tests.gateway.security.requests_by_api import request_of
from tests.testkit.gateway import MIB, GatewayProcess, Peer, encode_request, gateway

pytestmark = [pytest.mark.peer, pytest.mark.xdist_group("hostile")]

PASSWORD = "open sesame"
STORM = 1_000

#: Memory of a connection before the log-in (10 KiB) with a token of 4 KiB and what is derived from
#: it, and room for what the allocator keeps.
CONNECTION_BYTES = 40 << 10
ALLOCATOR_BYTES = 20 * MIB

#: APIs of the log-in itself, for which other tests exist.
OF_LOGIN = {ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    folder = tmp_path_factory.mktemp("attacked")
    with edit_users(folder / "users") as users:
        users["alice"] = PasswordHash.of(PASSWORD)
    with gateway(
        folder,
        listeners=("SASL_PLAINTEXT",),
        by_fork=False,
        users_file=folder / "users",
        sasl_enabled_mechanisms="PLAIN,SCRAM-SHA-256",
        authorizer="acls",
        super_users="User:alice",
        connection_authentication_timeout_ms=10_000,
        connection_failed_authentication_delay_ms=0,
    ) as started:
        with log_in_by_password(started) as admin:
            salt = b"salt-of-bob"
            upsertion = AlterUserScramCredentialsRequest.ScramCredentialUpsertion(
                name="bob",
                mechanism=1,
                iterations=4096,
                salt=salt,
                salted_password=salt_password("SCRAM-SHA-256", PASSWORD, salt, 4096),
            )
            request = AlterUserScramCredentialsRequest(deletions=[], upsertions=[upsertion])
            reply = admin.request(request, AlterUserScramCredentialsResponse, 0)
            assert reply.results[0].error_code == 0
        yield started
        assert started.stop() == 0
        assert not [line for line in started.lines() if " error " in line]


def handshake(mechanism: str, version: int) -> bytes:
    return encode_request(SaslHandshakeRequest(version=version, mechanism=mechanism), version)


def log_in_by_password(server: GatewayProcess) -> Peer:
    peer = server.peer()
    peer.send(handshake("PLAIN", 0), f"\0alice\0{PASSWORD}".encode())
    assert peer.receive() is not None
    assert peer.receive() == b""
    return peer


def scram_first(peer: Peer, client: ScramClient) -> bytes:
    """Send the first token bare; return the server's."""
    peer.send(handshake("SCRAM-SHA-256", 0), client.first().encode())
    assert peer.receive() is not None
    answer = peer.receive()
    assert answer is not None
    return answer


def log_in_by_scram(server: GatewayProcess) -> None:
    with server.peer() as peer:
        client = ScramClient(user="bob", password=PASSWORD)
        peer.send(client.final(scram_first(peer, client)).encode())
        assert peer.receive() == client.verifier()


def stored(peer: Peer) -> tuple[int, int, int, int]:
    """Numbers of topics, groups, ACLs and SCRAM credentials."""
    every_acl = DescribeAclsRequest(
        resource_type_filter=1,
        resource_name_filter=None,
        pattern_type_filter=1,
        principal_filter=None,
        host_filter=None,
        operation=1,
        permission_type=1,
    )
    credentials = DescribeUserScramCredentialsRequest(users=None)
    return (
        len(peer.request(MetadataRequest(version=1, topics=None), MetadataResponse, 1).topics),
        len(peer.request(ListGroupsRequest(version=0), ListGroupsResponse, 0).groups),
        len(peer.request(every_acl, DescribeAclsResponse, 1).resources),
        len(peer.request(credentials, DescribeUserScramCredentialsResponse, 0).results),
    )


@pytest.mark.parametrize("state", ["initial", "bare tokens", "authenticate"])
def test_no_request_before_login_is_served(server: GatewayProcess, state: str) -> None:
    """Each API in its lowest and highest version. It changes nothing and gets no reply."""
    begun = len(server.lines())
    with log_in_by_password(server) as admin:
        before = stored(admin)
        sent = 0
        for key, bounds in supported_versions().items():
            for version in sorted(set(bounds)) if key not in OF_LOGIN else ():
                with server.peer() as peer:
                    if state != "initial":
                        peer.send(handshake("PLAIN", 0 if state == "bare tokens" else 1))
                        assert peer.receive() is not None
                    frame = encode_request(request_of(key, version), version)
                    token = SaslAuthenticateRequest(auth_bytes=f"\0alice\0{PASSWORD}".encode())
                    peer.send(frame, frame, encode_request(token, 0))
                    assert peer.receive() is None, (key, version)
                sent += 1
        assert sent > 60
        assert stored(admin) == before == (0, 0, 0, 1)
    words = "login failed" if state == "bare tokens" else "refused"
    assert len(server.wait_for_lines(sent, words, begun)) == sent


def test_storm_of_wrong_scram_logins_delays_no_login(server: GatewayProcess) -> None:
    """They need no queue: a correct log-in succeeds at once while all of them are open."""
    before, begun = server.memory(), len(server.lines())
    with ExitStack() as stack:
        storm = [stack.enter_context(server.peer()) for _ in range(STORM)]
        answers = {}
        for number, peer in enumerate(storm):
            client = ScramClient(user="bob" if number % 2 else "mallory", password="guess")
            answers[peer] = client, scram_first(peer, client)
        for number, (peer, (client, answer)) in enumerate(answers.items()):
            unproved = client.final(answer) if number < 2 else None
            nonce = answer.decode().split(",")[0]
            peer.send((unproved or f"c=biws,{nonce},p={'A' * 43}=").encode())
            if number % 250 == 0:
                log_in_by_scram(server)
                log_in_by_password(server).reset()
        for peer in storm:
            assert peer.receive() is None
    assert len(server.wait_for_lines(STORM, "login failed", begun)) == STORM
    assert server.memory() < before + STORM * CONNECTION_BYTES + ALLOCATOR_BYTES


def test_logins_that_never_end_are_limited_in_memory_and_time(server: GatewayProcess) -> None:
    """Connections with the largest first token, half of a token, or nothing at all."""
    before, begun = server.memory(), len(server.lines())
    with ExitStack() as stack:
        began = time.monotonic()
        peers = [stack.enter_context(server.peer()) for _ in range(STORM)]
        for number, peer in enumerate(peers):
            if number % 3 == 0:
                scram_first(peer, ScramClient(user="mallory", nonce="x" * 4000))
            elif number % 3 == 1:
                peer.send(handshake("PLAIN", 0))
                peer.send_bytes(b"\0\0\x10\0\0alice\0")
        log_in_by_scram(server)
        log_in_by_password(server).reset()
        assert server.memory() < before + STORM * CONNECTION_BYTES + ALLOCATOR_BYTES
        for peer in peers:
            assert peer.is_closed()
        assert time.monotonic() - began >= 10.0
    timed_out = server.wait_for_lines(STORM, "timed out", begun)
    assert len(timed_out) == STORM
    log_in_by_scram(server)
