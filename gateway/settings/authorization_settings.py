"""Settings: who may do what, and the audit log."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from gateway.settings.field_types import (
    HOUR,
    MINUTE,
    SECOND,
    SECTION_CONFIG,
    File,
    Principals,
)


class AuthorizationSettings(BaseModel):
    """Who may do what, and the audit log."""

    model_config = SECTION_CONFIG

    authorizer: Literal["none", "acls", "pulsar"] = Field(
        "none",
        description=(
            "What decides which requests a principal may make: `none` (all are allowed), `acls` "
            "(the rules that kafka-acls.sh manages) or `pulsar` (the permissions in Pulsar of the "
            "role with the user's name). `none` by default, as in Kafka."
        ),
    )
    super_users: Principals = Field(
        (),
        description=(
            "Principals that the authorizer allows everything, as `User:NAME`, separated by commas "
            "or semicolons. At least one is needed to create the first ACLs. List Pulsar's "
            "superusers here as well: the gateway cannot read them."
        ),
    )
    allow_everyone_if_no_acl_found: bool = Field(
        False,
        description=(
            "Whether every principal may use a resource that no ACL applies to. Kafka's default: "
            "only super users may."
        ),
    )
    max_acls: int = Field(
        100_000,
        ge=1,
        le=10_000_000,
        description="Maximum number of ACLs, about 1 KiB of memory each.",
    )
    pulsar_permissions_refresh_ms: int = Field(
        30 * SECOND,
        ge=100,
        le=1 * HOUR,
        description=(
            "How often permissions are read from Pulsar with authorizer=pulsar: a revoked one "
            "stays effective for at most this time. After a refusal they are read within a second, "
            "so that a new one applies soon. KoP's default. One call per namespace and tenant."
        ),
    )
    pulsar_permissions_max_age_ms: int = Field(
        10 * MINUTE,
        ge=1 * SECOND,
        le=24 * HOUR,
        description=(
            "How long the last known permissions apply if Pulsar's admin API cannot be read. "
            "Afterwards everything is refused, except to super users. Longer than a restart of the "
            "brokers, but limited, since revoked permissions stay effective meanwhile."
        ),
    )
    pulsar_permissions_max: int = Field(
        50_000,
        ge=1,
        le=10_000_000,
        description=(
            "Maximum number of permissions of one namespace, about 300 bytes of memory each. With "
            "more, the gateway does not start, or keeps the last known ones."
        ),
    )
    pulsar_permissions_wildcards: bool = Field(
        False,
        description=(
            "Whether `*` at the beginning or end of a role stands for any text in permissions on a "
            "namespace. Use the value of authorizationAllowWildcardsMatching in the brokers, which "
            "the gateway cannot read."
        ),
    )
    max_client_quotas: int = Field(
        100_000,
        ge=1,
        le=10_000_000,
        description=(
            "Maximum number of users, client ids and pairs of both with quotas, about 1 KiB of "
            "memory each."
        ),
    )
    quota_window_num: int = Field(
        11,
        ge=1,
        le=3600,
        description=(
            "Number of samples over which the usage of client quotas is averaged, including the "
            "current one."
        ),
    )
    quota_window_size_seconds: int = Field(
        1,
        ge=1,
        le=3600,
        description=(
            "Length of a sample of client quotas; also the maximum throttle time of "
            "request_percentage."
        ),
    )
    audit_log: File | None = Field(
        None,
        description=(
            "Folder of the audit log: log-ins, refusals and changes of ACLs, credentials and "
            "quotas, as JSON lines. Its files are rotated and kept by the settings of the traffic "
            "log. Disabled by default."
        ),
    )
