"""The SASL mechanisms of the settings, and what is refused at start."""

from __future__ import annotations

from pathlib import Path

import pytest

from auth.gssapi_mechanism import GssapiMechanism
from auth.scram import ScramMechanism
from gateway.security.mechanisms import make_mechanisms
from gateway.settings.model import Settings
from tests.auth.test_kerberos_acceptor import keytab
from tests.legacy_clients.brokers import are_required

if are_required():
    import gssapi  # noqa: F401
else:
    pytest.importorskip("gssapi", reason="install kopgate[gssapi]")


async def at_once(host, work):
    return work()


def made(*names, **values):
    settings = Settings(
        listeners=["SASL_PLAINTEXT://127.0.0.1:0"], sasl_enabled_mechanisms=names, **values
    )
    return make_mechanisms(settings, at_once, lambda: None)


@pytest.fixture(autouse=True)
def realm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "krb5.conf"
    config.write_text("[libdefaults]\n  default_realm = EXAMPLE.COM\n")
    monkeypatch.setenv("KRB5_CONFIG", str(config))


@pytest.fixture
def service_keytab(tmp_path: Path) -> Path:
    file = tmp_path / "keytab"
    file.write_bytes(keytab("broker/b.example.com"))
    return file


def test_each_mechanism_is_made_once_by_its_name(service_keytab: Path) -> None:
    mechanisms = made(
        "SCRAM-SHA-256",
        "GSSAPI",
        sasl_kerberos_service_name="broker",
        sasl_kerberos_keytab_file=service_keytab,
    )
    assert list(mechanisms) == ["SCRAM-SHA-256", "GSSAPI"]
    assert isinstance(mechanisms["SCRAM-SHA-256"], ScramMechanism)
    assert isinstance(mechanisms["GSSAPI"], GssapiMechanism)


def test_keytab_without_a_key_of_the_service_is_refused(service_keytab: Path) -> None:
    with pytest.raises(ValueError, match=r"^sasl_kerberos_keytab_file: no key of service 'kafka'"):
        made("GSSAPI", sasl_kerberos_keytab_file=service_keytab)


def test_malformed_kerberos_rule_is_refused(service_keytab: Path) -> None:
    with pytest.raises(
        ValueError, match=r"^sasl_kerberos_principal_to_local_rules: 'RULE:\[3\]' is not RULE:"
    ):
        made(
            "GSSAPI",
            sasl_kerberos_service_name="broker",
            sasl_kerberos_keytab_file=service_keytab,
            sasl_kerberos_principal_to_local_rules=["RULE:[3]"],
        )
