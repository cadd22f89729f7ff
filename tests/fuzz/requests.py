"""Sample requests of any version with every field set, generated from the codec's definitions."""

from __future__ import annotations

import uuid
from typing import Any

_VALUES = {
    "bool": True,
    "int8": 1,
    "int16": 1,
    "int32": 3,
    "int64": 7,
    "uint16": 8,
    "float64": 0.5,
    "string": "orders",
    "bytes": b"\0alice\0secret",
    "records": b"not a batch but some bytes of the length of one, or more: sixty-one",
    "uuid": uuid.UUID(int=0x0123456789ABCDEF0123456789ABCDEF),
}


def sample(request: Any, version: int) -> bytes:
    """The body of a request: two rows in every array, no nulls, no tags."""
    return bytes(
        request(version=version, **_fields(request._struct, version)).encode(version=version)
    )


def _fields(struct: Any, version: int) -> dict[str, Any]:
    return {field.name: _value(field, version) for field in struct.untagged_fields(version)}


def _value(field: Any, version: int) -> Any:
    if field.is_struct_array():
        return [field.data_class(**_fields(field.array_of, version)) for _ in range(2)]
    if field.is_array():
        return [_VALUES[field.array_of.type_str.removeprefix("[]")]] * 2
    if field.is_struct():
        return field.data_class(**_fields(field, version))
    return _VALUES[field.type_str]
