"""Settings: limits on connections and on requests in flight, and timeouts."""

from __future__ import annotations

from pydantic import BaseModel, Field

from gateway.settings.field_types import HOUR, INT32_MAX, KIB, MIB, MINUTE, SECOND, SECTION_CONFIG


class ConnectionSettings(BaseModel):
    """Limits on connections and on requests in flight, and timeouts."""

    model_config = SECTION_CONFIG

    max_connections: int = Field(
        10_000,
        ge=1,
        le=1_000_000,
        description=(
            "Maximum number of open connections, about 3 KiB each when idle, 27 KiB with TLS. The "
            "limit on open files must allow them."
        ),
    )
    max_connections_per_ip: int = Field(
        10_000,
        ge=1,
        le=1_000_000,
        description=(
            "Maximum number of open connections per IP address. As high as the total by default, "
            "because many clients often share one NAT address."
        ),
    )
    connections_max_idle_ms: int = Field(
        10 * MINUTE,
        ge=1 * SECOND,
        le=24 * HOUR,
        description=(
            "Connections idle for this long are closed. Kafka's default; Java clients close theirs "
            "after 9 min."
        ),
    )
    socket_request_max_bytes: int = Field(
        100 * MIB,
        ge=1 * KIB,
        le=INT32_MAX,
        description=(
            "Maximum size of a request. A larger one closes the connection. Kafka's default."
        ),
    )
    request_receive_timeout_ms: int = Field(
        2 * MINUTE,
        ge=1 * SECOND,
        le=24 * HOUR,
        description=(
            "Maximum time to receive a request after its first byte, since its memory is in use "
            "meanwhile. Enough for 100 MiB at 1 MB/s."
        ),
    )
    max_in_flight_bytes_per_connection: int = Field(
        16 * MIB,
        ge=1 * KIB,
        description=(
            "Maximum bytes of in-flight requests per connection; beyond it the connection is not "
            "read (one larger request is still accepted). Java producers have five requests of 1 "
            "MiB in flight, so 16 MiB does not slow them down."
        ),
    )
    max_in_flight_bytes: int = Field(
        512 * MIB,
        ge=1 * KIB,
        description=(
            "Maximum bytes of in-flight requests of all connections. Five requests of the maximum "
            "size by default."
        ),
    )
    max_in_flight_requests_per_connection: int = Field(
        100,
        ge=1,
        le=100_000,
        description=(
            "Maximum number of in-flight requests per connection; beyond it the connection is not "
            "read. Far above the five of Java clients, so that it only stops excessive pipelining."
        ),
    )
    partition_open_timeout_ms: int = Field(
        5 * SECOND,
        ge=1,
        le=10 * MINUTE,
        description=(
            "How long a request waits for a partition that is being opened; opening continues "
            "afterwards. Shorter than the request timeout of every client, including 10 s of the "
            "oldest: the client receives NOT_LEADER_OR_FOLLOWER and retries."
        ),
    )
    partition_open_backoff_max_ms: int = Field(
        5 * SECOND,
        ge=1,
        le=10 * MINUTE,
        description="Maximum backoff before a partition that repeatedly fails to open or is fenced "
        "repeatedly is opened again. Short enough that recovery is not delayed noticeably.",
    )
    shutdown_timeout_ms: int = Field(
        8 * SECOND,
        ge=0,
        le=10 * MINUTE,
        description=(
            "Maximum time to send outstanding responses at shutdown. Below 10 s, after which "
            "container runtimes kill the process."
        ),
    )
