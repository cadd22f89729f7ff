"""Topic names: a Kafka client's, Pulsar's, and the admin API's. The rules are those of KoP.

`t` is in the default namespace; `tenant/namespace/t` and `persistent://tenant/namespace/t` (also
with three slashes) name another one; `namespace/t` is invalid. A topic is listed by its short name
in the default namespace and by its full name elsewhere. Partition n of a partitioned topic is a
separate Pulsar topic, `...-partition-n`.
"""

from __future__ import annotations

import re
from urllib.parse import quote

from storage.pulsar.settings import PulsarSettings

PREFIX = "persistent://"
INTERNAL_PREFIX = "__kopgate"
"""Prefix of the gateway's internal topics."""

_TRAFFIC_TOPIC = f"{INTERNAL_PREFIX}_traffic"
"""Written by the gateway, but readable by clients."""

MAX_NAME_CHARACTERS = 512
"""Limit on a local name. Kafka's limit is 249; Pulsar has none, but names are part of paths and
keys.
"""

_SYSTEM = ("__change_events", "__transaction")
"""Prefixes of Pulsar's system topics in a namespace (SystemTopicNames)."""

_PENDING_ACKNOWLEDGEMENTS = "__transaction_pending_ack"
_PARTITION = re.compile(r"(.+)-partition-(0|[1-9][0-9]{0,9})", re.DOTALL)


def path_of(full_name: str) -> str:
    """The admin API path of a topic: `persistent://a/b/t` -> `/persistent/a/b/t`."""
    return "/persistent/" + "/".join(
        quote(part, safe="") for part in full_name.removeprefix(PREFIX).split("/", 2)
    )


def partition_name(full_name: str, partition: int) -> str:
    """The Pulsar topic of a partition of a partitioned topic."""
    return f"{full_name}-partition-{partition}"


def partition_of(full_name: str) -> tuple[str, int] | None:
    """The partitioned topic and partition number that this name would denote, or None.

    Only the list of topics tells whether it is a partition.
    """
    found = _PARTITION.fullmatch(full_name)
    return (found[1], int(found[2])) if found else None


def is_internal(local_name: str) -> bool:
    """Whether a topic is internal to the gateway or Pulsar and hidden from clients."""
    if local_name == _TRAFFIC_TOPIC:
        return False
    return local_name.startswith((INTERNAL_PREFIX, *_SYSTEM)) or local_name.endswith(
        _PENDING_ACKNOWLEDGEMENTS
    )


class PulsarNames:
    """Names in the namespaces that a gateway serves: the default one, then the allowed ones."""

    def __init__(self, settings: PulsarSettings) -> None:
        self._default = f"{settings.tenant}/{settings.namespace}"
        self.namespaces = tuple(dict.fromkeys((self._default, *settings.allowed_namespaces)))

    def full_name(self, name: str) -> str:
        """Pulsar's name of the topic. Raises ValueError for a name that cannot be served."""
        long = name.startswith(PREFIX)
        parts = name.removeprefix(PREFIX).removeprefix("/" if long else "").split("/")
        if len(parts) == 1 and not long:
            parts = [*self._default.split("/"), name]
        if len(parts) != 3:
            raise ValueError(
                f"{name!r} is not a topic name: use NAME, TENANT/NAMESPACE/NAME or "
                f"{PREFIX}TENANT/NAMESPACE/NAME"
            )
        namespace, local = "/".join(parts[:2]), parts[2]
        if namespace not in self.namespaces:
            raise ValueError(
                f"{name!r}: namespace {namespace} is not served; add it to allowed_namespaces"
            )
        if (
            not local
            or not local.isprintable()
            or local in (".", "..")
            or len(local) > MAX_NAME_CHARACTERS
        ):
            raise ValueError(
                f"{name!r} is not a topic name: a name has 1 to {MAX_NAME_CHARACTERS} printable "
                "characters and is neither '.' nor '..'"
            )
        if is_internal(local):
            raise ValueError(f"{name!r} is reserved for internal topics of Pulsar or the gateway")
        return f"{PREFIX}{namespace}/{local}"

    def canonical(self, name: str) -> str:
        """The listed name: short in the default namespace, full elsewhere. Raises ValueError."""
        full = self.full_name(name)
        return full.removeprefix(f"{PREFIX}{self._default}/")

    def listed(self, full_name: str) -> str | None:
        """The canonical name of a topic listed by Pulsar; None if it is not served."""
        try:
            return self.canonical(full_name) if full_name.startswith(PREFIX) else None
        except ValueError:
            return None
