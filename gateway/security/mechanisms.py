"""Creates the SASL mechanisms that the settings enable."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from auth.gssapi_mechanism import GssapiMechanism
from auth.jwt_tokens import TokenRules, TokenVerifier
from auth.kerberos_acceptor import KerberosAcceptor, KerberosError, default_realm
from auth.kerberos_names import KerberosRules
from auth.mechanism import Mechanism, RunInThread
from auth.oauth_bearer import OAuthBearerMechanism
from auth.plain import PlainMechanism, TokenLogin
from auth.scram import HASHES, ScramCredentialSource, ScramMechanism
from auth.signing_keys import (
    FixedKeys,
    KeyFile,
    KeysError,
    KeySet,
    KeySource,
    read_key_set,
    read_public_key,
    read_secret_key,
)
from auth.users import UsersFile
from gateway import logs
from gateway.security.key_download import KeyDownload, KeySetUrl, RefreshTimes, is_exposed
from gateway.settings.addresses import path_of_file_url
from gateway.settings.model import Settings

_log = logs.get_logger(__name__)


def make_mechanisms(
    settings: Settings,
    run: RunInThread,
    credentials: Callable[[], ScramCredentialSource],
    download: KeyDownload | None = None,
) -> dict[str, Mechanism]:
    """The SASL mechanisms that a listener has enabled, by name.

    `run` runs checks on other threads. `credentials` is called when a client begins.
    `download` is the result of `make_key_download`.

    Raises UsersFileError, or ValueError for keys that cannot be used.
    """
    mechanisms: dict[str, Mechanism] = {}
    enabled = settings.enabled_mechanisms()
    if settings.users_file is not None and "PLAIN" not in enabled:
        _log.warning(
            "users_file has no effect, because no listener offers PLAIN",
            remedy="add a listener such as SASL_SSL://HOST:PORT, or remove users_file",
        )
    tokens = _token_verifier(settings) if {"PLAIN", "OAUTHBEARER"} & set(enabled) else None
    for name in enabled:
        if name in HASHES:
            mechanisms[name] = ScramMechanism(name, credentials)
        elif name == GssapiMechanism.name:
            mechanisms[name] = _make_gssapi(settings, run)
        elif name == "OAUTHBEARER":
            verifier = _oauth_verifier(settings, tokens, download)
            mechanisms[name] = OAuthBearerMechanism(verifier, settings.pulsar_namespace)
        else:
            mechanisms[name] = _make_plain(settings, run, tokens)
    return mechanisms


def make_key_download(settings: Settings, reactor: Any) -> KeyDownload | None:
    """The fetching of an identity provider's keys, not started yet; None if there is nothing to
    fetch.
    """
    url = settings.sasl_oauthbearer_jwks_endpoint_url
    if (
        url is None
        or path_of_file_url(url) is not None
        or "OAUTHBEARER" not in settings.enabled_mechanisms()
    ):
        return None
    if is_exposed(url):
        _log.warning(
            "signing keys are fetched without TLS, so they can be replaced on the way",
            remedy="use https in sasl_oauthbearer_jwks_endpoint_url",
        )
    parts = urlsplit(url)
    return KeyDownload(
        KeySetUrl(url, settings.sasl_oauthbearer_jwks_endpoint_ca_file, reactor).fetch,
        f"{parts.scheme}://{parts.netloc}{parts.path}",
        RefreshTimes(
            settings.sasl_oauthbearer_jwks_endpoint_refresh_ms / 1000,
            settings.sasl_oauthbearer_jwks_endpoint_retry_backoff_ms / 1000,
            settings.sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms / 1000,
        ),
        reactor,
    )


def _make_plain(
    settings: Settings, run: RunInThread, tokens: TokenVerifier | None
) -> PlainMechanism:
    users = None
    if settings.users_file is not None:
        users = UsersFile(
            settings.users_file,
            time.monotonic,
            lambda problem: _log.warning("users file problem", problem=problem),
        )
    login = TokenLogin(tokens, settings.pulsar_namespace) if tokens else None
    return PlainMechanism(users, run, login)


def _token_verifier(settings: Settings) -> TokenVerifier | None:
    """The verifier with Pulsar's key and rules, or None without a key."""
    rules = TokenRules(
        subject_claim=settings.token_auth_claim,
        audience_claim=settings.token_audience_claim or "aud",
        audiences=frozenset({settings.token_audience} if settings.token_audience else ()),
        clock_skew_seconds=settings.token_allowed_clock_skew_seconds,
        tenant_claim=settings.token_tenant_claim,
    )
    for setting, location, read in (
        ("token_secret_key", settings.token_secret_key, read_secret_key),
        ("token_public_key", settings.token_public_key, read_public_key),
    ):
        if location is not None:
            with _errors_name(setting):
                keys: KeySource = (
                    FixedKeys(read(location.content or b""))
                    if location.path is None
                    else KeyFile(location.path, read, time.monotonic, _report_key_problem)
                )
            return TokenVerifier(keys, rules, time.time)
    return None


@contextmanager
def _errors_name(setting: str) -> Iterator[None]:
    """Add the setting's name to a KeysError, which names the file only."""
    try:
        yield
    except KeysError as error:
        raise KeysError(f"{setting}: {error}") from None


def _oauth_verifier(
    settings: Settings, tokens: TokenVerifier | None, download: KeyDownload | None
) -> TokenVerifier:
    """The verifier with the identity provider's keys and Kafka's rules, or else `tokens`."""
    url = settings.sasl_oauthbearer_jwks_endpoint_url
    allows_unsecured = settings.sasl_oauthbearer_allow_unsecured_tokens
    path = None if url is None else path_of_file_url(url)
    keys: KeySource
    if download is not None:
        keys = download
    elif path is not None:
        with _errors_name("sasl_oauthbearer_jwks_endpoint_url"):
            keys = KeyFile(path, read_key_set, time.monotonic, _report_key_problem)
    elif allows_unsecured:
        keys = FixedKeys(KeySet())
    elif tokens is not None:
        return tokens
    else:
        raise ValueError("OAUTHBEARER needs sasl_oauthbearer_jwks_endpoint_url")
    if allows_unsecured:
        _log.warning(
            "OAUTHBEARER accepts tokens without a signature, so clients can log in as any user",
            remedy="remove sasl_oauthbearer_allow_unsecured_tokens",
        )
    rules = TokenRules(
        subject_claim=settings.sasl_oauthbearer_sub_claim_name,
        issuer=settings.sasl_oauthbearer_expected_issuer,
        audiences=frozenset(settings.sasl_oauthbearer_expected_audience),
        clock_skew_seconds=settings.sasl_oauthbearer_clock_skew_seconds,
        requires_times=True,
        tenant_claim=settings.sasl_oauthbearer_tenant_claim_name,
        scope_claim=settings.sasl_oauthbearer_scope_claim_name,
        allows_unsecured=allows_unsecured,
    )
    return TokenVerifier(keys, rules, time.time)


def _report_key_problem(problem: str) -> None:
    _log.warning("signing key problem", problem=problem)


def _make_gssapi(settings: Settings, run: RunInThread) -> GssapiMechanism:
    """Raises ValueError."""
    keytab = settings.sasl_kerberos_keytab_file
    if keytab is None:
        raise ValueError("GSSAPI needs sasl_kerberos_keytab_file")
    try:
        acceptor = KerberosAcceptor(settings.sasl_kerberos_service_name, keytab)
        realm = default_realm()
    except KerberosError as error:
        raise ValueError(f"sasl_kerberos_keytab_file: {error}") from None
    try:
        rules = KerberosRules(settings.sasl_kerberos_principal_to_local_rules, realm)
    except ValueError as error:
        raise ValueError(f"sasl_kerberos_principal_to_local_rules: {error}") from None
    return GssapiMechanism(acceptor.make_context, rules, run)
