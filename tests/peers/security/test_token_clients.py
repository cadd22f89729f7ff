"""Real clients log in with JWTs: as passwords of PLAIN, as with KoP, and by OAUTHBEARER."""

from __future__ import annotations

import asyncio
import json
import subprocess
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import aiokafka
import confluent_kafka
import jwt
import pytest
from aiokafka.abc import AbstractTokenProvider as AioTokenProvider
from aiokafka.errors import KafkaConnectionError
from cryptography.hazmat.primitives.asymmetric import rsa
from kafka import KafkaProducer
from kafka.errors import KafkaTimeoutError
from kafka.net.sasl.oauth import AbstractTokenProvider
from kafka.protocol.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

from tests.auth.pulsar_keys import SECRET_KEY, SECRET_TOKEN
from tests.legacy_clients.brokers import are_required
from tests.legacy_clients.clients import (
    DriverFailed,
    Record,
    Security,
    line_of,
    produce,
    run,
    table,
)
from tests.testkit import jvm
from tests.testkit.cache import CannotInstall
from tests.testkit.certificates import Authority
from tests.testkit.gateway import GatewayProcess, Peer, gateway
from tests.testkit.kafka import TOOL_SECONDS, Kafka, Secured, java
from tests.testkit.traffic_rows import read_audit_rows, read_lines

pytestmark = [pytest.mark.peer, pytest.mark.xdist_group("tokens")]

KEYS = {name: rsa.generate_private_key(65537, 2048) for name in ("first", "second", "foreign")}
ISSUER = "https://id.example"
#: Longer than the pause between log-ins that Kafka's clients and servers require, one second.
SHORT_SECONDS = 5.0
WAIT_SECONDS = 60.0
#: SaslHandshake v0: a refusal is a closed connection, and the client retries until its timeout.
PATIENCE_SECONDS = 6.0
JAVA = "org.apache.kafka.common.security.oauthbearer"


def token(key: str = "first", seconds: float = 300.0, **claims: Any) -> str:
    now = time.time()
    return jwt.encode(
        {"sub": "app", "iss": ISSUER, "aud": "kafka", "iat": now, "exp": now + seconds, **claims},
        KEYS[key],
        "RS256",
        {"kid": key},
    )


class IdentityProvider(ThreadingHTTPServer):
    """Serves the key set at `/keys`, once it `is_up`, and tokens at `/token`.

    `published` names the keys. `early_outcome` is that of a client that logged in before.
    """

    is_up = False
    published: tuple[str, ...] = ("first",)
    early_outcome: Any = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Pages(BaseHTTPRequestHandler):
    server: IdentityProvider

    def do_GET(self) -> None:
        if not self.server.is_up:
            self.send_error(503)
            return
        keys = [
            {**jwt.algorithms.RSAAlgorithm.to_jwk(KEYS[name].public_key(), True), "kid": name}
            for name in self.server.published
        ]
        self._answer({"keys": keys})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer({"access_token": token(sub="java"), "token_type": "Bearer"})

    def _answer(self, content: Any) -> None:
        body = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        return


@pytest.fixture(scope="module")
def provider() -> Iterator[IdentityProvider]:
    with IdentityProvider(("127.0.0.1", 0), Pages) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        yield server
        server.shutdown()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tokens")


@pytest.fixture(scope="module")
def server(provider: IdentityProvider, folder: Path) -> Iterator[GatewayProcess]:
    secret = folder / "secret.key"
    secret.write_bytes(SECRET_KEY)
    authority = Authority()
    authority.write(folder)
    certificate, key = authority.sign("127.0.0.1").write(folder, "server")
    with gateway(
        folder,
        listeners=("SASL_PLAINTEXT", "SASL_SSL"),
        ssl_certificate_file=certificate,
        ssl_key_file=key,
        sasl_enabled_mechanisms="PLAIN,OAUTHBEARER",
        tokenSecretKey=secret.as_uri(),
        sasl_oauthbearer_jwks_endpoint_url=f"{provider.url}/keys",
        sasl_oauthbearer_expected_audience="kafka",
        sasl_oauthbearer_expected_issuer=ISSUER,
        sasl_oauthbearer_clock_skew_seconds=0,
        audit_log=folder / "audit",
    ) as running:
        with ThreadPoolExecutor(1) as pool:
            early = pool.submit(confluent_produce, oauth_settings(running, sub="early"), "early")
            assert running.wait_for_lines(1, "keys have not been fetched yet")
            provider.is_up = True
            provider.early_outcome = early.result()
        yield running


def address(server: GatewayProcess) -> str:
    host, port = server.address
    return f"{host}:{port}"


def events(folder: Path, principal: str) -> list[str]:
    rows = read_audit_rows(folder / "audit")
    return [row["event"] for row in rows if row.get("principal") == principal]


def has_logged_in(folder: Path, principal: str) -> bool:
    end = time.monotonic() + WAIT_SECONDS
    while "login" not in events(folder, principal) and time.monotonic() < end:
        time.sleep(0.05)
    return "login" in events(folder, principal)


def new_topic() -> str:
    return f"t-{uuid.uuid4().hex[:8]}"


# PLAIN, with the token of Pulsar's tool for `alice`


def plain_settings(server: GatewayProcess, password: str) -> dict[str, Any]:
    return {
        "bootstrap_servers": address(server),
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": "public/default",
        "sasl_plain_password": password,
    }


def send_one(producer: KafkaProducer, topic: str) -> int:
    try:
        return int(producer.send(topic, b"value").get(WAIT_SECONDS).offset)
    finally:
        producer.close()


def test_kafka_python_logs_in_with_pulsars_token(server: GatewayProcess, folder: Path) -> None:
    producer = KafkaProducer(**plain_settings(server, f"token:{SECRET_TOKEN}"))
    assert send_one(producer, new_topic()) == 0
    assert has_logged_in(folder, "User:alice")


def refusal(settings: dict[str, Any], caplog: pytest.LogCaptureFixture) -> str:
    """What kafka-python logs about a refused log-in. It retries until its timeout."""
    with pytest.raises(KafkaTimeoutError):
        KafkaProducer(**settings, bootstrap_timeout_ms=500)
    return caplog.text


@pytest.mark.parametrize(
    ("password", "reason"),
    [
        (f"token:{SECRET_TOKEN[:-2]}AA", "the signature of the token is wrong"),
        (SECRET_TOKEN, "the password is not token:JWT"),
    ],
    ids=["signature", "prefix"],
)
def test_kafka_python_is_refused_with_another_password(
    server: GatewayProcess, caplog: pytest.LogCaptureFixture, password: str, reason: str
) -> None:
    text = refusal(plain_settings(server, password), caplog)
    assert f"SaslAuthenticationFailedError: Authentication failed: {reason}" in text


def confluent_produce(settings: dict[str, Any], topic: str) -> Any:
    """Produce a record; return its offset, or the name of the error that refused the log-in."""
    failures: list[Any] = []
    delivered: list[int] = []
    producer = confluent_kafka.Producer({"error_cb": failures.append, **settings})
    producer.produce(topic, b"value", on_delivery=lambda _, sent: delivered.append(sent.offset()))
    end = time.monotonic() + WAIT_SECONDS
    while not delivered and time.monotonic() < end:
        producer.poll(0.1)
        refused = [one.name() for one in failures if one.name() == "_AUTHENTICATION"]
        if refused:
            producer.purge()
            return refused[0]
    return delivered[0]


@pytest.mark.parametrize(
    ("password", "outcome"),
    [(f"token:{SECRET_TOKEN}", 0), (f"token:{SECRET_TOKEN[:-2]}AA", "_AUTHENTICATION")],
    ids=["right", "wrong"],
)
def test_librdkafka_logs_in_with_pulsars_token(
    server: GatewayProcess, password: str, outcome: Any
) -> None:
    settings = {
        "bootstrap.servers": address(server),
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "public",
        "sasl.password": password,
    }
    assert confluent_produce(settings, new_topic()) == outcome


def test_old_client_logs_in_with_pulsars_token_in_a_bare_frame(server: GatewayProcess) -> None:
    old, records = table()["kafka-python-2.0.2"], [Record(new_topic(), 0, None, b"value")]
    right = Security(("public/default", f"token:{SECRET_TOKEN}"))
    wrong = Security(("public/default", f"token:{SECRET_TOKEN[:-2]}AA"))
    try:
        (sent,) = produce(old, address(server), records, security=right)
    except CannotInstall as reason:
        (pytest.fail if are_required() else pytest.skip)(str(reason))
    assert sent.offset == 0
    with pytest.raises(DriverFailed):
        produce(old, address(server), records, security=wrong, timeout=PATIENCE_SECONDS)


# OAUTHBEARER


def oauth_settings(server: GatewayProcess, **claims: Any) -> dict[str, Any]:
    def issue(_: str) -> tuple[str, float]:
        issued = token(**claims)
        return issued, jwt.decode(issued, options={"verify_signature": False})["exp"]

    return {
        "bootstrap.servers": address(server),
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "oauth_cb": issue,
    }


def test_client_that_starts_before_the_identity_provider_retries(
    server: GatewayProcess, provider: IdentityProvider
) -> None:
    assert provider.early_outcome == 0
    (warning,) = [line for line in server.lines() if "signing keys not fetched" in line]
    assert 'consequence="log-ins fail"' in warning
    assert "status 503" in warning
    assert len([line for line in server.lines() if "signing keys fetched" in line]) == 1


def unsecured(**claims: Any) -> bytes:
    now = time.time()
    issued = {"sub": "app", "iat": now, "exp": now + 300, **claims}
    return jwt.encode(issued, None, "none").encode()


def message(issued: bytes, authzid: bytes = b"", extensions: bytes = b"") -> bytes:
    return b"n,%s,\x01auth=Bearer %s\x01%s\x01" % (authzid, issued, extensions)


#: The tokens of a connection.
ATTEMPTS: list[list[bytes]] = [
    [message(unsecured())],
    [message(unsecured(), b"a=app")],
    [message(unsecured(), b"a=other")],
    [message(unsecured(), extensions=b"key=value 1\x01other=2\x01")],
    [message(unsecured(), extensions=b"k3y=value\x01")],
    [message(unsecured(), extensions=b"auth=value\x01")],
    [message(unsecured(iat=1, exp=2)), b"\x01"],
    [message(unsecured(sub="")), b"\x01"],
    [message(b"no-jwt"), b"\x01"],
    [message(unsecured() + b"AAAA"), b"\x01"],
    [b"n,,\x01auth=bearer " + unsecured() + b"\x01\x01"],
    [b"n,,\x01host=example\x01\x01"],
    [b"garbage"],
    [b"\x01"],
    [b""],
]


def answers(peer: Peer, tokens: list[bytes]) -> list[tuple[int, bytes, bool]]:
    """The code and token of each SaslAuthenticate v1, and whether the session has a lifetime."""
    with peer:
        peer.request(SaslHandshakeRequest(mechanism="OAUTHBEARER"), SaslHandshakeResponse, 1)
        got = []
        for sent in tokens:
            answer = peer.request(
                SaslAuthenticateRequest(auth_bytes=sent), SaslAuthenticateResponse, 1
            )
            lifetime = answer.session_lifetime_ms > 0
            got.append((answer.error_code, bytes(answer.auth_bytes), lifetime))
        return got


@pytest.mark.slow
def test_answers_to_tokens_are_those_of_kafka(tmp_path: Path) -> None:
    module = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
    login = tmp_path / "jaas.conf"
    login.write_text(f'KafkaServer {{ {module} required unsecuredLoginStringClaim_sub="x"; }};')
    certificate, key = Authority().sign().write(tmp_path, "server")
    both = tmp_path / "both.pem"
    both.write_bytes(key.read_bytes() + certificate.read_bytes())
    with Kafka.start(
        secured=Secured((), both),
        flags=[*jvm.CLIENT, f"-Djava.security.auth.login.config={login}"],
        sasl_enabled_mechanisms="OAUTHBEARER",
    ) as kafka:
        host, port = kafka.listeners["SASL_PLAINTEXT"].split(":")
        expected = [answers(Peer((host, int(port))), tokens) for tokens in ATTEMPTS]
    with gateway(
        tmp_path,
        listeners=("SASL_PLAINTEXT",),
        sasl_enabled_mechanisms="OAUTHBEARER",
        sasl_oauthbearer_allow_unsecured_tokens=True,
    ) as ours:
        got = [answers(Peer(ours.address), tokens) for tokens in ATTEMPTS]
    assert got == expected
    assert expected[6] == [(0, b'{"status":"invalid_token"}', False), (58, b"", False)]


def test_key_that_the_provider_adds_is_accepted_at_the_first_log_in(
    server: GatewayProcess, provider: IdentityProvider
) -> None:
    provider.published = ("first", "second")
    # Before the tests of refused tokens: they cause a fetch, the next one is possible 10 s later.
    assert confluent_produce(oauth_settings(server, key="second"), new_topic()) == 0


class KafkaPythonTokens(AbstractTokenProvider):
    def __init__(self, **claims: Any) -> None:
        self._claims = claims

    def token(self) -> str:
        return token(**self._claims)


def kafka_python_settings(server: GatewayProcess, **claims: Any) -> dict[str, Any]:
    return {
        "bootstrap_servers": address(server),
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "OAUTHBEARER",
        "sasl_oauth_token_provider": KafkaPythonTokens(**claims),
    }


def test_kafka_python_logs_in_by_oauthbearer(server: GatewayProcess, folder: Path) -> None:
    producer = KafkaProducer(**kafka_python_settings(server, sub="kp"))
    assert send_one(producer, new_topic()) == 0
    assert has_logged_in(folder, "User:kp")


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ({"key": "foreign"}, "no key fits the algorithm"),
        ({"seconds": -1}, "the token has expired"),
        ({"aud": "other"}, "the token is for another audience"),
        ({"iss": "other"}, "the token has another issuer"),
    ],
    ids=["key", "expiry", "audience", "issuer"],
)
def test_kafka_python_reports_the_refusal_of_its_token(
    server: GatewayProcess, caplog: pytest.LogCaptureFixture, claims: dict[str, Any], reason: str
) -> None:
    text = refusal(kafka_python_settings(server, **claims), caplog)
    assert f'Authentication failed: {{"status":"invalid_token"}}: {reason}' in text


@pytest.mark.parametrize(
    ("key", "outcome"), [("first", 0), ("foreign", "_AUTHENTICATION")], ids=["right", "wrong"]
)
def test_librdkafka_logs_in_by_oauthbearer(server: GatewayProcess, key: str, outcome: Any) -> None:
    assert confluent_produce(oauth_settings(server, key=key, sub="lib"), new_topic()) == outcome


def test_aiokafka_logs_in_by_oauthbearer(server: GatewayProcess, folder: Path) -> None:
    claims = {"sub": "aio"}

    class Tokens(AioTokenProvider):
        async def token(self) -> str:
            return token(**claims)

        def extensions(self) -> dict[str, str]:
            # KoP reads the tenant from an extension; here it has no effect.
            return {"username": "acme"}

    async def send() -> int:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=address(server),
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="OAUTHBEARER",
            sasl_oauth_token_provider=Tokens(),
        )
        await producer.start()
        try:
            return int((await producer.send_and_wait(new_topic(), b"value")).offset)
        finally:
            await producer.stop()

    assert asyncio.run(send()) == 0
    assert has_logged_in(folder, "User:aio")
    claims["aud"] = "another"
    with pytest.raises(KafkaConnectionError):
        asyncio.run(send())


def produce_by_oauthbearer(
    server: GatewayProcess, client: str, sent: str, seconds: float = 180.0
) -> str:
    """Produce a record with a driver; return what it prints. Raises DriverFailed."""
    words, security = ["--oauth-token", sent], Security()
    if table()[client].driver in ("sarama", "kafka_python"):
        words, security = [], Security((client, sent), mechanism="OAUTHBEARER")
    elif table()[client].driver == "java":
        file = server.log.with_name(f"{client}.jwt")
        file.write_text(sent)
        words, security = [], java_security("", **token_endpoint(file.as_uri()))
    record, at = line_of(Record(new_topic(), 0, None, b"value")), address(server)
    try:
        return run(
            table()[client], "produce", at, words, record, timeout=seconds, security=security
        )
    except CannotInstall as reason:
        (pytest.fail if are_required() else pytest.skip)(str(reason))


WITH_DRIVER = (
    "kafka-python-2.0.2",
    "kafkajs-2.2.4",
    "franz-go-1.22.2",
    "sarama-1.61.1",
    "java-3.9.2",
)
#: Libraries of two languages; the others in `make slow`.
REFUSED_IN_CI = {"sarama-1.61.1", "java-3.9.2"}


@pytest.mark.parametrize("client", WITH_DRIVER)
def test_client_with_a_driver_logs_in_by_oauthbearer(
    server: GatewayProcess, folder: Path, client: str
) -> None:
    assert produce_by_oauthbearer(server, client, token(sub=client)).split()[-1] == "0"
    assert has_logged_in(folder, f"User:{client}")


@pytest.mark.parametrize(
    "client",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name not in REFUSED_IN_CI))
        for name in WITH_DRIVER
    ],
)
def test_client_with_a_driver_ends_after_a_refused_token(
    server: GatewayProcess, client: str
) -> None:
    lines = len(server.lines())
    with pytest.raises(DriverFailed) as failed:
        produce_by_oauthbearer(server, client, token(aud="another"), PATIENCE_SECONDS)
    assert "exit code " in str(failed.value).splitlines()[0]
    assert server.wait_for_lines(1, "audience", lines)


def java_security(login: str, **more: str) -> Security:
    """Settings of a Java client, the first of them for its JAAS entry."""
    settings = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.jaas.config": f"{JAVA}.OAuthBearerLoginModule required {login};",
        **more,
    }
    return Security(properties=tuple(f"{name}={value}" for name, value in settings.items()))


def token_endpoint(url: str) -> dict[str, str]:
    """Settings of a Java client since 3.1 that reads its token from a URL or file."""
    return {
        "sasl.oauthbearer.token.endpoint.url": url,
        "sasl.login.callback.handler.class": f"{JAVA}.OAuthBearerLoginCallbackHandler",
    }


def test_java_logs_in_with_a_token_of_the_identity_provider(
    server: GatewayProcess, provider: IdentityProvider, folder: Path
) -> None:
    """In Kafka's tool."""
    config = folder / "java.properties"
    login = 'clientId="app" clientSecret="secret"'
    security = java_security(login, **token_endpoint(f"{provider.url}/token"))
    config.write_text("\n".join(security.properties))
    argv = java(
        "kafka.admin.ConfigCommand",
        *("--bootstrap-server", address(server), "--command-config", str(config)),
        *("--describe", "--entity-type", "brokers", "--entity-name", "0"),
    )
    done = subprocess.run(argv, check=False, capture_output=True, text=True, timeout=TOOL_SECONDS)
    assert done.returncode == 0, done.stderr
    assert has_logged_in(folder, "User:java")


@pytest.fixture(scope="module")
def careless(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    with gateway(
        tmp_path_factory.mktemp("careless"),
        listeners=("SASL_PLAINTEXT",),
        sasl_enabled_mechanisms="OAUTHBEARER",
        sasl_oauthbearer_allow_unsecured_tokens=True,
    ) as running:
        assert running.wait_for_lines(1, "accepts tokens without a signature")
        yield running


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("java-2.1.1", marks=pytest.mark.slow),
        pytest.param("java-2.8.2", marks=pytest.mark.slow),
        pytest.param("java-3.9.2", marks=pytest.mark.slow),
        pytest.param("java-4.3.1", marks=pytest.mark.slow),
        "java-4.4.0",
    ],
)
def test_java_logs_in_with_an_unsecured_token_only_if_that_is_allowed(
    server: GatewayProcess, careless: GatewayProcess, name: str
) -> None:
    security = java_security('unsecuredLoginStringClaim_sub="anyone"')
    client, records = table()[name], [Record(new_topic(), 0, None, b"value")]
    (sent,) = produce(client, address(careless), records, security=security)
    assert sent.offset == 0
    with pytest.raises(DriverFailed, match="exit code 1") as failed:
        produce(client, address(server), records, security=security)
    assert '{"status":"invalid_token"}: the token has no signature' in failed.value.errors


def test_librdkafka_reauthenticates_before_its_token_expires(
    server: GatewayProcess, folder: Path
) -> None:
    failures: list[str] = []
    settings = oauth_settings(server, sub="short", seconds=SHORT_SECONDS)
    producer = confluent_kafka.Producer(
        {**settings, "error_cb": lambda error: failures.append(error.str()), "linger.ms": 0}
    )
    topic, end = new_topic(), time.monotonic() + WAIT_SECONDS
    while events(folder, "User:short").count("reauthentication") < 2 and time.monotonic() < end:
        producer.produce(topic, b"value")
        assert producer.flush(WAIT_SECONDS) == 0
        time.sleep(0.2)
    seen = events(folder, "User:short")
    assert seen.count("reauthentication") >= 2
    # On a busy machine a token may have less than a second left when it arrives. The next
    # re-authentication then comes within a second, which Kafka refuses, too.
    too_early = ("not valid in current SASL state", "brokers are down")
    assert [text for text in failures if not any(one in text for one in too_early)] == []


@pytest.mark.parametrize("mechanism", ["PLAIN", "OAUTHBEARER"])
def test_librdkafka_logs_in_with_a_token_over_tls(
    server: GatewayProcess, folder: Path, mechanism: str
) -> None:
    settings = {
        **oauth_settings(server, sub=f"tls-{mechanism}"),
        "bootstrap.servers": "{}:{}".format(*server.addresses["SASL_SSL"]),
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(folder / "ca.crt"),
    }
    if mechanism == "PLAIN":
        del settings["oauth_cb"]
        settings |= {
            "sasl.mechanism": "PLAIN",
            "sasl.username": "public/default",
            "sasl.password": f"token:{SECRET_TOKEN}",
        }
    assert confluent_produce(settings, new_topic()) == 0


def test_tokens_are_in_neither_log(server: GatewayProcess, folder: Path) -> None:
    written = server.log.read_text() + b"".join(read_lines(folder / "audit")).decode()
    assert "eyJ" not in written
    assert "login failed" in written
