"""Settings: users, passwords, tokens, sessions, and the time a log-in may take."""

from __future__ import annotations

from pydantic import BaseModel, Field

from gateway.settings.field_types import (
    HOUR,
    KIB,
    MIB,
    MINUTE,
    SECOND,
    SECTION_CONFIG,
    File,
    Key,
    KeySetUrl,
    Words,
)


class AuthenticationSettings(BaseModel):
    """Users, passwords, sessions, and the time a log-in may take."""

    model_config = SECTION_CONFIG

    users_file: File | None = Field(
        None,
        description=(
            "File with user names and scrypt hashes, written by `kopgate users`. Reloaded when it "
            "changes."
        ),
    )
    sasl_server_max_receive_size: int = Field(
        64 * KIB,
        ge=1 * KIB,
        le=100 * MIB,
        description=(
            "Maximum size of a SASL token: enough for the largest Kerberos tickets; passwords need "
            "much less. Kafka's default is 512 KiB."
        ),
    )
    sasl_check_threads: int = Field(
        2,
        ge=1,
        le=64,
        description=(
            "Concurrent password checks, about 50 ms and 16 MiB each. With two, many simultaneous "
            "log-ins leave the other cores free."
        ),
    )
    sasl_max_waiting_checks: int = Field(
        200,
        ge=1,
        le=100_000,
        description=(
            "Maximum number of queued password checks, about five seconds' worth. Connections "
            "beyond it are closed; clients retry."
        ),
    )
    sasl_kerberos_keytab_file: File | None = Field(
        None,
        description=(
            "Keytab with the keys of the service, for GSSAPI. The principals are "
            "`SERVICE/HOST@REALM`, with each host name that clients connect to. Read at each "
            "log-in."
        ),
    )
    sasl_kerberos_service_name: str = Field(
        "kafka",
        pattern=r"^[^/@\\\s]+$",
        description=(
            "First part of the service's Kerberos principals, which clients set as "
            "`sasl.kerberos.service.name`. Any host and realm of it in the keytab is accepted."
        ),
    )
    sasl_kerberos_principal_to_local_rules: Words = Field(
        ("DEFAULT",),
        description=(
            "Rules that map Kerberos names to principals, as in Kafka, for example "
            "`RULE:[2:$1-$2]/L`; the first that applies is used. Patterns are in RE2 syntax. "
            "`DEFAULT` is the first part of names in the default realm of krb5.conf. In a TOML "
            "list, rules may contain commas."
        ),
    )
    connection_failed_authentication_delay_ms: int = Field(
        100,
        ge=0,
        le=1 * MINUTE,
        description=(
            "Delay before a failed authentication is answered and its connection closed, to slow "
            "down guessing. Kafka's default."
        ),
    )
    connection_authentication_timeout_ms: int = Field(
        30 * SECOND,
        ge=100,
        le=1 * HOUR,
        description=(
            "Connections that are not authenticated within this time are closed. librdkafka gives "
            "up after 30 s, too."
        ),
    )
    connections_max_reauth_ms: int = Field(
        0,
        ge=0,
        description=(
            "Session lifetime after which clients must re-authenticate (KIP-368); 0 for no limit. "
            "A token that expires earlier ends the session earlier. Clients that cannot "
            "re-authenticate keep their connections."
        ),
    )
    connections_max_reauth_old_clients: bool = Field(
        False,
        description=(
            "Whether the end of a session or token also closes connections of clients that cannot "
            "re-authenticate, as in Kafka. They reconnect."
        ),
    )


class TokenSettings(BaseModel):
    """JSON Web Tokens: passwords of PLAIN as in KoP, and OAUTHBEARER."""

    model_config = SECTION_CONFIG

    token_secret_key: Key | None = Field(
        None,
        description=(
            "Pulsar's secret key, which lets PLAIN clients log in with the password `token:JWT`: "
            "`file:///PATH`, a path, or `data:;base64,KEY`. A file is safer, since settings are "
            "visible in process lists, and is reloaded when it changes. As in Pulsar, the bytes of "
            "the file are the key."
        ),
    )
    token_public_key: Key | None = Field(
        None,
        description=(
            "Pulsar's public key (RSA or EC, DER or PEM) instead of the secret key. Its type "
            "determines the algorithms, so Pulsar's `tokenPublicAlg` is not needed."
        ),
    )
    token_auth_claim: str = Field(
        "sub", min_length=1, description="Claim of a token with the user, Pulsar's role."
    )
    token_audience_claim: str | None = Field(
        None, description="Claim of a token that must contain `token_audience`. As in Pulsar."
    )
    token_audience: str | None = Field(
        None, description="This service's name in the audience claim. As in Pulsar."
    )
    token_allowed_clock_skew_seconds: int = Field(
        30,
        ge=0,
        le=3600,
        description=(
            "Tolerance for the clock of the issuer of tokens. Pulsar's default is 0; Kafka "
            "allows 30 s for OAUTHBEARER."
        ),
    )
    token_tenant_claim: str | None = Field(
        None,
        description=(
            "Claim of a token with the `TENANT` or `TENANT/NAMESPACE` that PLAIN clients may give "
            "as user name. If unset, they may give any name, as in KoP."
        ),
    )
    sasl_oauthbearer_jwks_endpoint_url: KeySetUrl | None = Field(
        None,
        description=(
            "Key set (JWKS) that verifies the tokens of OAUTHBEARER: `https://HOST/PATH` of the "
            "identity provider, or `file:///PATH`, which is reloaded when it changes. Without it "
            "they are verified as those of PLAIN, by the `token_` settings, as in KoP."
        ),
    )
    sasl_oauthbearer_jwks_endpoint_ca_file: File | None = Field(
        None,
        description=(
            "PEM file with the authorities of the identity provider's certificate. By default "
            "those of the operating system."
        ),
    )
    sasl_oauthbearer_jwks_endpoint_refresh_ms: int = Field(
        1 * HOUR,
        ge=1 * SECOND,
        description=(
            "Interval between two fetches of the key set. An unknown key id in a token also causes "
            "one, at most every 10 s. Kafka's default."
        ),
    )
    sasl_oauthbearer_jwks_endpoint_retry_backoff_ms: int = Field(
        100, ge=10, le=1 * HOUR, description="First pause after a failed fetch; it doubles."
    )
    sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms: int = Field(
        10 * SECOND, ge=10, le=24 * HOUR, description="Longest pause between failed fetches."
    )
    sasl_oauthbearer_expected_audience: Words = Field(
        (), description="A token must name one of these in `aud`. Empty accepts any audience."
    )
    sasl_oauthbearer_expected_issuer: str | None = Field(
        None, description="Issuer (`iss`) that a token must name. None accepts any issuer."
    )
    sasl_oauthbearer_clock_skew_seconds: int = Field(
        30,
        ge=0,
        le=3600,
        description="Tolerance for the identity provider's clock. Kafka's default.",
    )
    sasl_oauthbearer_scope_claim_name: str = Field(
        "scope",
        min_length=1,
        description=(
            "Claim with the scopes. As in Kafka they grant nothing, but a token with empty or "
            "repeated scopes is refused."
        ),
    )
    sasl_oauthbearer_sub_claim_name: str = Field(
        "sub", min_length=1, description="Claim with the name of the user."
    )
    sasl_oauthbearer_tenant_claim_name: str | None = Field(
        None,
        description=(
            "Claim with the client's `TENANT` or `TENANT/NAMESPACE`. If unset, clients have no "
            "tenant. SASL extensions are ignored, because they are not signed."
        ),
    )
    sasl_oauthbearer_allow_unsecured_tokens: bool = Field(
        False,
        description=(
            "For development only: whether tokens without a signature are accepted, so that "
            "clients can log in as any user."
        ),
    )
