"""One plausible request for each API and version, built from the schemas of the codec."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gateway.protocol.wire.api_keys import ApiKey
from gateway.protocol.wire.messages import REQUESTS
from tests.records.record_sets import batch, old_set

#: Values by field name. All other strings are "orders", all other numbers 0.
_VALUES: dict[str, Any] = {
    "acks": -1,
    "broker_id": 99,
    "client_software_name": "test",
    "cluster_id": None,
    "coordinator_keys": ["readers"],
    "deletions": [],
    "group_id": "readers",
    "group_ids": ["readers"],
    "groups_names": ["readers"],
    "host": "*",
    "key": "readers",
    "max_bytes": 1000,
    "num_partitions": 1,
    "operation": 3,
    "owner_principal_name": "",
    "owner_principal_type": "",
    "pattern_type_filter": 1,
    "permission_type": 3,
    "principal": "User:someone",
    "principal_type": "User",
    "replica_id": -1,
    "replication_factor": 1,
    "resource_pattern_type": 3,
    "resource_type": 2,
    "resource_type_filter": 1,
    "subscribed_topic_names": ["orders"],
    "timeout_ms": 60_000,
    "topic_id": None,
    "transactional_id": None,
}

_DEFAULTS: dict[str, Any] = {
    "bool": False,
    "bytes": b"",
    "string": "orders",
    "uuid": None,
}


def request_of(api_key: ApiKey, version: int, /, **values: Any) -> Any:
    """Build a request; `values` are those of fields at any depth, by name."""
    kind = REQUESTS[api_key]
    records = bytes(batch(1) if version >= 3 else old_set(1, magic=0))
    return _struct(kind._struct, kind, version, {**_VALUES, "records": records, **values})


def _struct(struct: Any, make: Any, version: int, values: dict[str, Any]) -> Any:
    return make(
        **{field.name: _value(field, version, values) for field in struct.untagged_fields(version)}
    )


def _value(field: Any, version: int, values: dict[str, Any]) -> Any:
    if field.name in values:
        return values[field.name]
    if field.is_struct_array():
        return [_struct(field.array_of, field.data_class, version, values)]
    if field.is_array():
        kind = field.array_of.type_str.removeprefix("[]")
        # DescribeGroups.
        return ["readers"] if field.name == "groups" else [_DEFAULTS.get(kind, 0)]
    if field.is_struct():
        return _struct(field, field.data_class, version, values)
    return _DEFAULTS.get(field.type_str, 0)


def error_codes(reply: Any) -> set[int]:
    """All error codes of a response, at any depth."""
    return set(_error_codes(reply.to_dict()))


def _error_codes(value: Any) -> Iterator[int]:
    if isinstance(value, dict):
        for name, part in value.items():
            if name.endswith("error_code"):
                yield part
            else:
                yield from _error_codes(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _error_codes(part)
