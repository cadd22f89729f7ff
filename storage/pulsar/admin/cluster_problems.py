"""Problems of a Pulsar cluster, each with its consequence and remedy."""

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
    """A problem found by the checks.

    `is_fatal`: the gateway does not start; otherwise it is a warning. `is_transient`: it may
    disappear without intervention.
    """

    is_fatal: bool
    text: str
    remedy: str
    is_transient: bool = False

    def __str__(self) -> str:
        """One line, even if a broker's reason has several."""
        return " ".join(f"{self.text.rstrip('.')}. To do: {self.remedy}".split())


class TokenClaims(msgspec.Struct, frozen=True):
    """The claims of the token (a JWT) that the gateway reads: only the role."""

    sub: str = ""


def role_of(settings: PulsarSettings) -> str:
    """The token's role, which is not secret; "ROLE" if it cannot be read."""
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
    """Commands that fix problems. The gateway can set up most of its namespaces itself."""

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
        modes = (
            "--disable-delete-while-inactive --max-inactive-duration 60s "
            "--delete-mode delete_when_no_subscriptions"
        )
        return self._or_setup(
            namespace, f"pulsar-admin namespaces set-inactive-topic-policies {namespace} {modes}"
        )

    def grant(self, namespace: str) -> str:
        return (
            f"`pulsar-admin namespaces grant-permission {namespace} --role {self._role} "
            "--actions produce,consume`"
        )

    def administer(self, namespace: str) -> str:
        tenant = namespace.partition("/")[0]
        return (
            "make the gateway's role an administrator of the tenant: "
            f"`pulsar-admin tenants update {tenant} --admin-roles {self._role}` "
            "(including the existing administrators)"
        )

    def raise_message_size(self, size: int) -> str:
        return (
            f"set in the brokers' configuration maxMessageSize to {size} or more and "
            "nettyMaxFrameSizeBytes to 10 KiB above that"
        )
