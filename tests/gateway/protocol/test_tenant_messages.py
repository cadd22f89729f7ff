"""Names of a client that is bound to a namespace, from its frames to its replies."""

from __future__ import annotations

from typing import Any

import pytest
from kafka.protocol.metadata.metadata import MetadataRequest, MetadataResponse
from kafka.protocol.sasl import SaslAuthenticateResponse

from auth.mechanism import AuthenticationFailed, Principal, SaslOutcome
from gateway.protocol.errors import ErrorCode
from gateway.protocol.routes import EncodedReply
from gateway.protocol.session import LoginSession, SessionLifetime
from gateway.protocol.tenant_messages import reply_to_client, request_from_client
from gateway.security.tenants import Tenants
from gateway.topics.tenant_scope import ForeignName, TenantScope
from tests.fakes.broker import BrokerEnvironment, ended, open_environment
from tests.fakes.connection import MemoryClient, ScriptedMechanism, authenticate, handshake, request

SALES = TenantScope("acme/sales")


class NamedMechanism(ScriptedMechanism):
    """Accepts any token as the user's name."""

    def __init__(self, tenant: str | None = None) -> None:
        super().__init__("PLAIN", {})
        self.tenant = tenant

    async def _respond(self, token: bytes) -> SaslOutcome:
        return SaslOutcome(b"", Principal("User", token.decode(), self.tenant))


def client_of(env: BrokerEnvironment, mechanism: NamedMechanism) -> MemoryClient:
    tenants = Tenants("public/default", ["acme/sales", "rival/shop"])
    return MemoryClient([mechanism], broker=env.broker, listener="PLAINTEXT", tenants=tenants)


@pytest.fixture
def env() -> BrokerEnvironment:
    env = open_environment()
    env.store.has_namespaces = True
    env.topic("rival/shop/treasure")
    return env


def logged_in(env: BrokerEnvironment, user: str, version: int = 1, **more: Any) -> MemoryClient:
    client = client_of(env, NamedMechanism(**more))
    token = user.encode()
    client.send(handshake("PLAIN", version), authenticate(token) if version else token)
    client.receive()
    return client


def topics_of(client: MemoryClient, *names: str) -> list[tuple[str, int]]:
    topics = [MetadataRequest.MetadataRequestTopic(name=name) for name in names] or None
    client.send(request(MetadataRequest(version=4, topics=topics, allow_auto_topic_creation=True)))
    (frame,) = client.receive()
    reply = MetadataResponse.decode(frame[4:], version=4)
    return sorted((row.name, row.error_code) for row in reply.topics)


@pytest.mark.parametrize("version", [0, 1])
def test_topic_created_by_a_bound_client_is_in_its_namespace(
    env: BrokerEnvironment, version: int
) -> None:
    """Old clients log in with bare tokens, new ones with SaslAuthenticate."""
    client = logged_in(env, "acme/sales/app", version)
    assert topics_of(client, "orders") == [("orders", 0)]
    assert topics_of(client) == [("orders", 0)]
    assert topics_of(client, "rival/shop/treasure") == [
        ("rival/shop/treasure", ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    ]
    assert {live.name for live in env.broker.topics} == {
        "persistent://acme/sales/orders",
        "persistent://rival/shop/treasure",
    }


def test_namespace_of_a_login_counts_without_one_in_its_name(env: BrokerEnvironment) -> None:
    assert topics_of(logged_in(env, "app", tenant="rival/shop")) == [("treasure", 0)]


def test_client_without_namespace_sees_all_topics_by_full_names(env: BrokerEnvironment) -> None:
    assert topics_of(logged_in(env, "app")) == [("persistent://rival/shop/treasure", 0)]


def test_login_to_a_namespace_that_is_not_served_fails_with_the_reason(
    env: BrokerEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures: list[tuple[Any, ...]] = []
    monkeypatch.setattr(
        type(env.broker.audit), "login_failed", lambda _, *row: failures.append(row)
    )
    client = client_of(env, NamedMechanism())
    client.send(handshake("PLAIN", 1), authenticate(b"acme/other/app"))
    frame = client.receive()[-1]
    assert client.session.is_closed
    reason = "namespace acme/other is not served; add it to pulsar_allowed_namespaces"
    assert [row[3] for row in failures] == [reason]
    reply = SaslAuthenticateResponse.decode(frame[4:], version=0)
    assert (reply.error_code, reply.error_message) == (
        ErrorCode.SASL_AUTHENTICATION_FAILED,
        f"Authentication failed: {reason}",
    )


def test_principal_without_multi_tenancy_is_not_bound() -> None:
    session = LoginSession(None)
    session.identify(Principal("User", "app", "acme/sales"))
    assert session.scope is None


def test_reauthentication_cannot_change_the_namespace() -> None:
    session = LoginSession(
        {"PLAIN": NamedMechanism()},
        lifetime=SessionLifetime(10_000),
        tenants=Tenants("public/default", ["acme/sales", "rival/shop"]),
    )
    for user in (b"acme/sales/app", b"acme/sales/app"):
        session.handshake("PLAIN", 1)
        ended(session.token(user, 1))
        assert session.scope == SALES
        session.began = -10
    session.handshake("PLAIN", 1)
    with pytest.raises(AuthenticationFailed, match="cannot change the principal"):
        ended(session.token(b"rival/shop/app", 1))


def test_reauthentication_in_another_namespace_is_refused_with_the_reason() -> None:
    """A token names the user, and the client its namespace."""
    mechanism = NamedMechanism("acme/sales")
    session = LoginSession(
        {"PLAIN": mechanism}, lifetime=SessionLifetime(max_ms=10_000),
        tenants=Tenants("public/default", ["acme/sales", "rival/shop"]),
    )  # fmt: skip
    session.handshake("PLAIN", 1)
    ended(session.token(b"app", 1))
    session.handshake("PLAIN", 1)
    mechanism.tenant = "rival/shop"
    with pytest.raises(AuthenticationFailed, match="namespace from acme/sales to rival/shop"):
        ended(session.token(b"app", 1))
    assert session.is_closed


def test_encoded_reply_is_unchanged() -> None:
    reply = EncodedReply([b"\0acme/sales\0g"])
    assert reply_to_client(reply, 0, SALES) is reply


def test_request_is_translated_and_a_foreign_name_in_a_reply_is_a_bug() -> None:
    topic = MetadataRequest.MetadataRequestTopic(name="t")
    asked = request_from_client(MetadataRequest(topics=[topic]), 4, SALES)
    assert asked.topics[0].name == "persistent://acme/sales/t"
    row = MetadataResponse.MetadataResponseTopic(
        error_code=0, name="persistent://rival/shop/treasure", is_internal=False, partitions=[]
    )
    with pytest.raises(ForeignName):
        reply_to_client(MetadataResponse(topics=[row]), 4, SALES)
