"""Fetching of an identity provider's keys: times, failures, limits, TLS."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from pytest_twisted import ensureDeferred
from twisted.internet import reactor, ssl
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET, Site

from auth.mechanism import AuthenticationBusy
from auth.signing_keys import MAX_DOCUMENT_BYTES
from gateway.coroutines import start
from gateway.security import key_download
from gateway.security.key_download import (
    MIN_RENEWAL_SECONDS,
    KeyDownload,
    KeySetUrl,
    RefreshTimes,
    is_exposed,
)
from storage.log import StorageFailed
from tests.testkit.certificates import Authority

# RFC 7517, appendix A.1.
KEY = {
    "kty": "EC",
    "crv": "P-256",
    "x": "MKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqv7D4",
    "y": "4Etl6SRW2YiLUrN5vfvVHuhp7x8PxltmWWlbbM4IFyM",
}
TIMES = RefreshTimes(interval=3600, backoff=0.1, max_backoff=10)


def document(*key_ids: str) -> bytes:
    return json.dumps({"keys": [{**KEY, "kid": key_id} for key_id in key_ids]}).encode()


class IdentityProvider:
    """Answers fetches with `answers` in order, then with the last one again."""

    def __init__(self, *answers: bytes | StorageFailed | Deferred[bytes]) -> None:
        self.answers = list(answers)
        self.clock = Clock()
        self.times: list[float] = []
        self.download = KeyDownload(self.fetch, "https://id.example", TIMES, self.clock)

    async def fetch(self) -> bytes:
        self.times.append(self.clock.seconds())
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, StorageFailed):
            raise answer
        return await answer if isinstance(answer, Deferred) else answer

    def ids(self) -> list[str | None]:
        return [key.key_id for key in self.download.current().keys]

    def renew(self) -> list[str]:
        """Renew the keys; the returned list gets an entry at the end."""
        ended: list[str] = []
        start(self.download.renew(), lambda _: ended.append("done"), lambda e: ended.append(str(e)))
        return ended


DOWN = StorageFailed("connection refused")


def test_keys_are_fetched_at_the_start_and_at_each_interval() -> None:
    provider = IdentityProvider(document("a"), document("b"))
    provider.download.start()
    assert provider.ids() == ["a"]
    provider.clock.advance(3599)
    assert provider.ids() == ["a"]
    provider.clock.advance(1)
    assert provider.ids() == ["b"]


def test_clients_retry_until_the_first_keys_arrive() -> None:
    provider = IdentityProvider(DOWN, DOWN, document("a"))
    provider.download.start()
    with pytest.raises(AuthenticationBusy):
        provider.ids()
    provider.clock.pump([0.01] * 50)
    assert provider.ids() == ["a"]


def test_pause_after_failures_doubles_up_to_its_limit() -> None:
    provider = IdentityProvider(DOWN)
    provider.download.start()
    provider.clock.pump([0.01] * 6000)
    pauses = [late - early for early, late in zip(provider.times, provider.times[1:], strict=False)]
    for pause, expected in zip(pauses, [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10, 10], strict=False):
        assert 0.8 * expected <= pause <= 1.2 * expected + 0.02
    assert len(pauses) >= 9


@pytest.mark.parametrize("answer", [DOWN, b"<html>", b'{"keys": []}'])
def test_old_keys_stay_valid_after_a_failure_with_one_warning(
    answer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    provider = IdentityProvider(document("a"), answer, answer, answer, document("b"))
    provider.download.start()
    provider.clock.advance(3600)
    provider.clock.pump([0.01] * 30)
    assert provider.ids() == ["a"]
    warnings = [one for one in caplog.records if one.levelno == logging.WARNING]
    assert [one.getMessage() for one in warnings] == ["signing keys not fetched, retrying"]
    provider.clock.pump([0.1] * 20)
    assert provider.ids() == ["b"]


def test_renewal_fetches_at_most_once_per_interval() -> None:
    provider = IdentityProvider(document("a"), document("b"), document("c"))
    provider.download.start()
    assert provider.renew() == ["done"]
    assert provider.ids() == ["b"]
    assert provider.renew() == ["done"]
    assert provider.ids() == ["b"]
    provider.clock.advance(MIN_RENEWAL_SECONDS)
    provider.renew()
    assert provider.ids() == ["c"]
    # The next regular fetch is an interval after the last one.
    provider.clock.advance(3599)
    assert len(provider.times) == 3


def test_renewals_share_one_fetch_and_wait_for_it_with_a_limit() -> None:
    answer: Deferred[bytes] = Deferred()
    provider = IdentityProvider(document("a"), answer, document("c"))
    provider.download.start()
    first, second = provider.renew(), provider.renew()
    assert (first, second, len(provider.times)) == ([], [], 2)
    answer.callback(document("b"))
    assert (first, second, provider.ids()) == (["done"], ["done"], ["b"])


def test_renewal_ends_if_the_provider_is_slow() -> None:
    provider = IdentityProvider(document("a"), Deferred())
    provider.download.start()
    ended = provider.renew()
    provider.clock.advance(MIN_RENEWAL_SECONDS)
    assert (ended, provider.ids()) == (["done"], ["a"])


def test_nothing_is_fetched_after_the_stop() -> None:
    provider = IdentityProvider(document("a"))
    provider.download.start()
    provider.download.stop()
    assert provider.renew() == ["done"]
    provider.clock.advance(7200)
    assert len(provider.times) == 1
    assert provider.clock.getDelayedCalls() == []


@pytest.mark.parametrize(
    ("url", "exposed"),
    [
        ("https://id.example/keys", False),
        ("http://127.0.0.1:8080/keys", False),
        ("http://localhost/keys", False),
        ("http://[::1]/keys", False),
        ("http://id.example/keys", True),
        ("http://10.0.0.1/keys", True),
        ("http://localhost.example/keys", True),
    ],
)
def test_plain_http_to_another_machine_is_exposed(url: str, exposed: bool) -> None:
    assert is_exposed(url) is exposed


class KeySetPage(Resource):
    isLeaf = True

    def __init__(self, body: bytes | None, code: int = 200) -> None:
        super().__init__()
        self._body = body
        self._code = code

    def render_GET(self, request: Any) -> Any:
        request.setResponseCode(self._code)
        if self._body is None:
            request.write(b"{")
            return NOT_DONE_YET
        return self._body


async def fetch(answer: KeySetPage, ca_file: Path | None = None, tls: Any = None) -> bytes:
    site = Site(answer)
    port: Any = (
        reactor.listenSSL(0, site, tls, interface="127.0.0.1")
        if tls
        else reactor.listenTCP(0, site, interface="127.0.0.1")
    )
    scheme = "https" if tls else "http"
    url = f"{scheme}://127.0.0.1:{port.getHost().port}/keys"
    try:
        return await KeySetUrl(url, ca_file, reactor).fetch()
    finally:
        await port.stopListening()


@ensureDeferred
async def test_document_is_fetched() -> None:
    assert await fetch(KeySetPage(document("a"))) == document("a")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (KeySetPage(b"", 404), "status 404"),
        (KeySetPage(b"", 302), "status 302"),
        (KeySetPage(b"x" * (MAX_DOCUMENT_BYTES + 1)), "exceeds"),
        (KeySetPage(None), "no complete answer within"),
    ],
    ids=["missing", "redirected", "large", "slow"],
)
@ensureDeferred
async def test_other_answers_are_failures(
    monkeypatch: pytest.MonkeyPatch, answer: KeySetPage, reason: str
) -> None:
    monkeypatch.setattr(key_download, "ANSWER_SECONDS", 1.0 if reason.startswith("no") else 60.0)
    with pytest.raises(StorageFailed, match=reason):
        await fetch(answer)


@ensureDeferred
async def test_provider_that_is_down_is_a_failure() -> None:
    port: Any = reactor.listenTCP(0, Site(Resource()), interface="127.0.0.1")
    number = port.getHost().port
    await port.stopListening()
    with pytest.raises(StorageFailed, match="refused"):
        await KeySetUrl(f"http://127.0.0.1:{number}/keys", None, reactor).fetch()


@pytest.mark.parametrize(
    ("name", "is_known", "reason"),
    [
        (None, True, None),
        (None, False, "certificate"),
        ("other.example", True, "not for 127.0.0.1"),
    ],
)
@ensureDeferred
async def test_certificate_is_verified(
    tmp_path: Path, name: str | None, is_known: bool, reason: str | None
) -> None:
    authority = Authority()
    names = None if name is None else [x509.DNSName(name)]
    certificate, key = authority.sign(names=names).write(tmp_path, "server")
    tls = ssl.PrivateCertificate.loadPEM(key.read_bytes() + certificate.read_bytes()).options()
    ca_file = authority.write(tmp_path) if is_known else None
    if reason is None:
        assert await fetch(KeySetPage(document("a")), ca_file, tls) == document("a")
        return
    with pytest.raises(StorageFailed, match=reason):
        await fetch(KeySetPage(document("a")), ca_file, tls)
