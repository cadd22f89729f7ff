"""What may be wrong with a Pulsar cluster for this gateway, each said with what it leads to and how to set it right."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass

import msgspec

from storage.log import StorageFailed
from storage.pulsar.admin.token_file import TokenFile
from storage.pulsar.settings import PulsarSettings
from storage.pulsar.topics.namespaces import own_namespaces


@dataclass(frozen=True, slots=True)
class ClusterProblem:
    """`is_fatal`: the gateway does not start with it; otherwise it is a warning. `is_transient`: without anybody doing anything."""

    is_fatal: bool
    text: str
    remedy: str
    is_transient: bool = False

    def __str__(self) -> str:
        """One line, whatever a broker has said."""
        return " ".join(f"{self.text}. To do: {self.remedy}".split())


class TokenClaims(msgspec.Struct, frozen=True):
    """Of a JWT: whose it is."""

    sub: str = ""


def role_of(settings: PulsarSettings) -> str:
    """The role that the token is for, which is no secret; ROLE where that cannot be seen."""
    try:
        payload = TokenFile(settings.token_file).read().split(".")[1] if settings.token_file else ""
        return (
            msgspec.json.decode(
                base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)), type=TokenClaims
            ).sub
            or "ROLE"
        )
    except (StorageFailed, IndexError, binascii.Error, ValueError, msgspec.DecodeError):
        return "ROLE"


class Remedies:
    """The commands that set things right; for the gateway's own namespaces it can do most itself."""

    def __init__(self, settings: PulsarSettings) -> None:
        self._own = own_namespaces(settings)
        self._role = role_of(settings)

    def _or_setup(self, namespace: str, command: str) -> str:
        return (
            f"`{command}`, or start the gateway with --pulsar-setup"
            if namespace in self._own
            else f"`{command}`"
        )

    def create_tenant(self, namespace: str) -> str:
        tenant = namespace.partition("/")[0]
        return self._or_setup(
            namespace,
            f"pulsar-admin tenants create {tenant} && pulsar-admin namespaces create {namespace}",
        )

    def create_namespace(self, namespace: str) -> str:
        return self._or_setup(namespace, f"pulsar-admin namespaces create {namespace}")

    def retain(self, namespace: str) -> str:
        return self._or_setup(
            namespace, f"pulsar-admin namespaces set-retention {namespace} --time -1 --size -1"
        )

    def disable_auto_creation(self, namespace: str) -> str:
        return self._or_setup(
            namespace, f"pulsar-admin namespaces set-auto-topic-creation {namespace} --disable"
        )

    def disable_inactive_deletion(self, namespace: str) -> str:
        modes = "--disable-delete-while-inactive --max-inactive-duration 60s --delete-mode delete_when_no_subscriptions"
        return self._or_setup(
            namespace, f"pulsar-admin namespaces set-inactive-topic-policies {namespace} {modes}"
        )

    def grant(self, namespace: str) -> str:
        return f"`pulsar-admin namespaces grant-permission {namespace} --role {self._role} --actions produce,consume`"

    def administer(self, namespace: str) -> str:
        tenant = namespace.partition("/")[0]
        return (
            f"make the gateway's role an administrator of the tenant: `pulsar-admin tenants update {tenant} --admin-roles {self._role}` "
            "(with those who are it already)"
        )

    def raise_message_size(self, size: int) -> str:
        return f"set in the brokers' configuration maxMessageSize to {size} or more and nettyMaxFrameSizeBytes to 10 KiB above that"
