"""Real clients log in by Kerberos, with a real KDC: each library that knows GSSAPI.

Java, which sends bare tokens without a handshake in 0.9, and Go have Kerberos themselves;
kafka-python, aiokafka and kcat use MIT's library and request mutual authentication. The wheels of
confluent-kafka and Sarama 1.19 do not know GSSAPI. kafka-python 1.3.5 leaves out the last token,
and cannot log in to Kafka either.
"""

from __future__ import annotations

import shutil
import struct
import time
import uuid
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kafka.protocol.metadata.metadata import MetadataRequest, MetadataResponse
from kafka.protocol.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

from auth.kerberos_acceptor import KerberosAcceptor
from auth.mechanism import AuthenticationBusy, AuthenticationFailed
from tests.examples import scaled
from tests.legacy_clients.brokers import are_required
from tests.legacy_clients.clients import (
    Client,
    DriverFailed,
    Record,
    Security,
    consume_in_group,
    produce,
    table,
)
from tests.peers.security.kerberos import Realm
from tests.testkit.cache import CannotInstall
from tests.testkit.certificates import Authority
from tests.testkit.gateway import GatewayProcess, Peer, gateway
from tests.testkit.traffic_rows import Row, read_audit_rows, read_rows

pytestmark = pytest.mark.peer

if are_required():
    import gssapi
else:
    gssapi = pytest.importorskip("gssapi", reason="install kopgate[gssapi]")

SASL_AUTHENTICATION_FAILED = 58
RULES = "RULE:[2:$1-$2](batch-.*)s/-/./g/U,DEFAULT"
#: Longer than the tests, but shorter than tickets are valid.
LIFETIME_MS = 3_600_000
RUN_SECONDS = 180.0
WAIT_SECONDS = 60.0
#: For clients that retry a refused log-in until this timeout.
PATIENCE_SECONDS = 5.0
#: By client: the path of its tokens, and its error after a refused log-in.
EXPECTED = {
    "java-0.9.0.1": ("none", "TimeoutException"),
    "java-0.10.0.1": ("handshake-v0-bare", "TimeoutException"),
    "java-0.10.2.2": ("handshake-v0-bare", "TimeoutException"),
    "java-0.11.0.3": ("handshake-v0-bare", "TimeoutException"),
    "java-1.0.0": ("handshake-v1", "SaslAuthenticationException"),
    "java-3.9.2": ("handshake-v1", "SaslAuthenticationException"),
    "java-4.4.0": ("handshake-v1", "SaslAuthenticationException"),
    "kafka-python-2.0.2": ("handshake-v0-bare", "NoBrokersAvailable"),
    "kafka-python-3.0.12": ("handshake-v1", "SaslAuthenticationFailedError"),
    "aiokafka-0.14.0": ("handshake-v1", "SaslAuthenticationFailed"),
    "sarama-1.61.1": ("handshake-v1", "SASL Authentication failed"),
    "franz-go-1.22.2": ("handshake-v1", "context deadline exceeded"),
    "kcat-1.7.1": ("handshake-v1", "SASL authentication error"),
}
SLOW = {"java-0.10.0.1", "java-0.10.2.2", "java-0.11.0.3", "java-1.0.0", "java-4.4.0"}
#: Each implementation: Java, MIT's in Python, Go, and Cyrus SASL.
REFUSED_IN_CI = {"java-3.9.2", "kafka-python-3.0.12", "sarama-1.61.1", "kcat-1.7.1"}
#: For Python 3.6. It is compiled, and only these tests need it.
PYTHON_GSSAPI = ("gssapi==1.7.3", "decorator==5.1.1")


@dataclass(frozen=True)
class Site:
    """A realm, and a gateway whose service is kafka/localhost."""

    realm: Realm
    server: GatewayProcess
    service_keytab: Path
    app_keytab: Path
    folder: Path

    @property
    def bootstrap(self) -> str:
        return f"localhost:{self.server.address[1]}"

    @property
    def tls_bootstrap(self) -> str:
        return f"localhost:{self.server.addresses['SASL_SSL'][1]}"

    def audited(self, count: int = 1, **fields: str) -> list[Row]:
        """Lines of the audit log with these fields, once there are `count` of them.

        The gateway answers a log-in before its line is in the file.
        """
        end = time.monotonic() + WAIT_SECONDS
        while True:
            rows = read_audit_rows(self.folder / "audit")
            found = [row for row in rows if fields.items() <= row.items()]
            if len(found) >= count or time.monotonic() > end:
                return found
            time.sleep(0.05)


@pytest.fixture(scope="module")
def realm() -> Iterator[Realm]:
    try:
        started = Realm.start()
    except CannotInstall as missing:
        (pytest.fail if are_required() else pytest.skip)(str(missing))
    with started as running:
        yield running


@pytest.fixture(scope="module")
def site(realm: Realm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("kerberos")
    keytab = realm.keytab("kafka/localhost")
    realm.keytab("http/localhost", "kafka/127.0.0.1")
    values = {
        "sasl_enabled_mechanisms": "GSSAPI",
        "sasl_kerberos_keytab_file": keytab,
        "sasl_kerberos_principal_to_local_rules": RULES,
        "group_initial_rebalance_delay_ms": 0,
        "connections_max_reauth_ms": LIFETIME_MS,
        "audit_log": folder / "audit",
        "traffic_log": folder / "traffic",
        "advertised": "SASL_PLAINTEXT://localhost:0,SASL_SSL://localhost:0",
    }
    authority = Authority()
    authority.write(folder)
    certificate, key = authority.sign().write(folder, "server")
    with gateway(
        folder,
        listeners=("SASL_PLAINTEXT", "SASL_SSL"),
        environment=realm.environment,
        ssl_certificate_file=certificate,
        ssl_key_file=key,
        **values,
    ) as server:
        yield Site(realm, server, keytab, realm.keytab("app", "batch/night"), folder)


@pytest.fixture
def witness(site: Site, in_realm: Realm) -> Iterator[Peer]:
    """A connection that is logged in and must not notice the log-ins of others."""
    with site.server.peer() as peer:
        log_in(peer, initiator(in_realm.ticket("app", site.app_keytab)))
        yield peer


@pytest.fixture
def in_realm(realm: Realm, monkeypatch: pytest.MonkeyPatch) -> Realm:
    """Let libraries in this process use the realm."""
    for name, value in realm.environment.items():
        monkeypatch.setenv(name, value)
    return realm


@pytest.fixture
def app_ticket(site: Site, in_realm: Realm, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let programs that this process starts use a ticket of `app`."""
    monkeypatch.setenv("KRB5CCNAME", f"FILE:{in_realm.ticket('app', site.app_keytab)}")


def login(
    site: Site, name: str, service: str = "kafka", *, uses_tls: bool = False
) -> tuple[Client, Security]:
    """A client and its credentials. The service is for Java; others request `kafka`.

    Go and Java use the keytab, kafka-python and aiokafka the ticket, kcat gets a ticket by it.
    """
    client = table()[name]
    authority = site.folder / "ca.crt" if uses_tls else None
    if client.driver == "java":
        return client, java_login(site, client, site.app_keytab, service=service, tls=authority)
    user = ("app@EXAMPLE.COM", str(site.app_keytab))
    if client.driver == "kcat":
        if not list(Path("/usr/lib").glob("*/sasl2/libgssapiv2.so")) and not are_required():
            pytest.skip("Cyrus SASL has no GSSAPI: install libsasl2-modules-gssapi-mit")
        keytab = f"sasl.kerberos.keytab={user[1]},sasl.kerberos.principal={user[0]}"
        client = msgspec.structs.replace(client, options=("--config", keytab))
    if client.python == "3.6":
        client = msgspec.structs.replace(client, install=(*client.install, *PYTHON_GSSAPI))
    return client, Security(user, authority, "GSSAPI")


def java_login(
    site: Site,
    client: Client,
    keytab: Path,
    principal: str = "app",
    service: str = "kafka",
    tls: Path | None = None,
) -> Security:
    entry = (
        "com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true storeKey=true "
        f'keyTab="{keytab}" principal="{principal}@EXAMPLE.COM";'
    )
    properties = [
        f"java.security.krb5.conf={site.realm.config}",
        f"security.protocol={'SASL_SSL' if tls else 'SASL_PLAINTEXT'}",
        f"sasl.kerberos.service.name={service}",
    ]
    if client.name in ("java-0.9.0.1", "java-0.10.0.1"):
        # Before `sasl.jaas.config`.
        file = keytab.with_name("jaas.conf")
        file.write_text(f"KafkaClient {{ {entry} }};")
        properties.append(f"java.security.auth.login.config={file}")
    else:
        properties += ["sasl.mechanism=GSSAPI", f"sasl.jaas.config={entry}"]
    return Security(authority=tls, properties=tuple(properties))


def send_two(
    client: Client, bootstrap: str, security: Security, timeout: float = RUN_SECONDS
) -> str:
    """Produce two records with the client to a new topic; return the topic."""
    topic = f"topic-{uuid.uuid4().hex[:8]}"
    records = [Record(topic, 0, None, b"one"), Record(topic, 0, None, b"two")]
    try:
        answers = produce(client, bootstrap, records, security=security, timeout=timeout)
    except CannotInstall as reason:
        (pytest.fail if are_required() else pytest.skip)(str(reason))
    assert [answer.offset for answer in answers] == [0, 1]
    return topic


def clients_except(slow: Set[str]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        "name",
        [pytest.param(name, marks=[pytest.mark.slow] * (name in slow)) for name in EXPECTED],
    )


@clients_except(SLOW)
def test_client_with_a_ticket_produces_and_consumes(
    site: Site, app_ticket: None, name: str
) -> None:
    """It produces without TLS and consumes with it."""
    client, security = login(site, name)
    topic = send_two(client, site.bootstrap, security)
    client, security = login(site, name, uses_tls=True)
    read = consume_in_group(client, site.tls_bootstrap, name, topic, 2, security=security)
    assert [record.value for record in read] == [b"one", b"two"]

    def ends() -> list[Row]:
        rows = read_rows(site.folder / "traffic")
        ended = [row for row in rows if row.get("event") == "closed" and "principal" in row]
        return [row for row in ended if name in row["client_ids"]]

    wait_until(lambda: len(ends()) >= 2)
    seen = {(row["road"], row["mechanism"], row["principal"]) for row in ends()}
    assert seen == {(EXPECTED[name][0], "GSSAPI", "User:app")}
    # Some clients end a connection with TLS without close_notify.
    assert {row["reason"] for row in ends()} <= {"client", "error:lost"}


@clients_except(EXPECTED.keys() - REFUSED_IN_CI)
def test_client_with_a_ticket_for_another_service_ends(
    site: Site, app_ticket: None, name: str, witness: Peer
) -> None:
    """Java requests http/localhost, other clients kafka/127.0.0.1."""
    lines = len(site.server.lines())
    client, security = login(site, name, service="http")
    is_java = client.driver == "java"
    bootstrap = site.bootstrap if is_java else site.bootstrap.replace("localhost", "127.0.0.1")
    ends_at_once = client.tells_refusal and not client.retries_refusal
    with pytest.raises(DriverFailed) as failed:
        send_two(client, bootstrap, security, RUN_SECONDS if ends_at_once else PATIENCE_SECONDS)
    assert "exit code " in str(failed.value).splitlines()[0]
    assert EXPECTED[name][1] in failed.value.errors
    requested = "http/localhost" if is_java else "kafka/127.0.0.1"
    found = site.server.wait_for_lines(1, "login failed", lines)
    assert all(f"Request ticket server {requested}@EXAMPLE.COM not found" in line for line in found)
    assert serves(witness)


def test_java_client_with_a_wrong_key_ends_before_its_login(site: Site, witness: Peer) -> None:
    old = site.realm.keytab("rotated")
    site.realm.keytab("rotated")
    client = table()["java-3.9.2"]
    lines = len(site.server.lines())
    with pytest.raises(DriverFailed, match="KafkaException") as failed:
        send_two(client, site.bootstrap, java_login(site, client, old, "rotated"))
    assert "exit code 1" in str(failed.value)
    # It gets no ticket and does not connect.
    assert site.server.lines()[lines:] == []
    assert serves(witness)


def test_kafka_python_without_a_ticket_ends_before_its_login(
    site: Site, in_realm: Realm, monkeypatch: pytest.MonkeyPatch, witness: Peer
) -> None:
    monkeypatch.setenv("KRB5CCNAME", f"FILE:{site.folder / 'absent'}")
    lines = len(site.server.lines())
    client, security = login(site, "kafka-python-3.0.12")
    with pytest.raises(DriverFailed, match="No Kerberos credentials available") as failed:
        send_two(client, site.bootstrap, security, 2.0)
    assert "exit code 1" in str(failed.value)
    assert [line for line in site.server.lines()[lines:] if "login failed" in line] == []
    assert serves(witness)


def test_bare_tokens_with_mutual_authentication_log_in(site: Site, in_realm: Realm) -> None:
    """Kafka's answers to the same tokens are in decision 039."""
    context = initiator(in_realm.ticket("batch/night", site.app_keytab), is_mutual=True)
    with site.server.peer() as peer:
        assert len(log_in(peer, context)) == 3
        assert serves(peer)
        assert site.audited(peer=peer.name)[0]["principal"] == "User:BATCH.NIGHT"


def test_authorization_id_is_ignored_as_in_kafka(site: Site, in_realm: Realm) -> None:
    context = initiator(in_realm.ticket("app", site.app_keytab))
    with site.server.peer() as peer:
        assert len(log_in(peer, context, b"admin@EXAMPLE.COM")) == 2
        assert serves(peer)
        assert site.audited(peer=peer.name)[0]["principal"] == "User:app"


def test_recorded_login_is_refused_when_it_is_sent_again(
    site: Site, in_realm: Realm, witness: Peer
) -> None:
    context = initiator(in_realm.ticket("app", site.app_keytab))
    with site.server.peer() as peer:
        tokens = log_in(peer, context)
    with site.server.peer() as thief:
        thief.send(*tokens)
        assert thief.receive() is None
        (line,) = site.server.wait_for_lines(1, "login failed", thief.lines_before)
        assert "Request is a replay" in line
        (row,) = site.audited(peer=thief.name)
        assert (row["event"], row["reason"]) == ("login-failed", "Kerberos: Request is a replay")
    assert serves(witness)


def test_security_layer_is_refused(site: Site, in_realm: Realm) -> None:
    context = initiator(in_realm.ticket("app", site.app_keytab))
    with site.server.peer() as peer:
        log_in(peer, context, layer=4)
        assert peer.receive() is None
        (row,) = site.audited(peer=peer.name)
        assert row["reason"] == "the client requires a security layer; use TLS instead"


def test_session_lifetime_is_that_of_the_setting_and_the_principal_stays(
    site: Site, in_realm: Realm
) -> None:
    """As in Kafka, the end of the ticket does not count (only OAUTHBEARER has such an end)."""
    app, batch = (in_realm.ticket(name, site.app_keytab) for name in ("app", "batch/night"))
    with site.server.peer() as peer:
        for _ in range(2):
            reply = authenticate(peer, initiator(app))
            assert (reply.error_code, reply.auth_bytes) == (0, b"")
            assert reply.session_lifetime_ms == LIFETIME_MS
            assert serves(peer)
        events = [row["event"] for row in site.audited(2, peer=peer.name)]
        assert events == ["login", "reauthentication"]
    with site.server.peer() as peer:
        authenticate(peer, initiator(app))
        reply = authenticate(peer, initiator(batch))
        assert reply.error_code == SASL_AUTHENTICATION_FAILED
        assert "cannot change the principal" in reply.error_message


def test_client_whose_clock_differs_is_refused(site: Site, in_realm: Realm, witness: Peer) -> None:
    cache = in_realm.ticket("app", site.app_keytab)
    # The ticket of the service gets into the cache.
    initiator(cache).step()
    shift_clock(cache, 3600)
    with site.server.peer() as peer:
        peer.send(initiator(cache).step())
        assert peer.receive() is None
        (row,) = site.audited(peer=peer.name)
        assert row["reason"] == "Kerberos: Clock skew too great"
    assert serves(witness)


def test_changed_keytab_is_used_at_the_next_login(site: Site, in_realm: Realm) -> None:
    new = in_realm.keytab("kafka/localhost")
    cache = in_realm.ticket("app", site.app_keytab)
    with site.server.peer() as peer:
        peer.send(initiator(cache).step())
        assert peer.receive() is None
        (row,) = site.audited(peer=peer.name)
        assert row["reason"].endswith("not found in keytab; keytab is likely out of date")
    draft = site.service_keytab.with_name("draft")
    site.service_keytab.rename(draft)
    with site.server.peer() as peer:
        # The gateway's own problem: not an error that clients treat as final.
        peer.send(initiator(cache).step())
        assert peer.receive() is None
        (line,) = site.server.wait_for_lines(1, "refused", peer.lines_before)
        assert f"Key table file '{site.service_keytab}' not found" in line
        assert site.audited(0, peer=peer.name) == []
    shutil.copy(new, draft)
    draft.rename(site.service_keytab)
    with site.server.peer() as peer:
        log_in(peer, initiator(cache))
        assert serves(peer)


def test_keys_of_another_service_in_the_keytab_are_not_used(site: Site, in_realm: Realm) -> None:
    both = in_realm.keytab("http/localhost", "kafka/other.example.com")
    token = initiator(in_realm.ticket("app", site.app_keytab), "http@localhost").step()
    context = KerberosAcceptor("kafka", both).make_context()
    with pytest.raises(AuthenticationFailed, match="does not match server principal"):
        context.accept(token)


@pytest.fixture
def recorded(site: Site, in_realm: Realm) -> tuple[KerberosAcceptor, bytes]:
    """An acceptor, and a token for it."""
    keytab = in_realm.keytab("kafka/127.0.0.1")
    cache = in_realm.ticket("app", site.app_keytab)
    return KerberosAcceptor("kafka", keytab), initiator(cache, "kafka@127.0.0.1").step()


@settings(max_examples=scaled(300), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.integers(0, 2000), bits=st.integers(0, 255), cut=st.integers(0, 50))
def test_changed_token_is_refused(
    recorded: tuple[KerberosAcceptor, bytes], at: int, bits: int, cut: int
) -> None:
    """A change of what is not protected may be accepted, but not for another client.

    After a wrong token id the library expects a further token, and refuses that.
    """
    acceptor, original = recorded
    context, token = acceptor.make_context(), bytearray(original)
    token[at % len(token)] ^= bits
    try:
        context.accept(bytes(token[: len(token) - cut]))
    except (AuthenticationFailed, AuthenticationBusy):
        assert not context.is_established
    else:
        assert context.peer == ("app@EXAMPLE.COM" if context.is_established else "")


def test_unusable_replay_cache_refuses_logins(
    site: Site, in_realm: Realm, monkeypatch: pytest.MonkeyPatch
) -> None:
    keytab = in_realm.keytab("kafka/other.example.com")
    cache = in_realm.ticket("app", site.app_keytab)
    token = initiator(cache, "kafka@other.example.com").step()
    monkeypatch.setenv("KRB5RCACHENAME", "file2:/nonexistent/replays")
    context = KerberosAcceptor("kafka", keytab).make_context()
    with pytest.raises(AuthenticationBusy, match="No such file or directory"):
        context.accept(token)


# helpers


def wait_until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def initiator(cache: Path, service: str = "kafka@localhost", *, is_mutual: bool = False) -> Any:
    """The client's side of a security context, without mutual authentication as Java's."""
    flags = [gssapi.RequirementFlag.integrity]
    if is_mutual:
        flags.append(gssapi.RequirementFlag.mutual_authentication)
    return gssapi.SecurityContext(
        name=gssapi.Name(service, gssapi.NameType.hostbased_service),
        creds=gssapi.Credentials(usage="initiate", store={"ccache": f"FILE:{cache}"}),
        usage="initiate",
        mech=gssapi.MechType.kerberos,
        flags=flags,
    )


def log_in(peer: Peer, context: Any, authorization_id: bytes = b"", layer: int = 1) -> list[bytes]:
    """Send bare tokens and return them."""
    sent = [context.step()]
    peer.send(sent[0])
    answer = peer.receive()
    if not context.complete:
        sent.append(context.step(answer) or b"")
        peer.send(sent[-1])
        answer = peer.receive()
    assert answer is not None
    assert context.unwrap(answer).message == b"\x01\x01\x00\x00"
    sent.append(context.wrap(bytes([layer, 0, 0, 0]) + authorization_id, False).message)
    peer.send(sent[-1])
    return sent


def authenticate(peer: Peer, context: Any) -> Any:
    """Log in by SaslAuthenticate requests; return the last reply."""
    shake = SaslHandshakeRequest(version=1, mechanism="GSSAPI")
    assert peer.request(shake, SaslHandshakeResponse, 1).error_code == 0

    def send(token: bytes) -> Any:
        request = SaslAuthenticateRequest(version=1, auth_bytes=token)
        return peer.request(request, SaslAuthenticateResponse, 1)

    context.unwrap(send(context.step()).auth_bytes)
    return send(context.wrap(b"\x01\x00\x00\x00", False).message)


def serves(peer: Peer) -> bool:
    """Whether a connection that is logged in gets a reply."""
    return bool(peer.request(MetadataRequest(version=1, topics=[]), MetadataResponse, 1).brokers)


def shift_clock(cache: Path, seconds: int) -> None:
    """Record in a credential cache that the client's clock differs from the KDC's.

    The header of the file has the difference (tag 1 of version 4).
    """
    content = cache.read_bytes()
    assert content[:2] == b"\x05\x04"
    size = int.from_bytes(content[2:4])
    header = struct.pack(">HHii", 1, 8, seconds, 0)
    cache.write_bytes(content[:2] + struct.pack(">H", len(header)) + header + content[4 + size :])
