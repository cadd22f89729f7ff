"""TLS to the admin API, with a real TLS server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from pytest_twisted import ensureDeferred
from twisted.internet import reactor, ssl
from twisted.web.resource import Resource
from twisted.web.server import Site

from storage.log import StorageFailed
from storage.pulsar.admin.admin_api import PulsarAdmin
from storage.pulsar.settings import PulsarSettings
from tests.testkit.certificates import Authority
from tests.testkit.settle import settle


class ClientName(Resource):
    """Answers with the name in the client's certificate."""

    isLeaf = True
    asked = 0

    def render_GET(self, request: Any) -> bytes:
        self.asked += 1
        shown = request.transport.getPeerCertificate()
        return b'"%s"' % (ssl.Certificate(shown).getSubject().commonName if shown else b"")


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


@pytest.fixture
def url(authority: Authority, tmp_path: Path) -> Iterator[str]:
    certificate, key = authority.sign().write(tmp_path, "server")
    own = ssl.PrivateCertificate.loadPEM(key.read_bytes() + certificate.read_bytes())
    trusted = ssl.Certificate.loadPEM(authority.write(tmp_path, "clients").read_bytes())
    options = own.options(trusted)
    options.requireCertificate = False
    port: Any = reactor.listenSSL(0, Site(ClientName()), options, interface="127.0.0.1")
    yield f"https://localhost:{port.getHost().port}"
    settle(port.stopListening())


@pytest.fixture
def admins(url: str) -> Iterator[Callable[..., PulsarAdmin]]:
    made: list[PulsarAdmin] = []

    def make(**others: Any) -> PulsarAdmin:
        made.append(PulsarAdmin(PulsarSettings("pulsar+ssl://localhost:1", url, **others), reactor))
        return made[-1]

    yield make
    for admin in made:
        settle(admin.close())


@ensureDeferred
async def test_broker_with_trusted_authority_is_accepted(
    admins: Callable[..., PulsarAdmin], authority: Authority, tmp_path: Path
) -> None:
    assert await admins(tls_trust_file=authority.write(tmp_path)).get("/who") == ""


@ensureDeferred
async def test_broker_with_untrusted_authority_is_refused(
    admins: Callable[..., PulsarAdmin], tmp_path: Path
) -> None:
    with pytest.raises(StorageFailed, match=r"cannot be reached: .*certificate verify failed"):
        await admins(tls_trust_file=Authority().write(tmp_path)).get("/who")


@pytest.mark.parametrize("named", [["other.example.com"], ["127.0.0.1"], []])
@ensureDeferred
async def test_trusted_certificate_of_another_host_is_refused_before_sending(
    authority: Authority, tmp_path: Path, named: list[str]
) -> None:
    certificate, key = authority.sign(
        "localhost", names=[x509.DNSName(name) for name in named]
    ).write(tmp_path, "server")
    seen = ClientName()
    own = ssl.PrivateCertificate.loadPEM(key.read_bytes() + certificate.read_bytes())
    port: Any = reactor.listenSSL(0, Site(seen), own.options(), interface="127.0.0.1")
    url = f"https://localhost:{port.getHost().port}"
    admin = PulsarAdmin(
        PulsarSettings("pulsar+ssl://localhost:1", url, tls_trust_file=authority.write(tmp_path)),
        reactor,
    )
    try:
        with pytest.raises(
            StorageFailed, match="the certificate presented there is not for localhost"
        ):
            await admin.get("/who")
        assert seen.asked == 0
    finally:
        await admin.close()
        await port.stopListening()


@ensureDeferred
async def test_system_authorities_are_used_without_trust_file(
    admins: Callable[..., PulsarAdmin],
) -> None:
    with pytest.raises(StorageFailed, match="certificate verify failed"):
        await admins().get("/who")


@ensureDeferred
async def test_client_certificate_is_sent_and_reloaded(
    admins: Callable[..., PulsarAdmin], authority: Authority, tmp_path: Path
) -> None:
    certificate, key = authority.sign("first").write(tmp_path, "own")
    settings = {
        "tls_trust_file": authority.write(tmp_path),
        "tls_certificate_file": certificate,
        "tls_key_file": key,
    }
    admin = admins(**settings)
    assert await admin.get("/who") == "first"
    await admin.close()
    authority.sign("second").write(tmp_path, "own")
    assert await admin.get("/who") == "second"


@ensureDeferred
async def test_wrong_key_error_does_not_reveal_the_key(
    admins: Callable[..., PulsarAdmin], authority: Authority, tmp_path: Path
) -> None:
    certificate, _ = authority.sign("own").write(tmp_path, "own")
    for written in (
        authority.sign("other").write(tmp_path, "other")[1],
        authority.sign("own").write(tmp_path, "locked", b"secret")[1],
    ):
        with pytest.raises(
            StorageFailed,
            match=f"{written} is not the key of {certificate}, in PEM and without a password",
        ):
            await admins(tls_certificate_file=certificate, tls_key_file=written).get("/who")


@pytest.mark.parametrize(
    "written", [None, b"", b"-----BEGIN CERTIFICATE-----\nbm8=\n-----END CERTIFICATE-----\n"]
)
@ensureDeferred
async def test_invalid_trust_file_is_named_in_error(
    admins: Callable[..., PulsarAdmin], tmp_path: Path, written: bytes | None
) -> None:
    file = tmp_path / "trust.pem"
    if written is not None:
        file.write_bytes(written)
    with pytest.raises(
        StorageFailed, match=f"{file} (cannot be read|contains no readable PEM certificate)"
    ):
        await admins(tls_trust_file=file).get("/who")
