"""Client quotas as values: entities, their order of precedence, changes and filters (KIP-546).

The rules and messages are those of Kafka's ClientQuotaControlManager, ClientQuotasImage and
ClientQuotaManager.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from ipaddress import ip_address
from math import isnan
from typing import TypeAlias

import msgspec

from gateway.protocol.errors import ErrorCode, KafkaError

USER, CLIENT_ID, IP = "user", "client-id", "ip"

PRODUCER_BYTE_RATE = "producer_byte_rate"
CONSUMER_BYTE_RATE = "consumer_byte_rate"
REQUEST_PERCENTAGE = "request_percentage"

#: The quotas that are enforced, in their order in replies.
QUOTA_KEYS = (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, REQUEST_PERCENTAGE)

#: Kafka's other quotas. They are refused, because they are not enforced.
UNSUPPORTED_KEYS = frozenset({"controller_mutation_rate", "connection_creation_rate"})

#: Quotas whose value is a whole number, and the type and the largest value that Kafka names.
_INTEGRAL = {
    PRODUCER_BYTE_RATE: ("a LONG", 2.0**63),
    CONSUMER_BYTE_RATE: ("a LONG", 2.0**63),
    "connection_creation_rate": ("an INT", 2.0**31 - 1),
}

#: Characters of an entity's names together. Kafka's limit is that of a string, 32,767 bytes, each.
MAX_ENTITY_CHARS = 4_000

#: Names by type, as in requests. None is the default entity of a type.
EntityNames: TypeAlias = "Mapping[str, str | None]"

#: The same, as a key.
EntityKey: TypeAlias = "tuple[tuple[str, str | None], ...]"


class QuotaEntity(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A user, a client id, or a client id of a user.

    None stands for the default: all that have no quota of their own. An empty name means that the
    type is not part of the entity.
    """

    user: str | None
    client_id: str | None

    @property
    def names(self) -> dict[str, str | None]:
        """The names by type, in Kafka's order."""
        return {
            kind: name
            for kind, name in ((CLIENT_ID, self.client_id), (USER, self.user))
            if name != ""
        }


def entities_by_precedence(user: str, client_id: str) -> list[tuple[QuotaEntity, tuple[str, str]]]:
    """Return the entities of a client, each with the clients whose usage it limits together.

    The most specific entity is first. The limited clients are given as user and client id; an empty
    name stands for all. Clients without a client id have quotas of users only.
    """
    if not client_id:
        return [
            (QuotaEntity(user, ""), (user, "")),
            (QuotaEntity(None, ""), (user, "")),
        ]
    both = (user, client_id)
    return [
        (QuotaEntity(user, client_id), both),
        (QuotaEntity(user, None), both),
        (QuotaEntity(user, ""), (user, "")),
        (QuotaEntity(None, client_id), both),
        (QuotaEntity(None, None), both),
        (QuotaEntity(None, ""), (user, "")),
        (QuotaEntity("", client_id), ("", client_id)),
        (QuotaEntity("", None), ("", client_id)),
    ]


class QuotaAlteration(msgspec.Struct, frozen=True, gc=False):
    """The changes of one entity: new values in order, None for removal."""

    names: EntityNames
    values: Sequence[tuple[str, float | None]]

    @property
    def key(self) -> EntityKey:
        return tuple(sorted(self.names.items()))


def entity_text(names: EntityNames) -> str:
    """An entity as Kafka's messages name it."""
    parts = (f"{kind}={'null' if name is None else name}" for kind, name in sorted(names.items()))
    return f"ClientQuotaEntity(entries={{{', '.join(parts)}}})"


def make_entity(names: EntityNames) -> QuotaEntity | None:
    """Validate the names of an entity. Returns None for an address (type `ip`).

    Raises KafkaError(INVALID_REQUEST).
    """
    if not names:
        raise _invalid("Invalid empty client quota entity")
    for kind, name in names.items():
        if kind not in (USER, CLIENT_ID, IP):
            raise _invalid(f"Unhandled client quota entity type: {kind}")
        if name == "":
            raise _invalid(f"Empty {kind} not supported")
    if IP in names:
        if len(names) > 1:
            raise _invalid(
                "Invalid quota entity combination, IP entity should"
                "not be combined with User or ClientId"
            )
        if not _may_be_host(names[IP]):
            raise _invalid(f"{names[IP]} is not a valid IP or resolvable host.")
        return None
    if sum(len(name or "") for name in names.values()) > MAX_ENTITY_CHARS:
        raise _invalid(f"The names of an entity may have at most {MAX_ENTITY_CHARS} characters")
    return QuotaEntity(names.get(USER, ""), names.get(CLIENT_ID, ""))


def _may_be_host(name: str | None) -> bool:
    """Whether the name is an address or looks like a host name, which is not resolved."""
    if name is None:
        return True
    try:
        ip_address(name)
    except ValueError:
        return all(part and part.replace("-", "").isalnum() for part in name.split(".")) and not (
            name.replace(".", "").isdigit()
        )
    return True


def check_value(key: str, value: float, *, is_ip: bool) -> None:
    """Validate the value of a quota.

    Raises KafkaError(INVALID_REQUEST), also for quotas that Kafka has but the gateway does not
    enforce.
    """
    known = ("connection_creation_rate",) if is_ip else (*QUOTA_KEYS, "controller_mutation_rate")
    if key not in known:
        raise _invalid(f"Invalid configuration key {key}")
    if isnan(value) or value <= 0:
        raise _invalid(f"Quota {key} must be greater than 0")
    if key in _INTEGRAL:
        type_name, largest = _INTEGRAL[key]
        if value > largest:
            raise _invalid(f"Proposed value for {key} is too large for {type_name}.")
        if value % 1 > 1e-6:
            raise _invalid(f"{key} cannot be a fractional value.")
    if key in UNSUPPORTED_KEYS:
        raise _invalid(f"The quota {key} is not supported: the gateway would not enforce it")


class QuotaMatch(IntEnum):
    """Codes of the match types of DescribeClientQuotas."""

    EXACT = 0
    DEFAULT = 1
    ANY = 2


class QuotaFilter(msgspec.Struct, frozen=True, gc=False):
    """Selects entities: those with the names `exact` and any name of the types in `any_of`.

    `is_strict` leaves out entities with other types.
    """

    exact: EntityNames
    any_of: frozenset[str]
    is_strict: bool

    def matches(self, entity: QuotaEntity) -> bool:
        names = entity.names
        if self.is_strict and len(names) != len(self.exact) + len(self.any_of):
            return False
        return self.any_of <= names.keys() and all(
            kind in names and names[kind] == name for kind, name in self.exact.items()
        )


def make_quota_filter(
    components: Iterable[tuple[str, int, str | None]], *, is_strict: bool
) -> QuotaFilter:
    """Validate the components of a filter: entity type, match type and name.

    Raises KafkaError: INVALID_REQUEST, or UNSUPPORTED_VERSION for unknown entity types.
    """
    exact: dict[str, str | None] = {}
    any_of: set[str] = set()
    for kind, match, name in components:
        if not kind:
            raise _invalid("Invalid empty entity type.")
        if kind in exact or kind in any_of:
            raise _invalid(f"Entity type {kind} cannot appear more than once in the filter.")
        if kind not in (USER, CLIENT_ID, IP):
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"Unsupported entity type {kind}")
        if match == QuotaMatch.EXACT:
            if name is None:
                raise _invalid("Request specified MATCH_TYPE_EXACT, but set match string to null.")
            exact[kind] = name
        elif match not in (QuotaMatch.DEFAULT, QuotaMatch.ANY):
            raise _invalid(f"Unknown match type {match}")
        elif name is not None:
            type_name = "DEFAULT" if match == QuotaMatch.DEFAULT else "SPECIFIED"
            raise _invalid(
                f"Request specified MATCH_TYPE_{type_name}, but also specified a match string."
            )
        elif match == QuotaMatch.DEFAULT:
            exact[kind] = None
        else:
            any_of.add(kind)
    kinds = {*exact, *any_of}
    if IP in kinds and len(kinds) > 1:
        raise _invalid(
            "Invalid entity filter component combination. IP filter component should not be used "
            "with user or clientId filter component."
        )
    return QuotaFilter(exact, frozenset(any_of), is_strict)


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)


__all__ = [
    "CLIENT_ID",
    "CONSUMER_BYTE_RATE",
    "PRODUCER_BYTE_RATE",
    "QUOTA_KEYS",
    "REQUEST_PERCENTAGE",
    "USER",
    "EntityKey",
    "EntityNames",
    "QuotaAlteration",
    "QuotaEntity",
    "QuotaFilter",
    "QuotaMatch",
    "check_value",
    "entities_by_precedence",
    "entity_text",
    "make_entity",
    "make_quota_filter",
]
