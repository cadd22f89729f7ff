"""Settings: who may do what, and the audit log."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from gateway.settings.field_types import SECTION_CONFIG, File, Principals


class AuthorizationSettings(BaseModel):
    """Who may do what, and the audit log."""

    model_config = SECTION_CONFIG

    authorizer: Literal["none", "acls"] = Field(
        "none",
        description=(
            "Who decides what a principal may do: none (everything is allowed) or acls, the rules "
            "that kafka-acls.sh manages. None by default, as in Kafka."
        ),
    )
    super_users: Principals = Field(
        (),
        description=(
            "Principals that may do everything with authorizer=acls, as `User:NAME`, separated by "
            "commas or semicolons. At least one is needed to create the first ACLs."
        ),
    )
    allow_everyone_if_no_acl_found: bool = Field(
        False,
        description=(
            "Whether everybody may use a resource that no ACL applies to. Kafka's default: only "
            "super users may."
        ),
    )
    max_acls: int = Field(
        100_000,
        ge=1,
        le=10_000_000,
        description="Maximum number of ACLs, about 1 KiB of memory each.",
    )
    audit_log: File | None = Field(
        None,
        description=(
            "Folder of the audit log: log-ins, refusals and changes of ACLs, credentials and "
            "quotas, as JSON lines. Its files are rotated and kept by the settings of the traffic "
            "log. Disabled by default."
        ),
    )
