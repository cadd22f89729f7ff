"""Names of topics: what a Kafka client calls a topic, what Pulsar calls it, and where the admin API has it. The rules are KoP's.

`t` is in the default namespace, `tenant/namespace/t` and `persistent://tenant/namespace/t` where they say; `namespace/t` is nothing. A topic is listed
by its short name in the default namespace and by its full name elsewhere. Partition n of a partitioned topic is a topic of Pulsar's of its own,
`...-partition-n`.
"""

from __future__ import annotations

import re
from urllib.parse import quote

from storage.pulsar.settings import PulsarSettings

PREFIX = "persistent://"
INTERNAL_PREFIX = "__kopgate"
"""Begins the names of topics that the gateway keeps for itself."""

_TRAFFIC_TOPIC = f"{INTERNAL_PREFIX}_traffic"
"""But for this one, which it writes for others to read."""

MAX_NAME_CHARACTERS = 512
"""Characters of a local name: Kafka's longest name has 249; Pulsar has no limit, but each name is part of paths and of keys in its metadata."""

_SYSTEM = ("__change_events", "__transaction")
"""What the names of Pulsar's own topics in a namespace begin with (SystemTopicNames)."""

_PENDING_ACKNOWLEDGEMENTS = "__transaction_pending_ack"
_PARTITION = re.compile(r"(.+)-partition-(0|[1-9][0-9]{0,9})", re.DOTALL)


def path_of(full_name: str) -> str:
    """Where the admin API has the topic of that full name: `persistent://a/b/t` -> `/persistent/a/b/t`."""
    return "/persistent/" + "/".join(
        quote(part, safe="") for part in full_name.removeprefix(PREFIX).split("/", 2)
    )


def partition_name(full_name: str, partition: int) -> str:
    """What Pulsar calls that partition of a partitioned topic."""
    return f"{full_name}-partition-{partition}"


def partition_of(full_name: str) -> tuple[str, int] | None:
    """The partitioned topic that one of this name would be a partition of, and which; whether it is one only the list of topics tells."""
    found = _PARTITION.fullmatch(full_name)
    return (found[1], int(found[2])) if found else None


def is_internal(local_name: str) -> bool:
    """Whether a topic is none of the clients' business: the gateway's own, or Pulsar's."""
    if local_name == _TRAFFIC_TOPIC:
        return False
    return local_name.startswith((INTERNAL_PREFIX, *_SYSTEM)) or local_name.endswith(
        _PENDING_ACKNOWLEDGEMENTS
    )


class PulsarNames:
    """The names in the namespaces that a gateway serves: the default one first, then those that are allowed beside it."""

    def __init__(self, settings: PulsarSettings) -> None:
        self._default = f"{settings.tenant}/{settings.namespace}"
        self.namespaces = tuple(dict.fromkeys((self._default, *settings.allowed_namespaces)))

    def full_name(self, name: str) -> str:
        """What Pulsar calls the topic. Raises ValueError, with the reason, for a name that can be no topic of this gateway's."""
        long = name.startswith(PREFIX)
        parts = name.removeprefix(PREFIX).split("/")
        if len(parts) == 1 and not long:
            parts = [*self._default.split("/"), name]
        if len(parts) != 3:
            raise ValueError(
                f"{name!r} is no topic: write NAME, TENANT/NAMESPACE/NAME or {PREFIX}TENANT/NAMESPACE/NAME"
            )
        namespace, local = "/".join(parts[:2]), parts[2]
        if namespace not in self.namespaces:
            raise ValueError(
                f"{name!r}: topics of {namespace} are not served here; allowed_namespaces says which are"
            )
        if (
            not local
            or not local.isprintable()
            or local in (".", "..")
            or len(local) > MAX_NAME_CHARACTERS
        ):
            raise ValueError(
                f"{name!r} is no topic: a name has 1 to {MAX_NAME_CHARACTERS} printable characters and is neither '.' nor '..'"
            )
        if is_internal(local):
            raise ValueError(f"{name!r} is a name of Pulsar's or this gateway's own topics")
        return f"{PREFIX}{namespace}/{local}"

    def canonical(self, name: str) -> str:
        """The name by which the topic is listed: the short one in the default namespace, elsewhere the full one. Raises ValueError."""
        full = self.full_name(name)
        return full.removeprefix(f"{PREFIX}{self._default}/")

    def listed(self, full_name: str) -> str | None:
        """The canonical name of a topic that Pulsar lists; None for one that is not served."""
        try:
            return self.canonical(full_name) if full_name.startswith(PREFIX) else None
        except ValueError:
            return None
