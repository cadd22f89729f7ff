"""Settings: TLS and authentication."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from gateway.settings.field_types import (
    HOUR,
    KIB,
    MIB,
    MINUTE,
    SECOND,
    SECTION_CONFIG,
    File,
    Mechanisms,
    TlsVersion,
)


class SecuritySettings(BaseModel):
    """TLS and authentication."""

    model_config = SECTION_CONFIG

    ssl_certificate_file: File | None = Field(
        None,
        description=(
            "PEM file with the server's certificate, followed by its chain. Reloaded when it "
            "changes."
        ),
    )
    ssl_key_file: File | None = Field(
        None, description="PEM file with the certificate's private key. Reloaded when it changes."
    )
    ssl_key_password_file: File | None = Field(
        None,
        description=(
            "File with the key's passphrase in its first line. A file, so that the passphrase is "
            "not visible in process lists."
        ),
    )
    ssl_ca_file: File | None = Field(
        None, description="PEM file with the authorities that sign client certificates."
    )
    ssl_client_auth: Literal["none", "requested", "required"] = Field(
        "none", description="Whether TLS clients must present a certificate. As in Kafka."
    )
    ssl_min_version: TlsVersion = Field(
        "TLSv1.2",
        description=(
            "Oldest TLS version accepted. Clients on Java 7 or older use TLSv1 by default; "
            "enabling it also enables its weak signature algorithms."
        ),
    )

    users_file: File | None = Field(
        None,
        description=(
            "File with user names and scrypt hashes, written by `kopgate users`. Reloaded when it "
            "changes."
        ),
    )
    sasl_enabled_mechanisms: Mechanisms = Field(
        ("PLAIN",), description="SASL mechanisms offered by SASL listeners."
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
            "logins leave the other cores free."
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
    connection_failed_authentication_delay_ms: int = Field(
        100,
        ge=0,
        le=1 * MINUTE,
        description=(
            "Delay before a connection is closed after a failed authentication, to slow down "
            "guessing. Kafka's default."
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
