"""The client quotas, in a state table.

A row is one entity with its quotas. Its key is a digest, because names can be longer than keys. The
rules of changes are those of Kafka's ClientQuotaControlManager: all valid changes of a request are
stored together.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import msgspec

from gateway.cluster.replicated_rows import load_and_follow
from gateway.coroutines import SerialChanges, TimeSlices
from gateway.protocol.errors import ErrorCode, KafkaError, storage_error
from gateway.security.quotas import (
    REQUEST_PERCENTAGE,
    EntityKey,
    QuotaAlteration,
    QuotaEntity,
    check_value,
    entities_by_precedence,
    entity_text,
    make_entity,
)
from storage.log import StateTable, StorageError

#: The quota's value, and the client whose usage it limits: user and client id, either may be empty.
FoundQuota = tuple[float, tuple[str, str]]


class _Row(msgspec.Struct, frozen=True, array_like=True):
    entity: QuotaEntity
    values: dict[str, float]


class ClientQuotas:
    """Quotas by entity and key. At most `max_entities` entities have quotas.

    `is_active` says whether there are any; while there are none, requests are not counted.
    `limits_time` says whether the time of any client is limited.
    """

    def __init__(self, table: StateTable, *, max_entities: int) -> None:
        self._table = table
        self._max_entities = max_entities
        self._entities: dict[QuotaEntity, dict[str, float]] = {}
        self._by_key: dict[bytes, QuotaEntity] = {}
        self._changes = SerialChanges()
        self._on_change: Callable[[], None] = _nothing
        self.is_active = False
        self.limits_time = False

    async def open(self) -> None:
        """Load the table. Raises StorageError."""
        await load_and_follow(self._table, "client-quotas", self._apply_row, self._changed)
        self._changed()

    def _apply_row(self, key: bytes, value: bytes | None) -> None:
        if value is not None:
            row = msgspec.msgpack.decode(value, type=_Row)
            self._by_key[key] = row.entity
            self._entities[row.entity] = row.values
        elif (entity := self._by_key.pop(key, None)) is not None:
            self._entities.pop(entity, None)

    def watch(self, on_change: Callable[[], None]) -> None:
        """Call `on_change` after each change."""
        self._on_change = on_change

    def __len__(self) -> int:
        return len(self._entities)

    def __iter__(self) -> Iterator[tuple[QuotaEntity, Mapping[str, float]]]:
        """Iterate over a copy of the entities and their quotas."""
        return iter(list(self._entities.items()))

    def find(self, key: str, user: str, client_id: str) -> FoundQuota | None:
        """Return the most specific quota of a client, or None if it has none.

        `client_id` is empty for a client without one.
        """
        for entity, limited in entities_by_precedence(user, client_id):
            value = self._entities.get(entity, {}).get(key)
            if value is not None:
                return value, limited
        return None

    async def alter(
        self,
        alterations: Sequence[QuotaAlteration],
        slices: TimeSlices,
        *,
        validate_only: bool = False,
    ) -> dict[EntityKey, KafkaError | None]:
        """Apply the valid changes together.

        Returns the error of each entity, None for success. Changes are serialized. Raises
        KafkaError if they cannot be stored.
        """
        return await self._changes.make(
            partial(self._alter, alterations, slices, validate_only=validate_only)
        )

    async def _alter(
        self, alterations: Sequence[QuotaAlteration], slices: TimeSlices, *, validate_only: bool
    ) -> dict[EntityKey, KafkaError | None]:
        errors, changed = await self._check(alterations, slices)
        if changed and not validate_only:
            await self._put(changed, slices)
        return errors

    async def _check(
        self, alterations: Sequence[QuotaAlteration], slices: TimeSlices
    ) -> tuple[dict[EntityKey, KafkaError | None], dict[QuotaEntity, dict[str, float]]]:
        """Return the error and the new quotas of each entity that changes."""
        errors: dict[EntityKey, KafkaError | None] = {}
        changed: dict[QuotaEntity, dict[str, float]] = {}
        added = 0
        for one in alterations:
            key = one.key
            if key in errors or len({key for key, _ in one.values}) < len(one.values):
                # In Kafka, too, the first change of an entity is made all the same.
                errors[key] = KafkaError(
                    ErrorCode.INVALID_REQUEST,
                    f"Ignoring duplicate entity {entity_text(one.names)}",
                )
                continue
            errors[key] = None
            try:
                entity = self._validate(one)
                if entity is not None:
                    added += self._altered(entity, one, changed, added)
            except KafkaError as error:
                errors[key] = error
            await slices.take(1 + len(one.values))
        return errors, changed

    def _validate(self, alteration: QuotaAlteration) -> QuotaEntity | None:
        """Return the entity, None for an address, which has no quotas. Raises KafkaError."""
        entity = make_entity(alteration.names)
        for key, value in alteration.values:
            if value is not None:
                check_value(key, value, is_ip=entity is None)
        return entity

    def _altered(
        self,
        entity: QuotaEntity,
        alteration: QuotaAlteration,
        changed: dict[QuotaEntity, dict[str, float]],
        added: int,
    ) -> int:
        """Put the entity's new quotas into `changed`. Returns how many entities that adds.

        Raises KafkaError(POLICY_VIOLATION) beyond the limit.
        """
        before = self._entities.get(entity, {})
        after = dict(before)
        for key, value in alteration.values:
            if value is None:
                after.pop(key, None)
            else:
                after[key] = value
        if after == before:
            return 0
        is_added = not before
        if is_added and len(self._entities) + added >= self._max_entities:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION,
                f"at most max_client_quotas={self._max_entities} entities may have quotas; "
                "remove some",
            )
        changed[entity] = after
        return int(is_added)

    async def _put(
        self, changed: Mapping[QuotaEntity, dict[str, float]], slices: TimeSlices
    ) -> None:
        rows: dict[bytes, bytes | None] = {}
        keys: dict[QuotaEntity, bytes] = {}
        for entity, values in changed.items():
            key = hashlib.sha256(msgspec.msgpack.encode(entity)).digest()
            rows[key] = msgspec.msgpack.encode(_Row(entity, values)) if values else None
            keys[entity] = key
            await slices.take()
        try:
            await self._table.put(rows)
        except StorageError as failure:
            raise storage_error(failure) from failure
        for entity, values in changed.items():
            if values:
                self._entities[entity] = values
                self._by_key[keys[entity]] = entity
            else:
                self._entities.pop(entity, None)
                self._by_key.pop(keys[entity], None)
        self._changed()

    def _changed(self) -> None:
        self.is_active = bool(self._entities)
        self.limits_time = any(REQUEST_PERCENTAGE in one for one in self._entities.values())
        self._on_change()


def _nothing() -> None:
    return
