"""Settings: users, passwords, sessions, and the time a log-in may take."""

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
    connections_max_reauth_ms: int = Field(
        0,
        ge=0,
        description=(
            "Session lifetime after which clients must re-authenticate (KIP-368); 0 for no limit. "
            "Clients that cannot re-authenticate keep their connections."
        ),
    )
    connections_max_reauth_old_clients: bool = Field(
        False,
        description=(
            "Whether the end of a session also closes connections of clients that cannot "
            "re-authenticate, as in Kafka. They reconnect."
        ),
    )
