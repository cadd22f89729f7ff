"""Checks requests against their schema before kafka-python decodes them.

Its decoder trusts its input: it loops as often as a count says, creates an object for every two
bytes of an array, reads varints of any length, copies the rest of the message for each section of
tagged fields, and accepts truncated strings and nulls in non-nullable fields.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gateway.protocol.wire.primitives import (
    INT16,
    INT32,
    MAX_ELEMENTS,
    MAX_STRING_BYTES,
    MAX_TAGS,
    read_uvarint,
    skip_tags,
)

#: Bytes that the decoder may copy for the tagged fields of one message: it copies the rest of the
#: message for each section with at least one field. Of the requests that the gateway serves, only
#: Fetch has tagged fields in its body, and kafka-python does not decode it.
MAX_COPIED_BYTES = 64 << 20

Step = Callable[["_CheckState", int], int]


class SchemaCheck:
    """Checks the requests of one version. `request` is the codec's class."""

    __slots__ = ("_steps",)

    def __init__(self, request: Any, version: int) -> None:
        self._steps = _steps_of(request._struct, version, request.flexible_version_q(version))

    def check(self, frame: bytearray, position: int) -> None:
        """Raises ValueError, IndexError or struct.error if the body at `position` is malformed."""
        walk = _CheckState(frame)
        for step in self._steps:
            position = step(walk, position)
        if position > len(frame):
            raise ValueError("message is truncated")


class _CheckState:
    """The counters of one check."""

    __slots__ = ("copied", "elements", "source", "tags")

    def __init__(self, source: bytearray) -> None:
        self.source = source
        self.elements = self.tags = self.copied = 0

    def count(self, name: str, count: int, position: int) -> None:
        """Count elements that begin at `position`. Each takes at least one byte."""
        self.elements += count
        if count > len(self.source) - position or self.elements > MAX_ELEMENTS:
            raise ValueError(f"{name} has {count} elements")


def _steps_of(struct: Any, version: int, compact: bool) -> list[Step]:
    """One step for each sequence of fixed-size fields, and for each other field."""
    steps: list[Step] = []
    fixed = 0
    for field in struct.untagged_fields(version):
        size = _fixed_size(field)
        if size is not None:
            fixed += size
            continue
        if fixed:
            steps.append(_skip(fixed))
            fixed = 0
        steps.append(_step_of(field, version, compact))
    if fixed:
        steps.append(_skip(fixed))
    if compact:
        if struct.tagged_fields(version)._fields:
            # Not reached: of the served requests only Fetch has known tagged fields, and it has a
            # hand-written codec.
            raise NotImplementedError(f"{struct.name} has tagged fields; write a check for them")
        steps.append(_skip_tags)
    return steps


def _fixed_size(field: Any) -> int | None:
    size = None if field.is_array() or field.is_struct() else field._type.size
    return size if isinstance(size, int) and field.type_str not in ("bytes", "records") else None


def _step_of(field: Any, version: int, compact: bool) -> Step:
    may_be_null = field.nullable_for_version_q(version)
    if field.is_struct_array():
        return _array(field.name, _steps_of(field.array_of, version, compact), compact, may_be_null)
    if field.is_array():
        size = _fixed_size(field.array_of)
        # Items of an array of strings are not nullable. For them the codec repeats the definition
        # of the array.
        item = (
            _text(field.name, compact, False, is_long=field.array_of.type_str != "string")
            if size is None
            else _skip(size)
        )
        return _array(field.name, [item], compact, may_be_null)
    if field.is_struct():
        return _struct(_steps_of(field, version, compact), may_be_null)
    return _text(field.name, compact, may_be_null, is_long=field.type_str != "string")


def _skip(size: int) -> Step:
    return lambda _, position: position + size


def _text(name: str, compact: bool, may_be_null: bool, *, is_long: bool) -> Step:
    def step(walk: _CheckState, position: int) -> int:
        length, position = _length(walk.source, position, compact, is_long=is_long)
        if length < 0:
            _check_null(name, length, may_be_null)
            return position
        if length > len(walk.source) - position:
            raise ValueError(f"{name} of {length} bytes exceeds the message")
        if not is_long and length > MAX_STRING_BYTES:
            raise ValueError(f"{name} has {length} bytes, limit {MAX_STRING_BYTES}")
        return position + length

    return step


def _array(name: str, steps: list[Step], compact: bool, may_be_null: bool) -> Step:
    def step(walk: _CheckState, position: int) -> int:
        count, position = _length(walk.source, position, compact, is_long=True)
        if count < 0:
            _check_null(name, count, may_be_null)
            return position
        walk.count(name, count, position)
        for _ in range(count):
            for inner in steps:
                position = inner(walk, position)
        return position

    return step


def _struct(steps: list[Step], may_be_null: bool) -> Step:
    """A nested structure. A nullable one begins with a byte that is -1 for null (KIP-893)."""

    def step(walk: _CheckState, position: int) -> int:
        if may_be_null:
            is_null = walk.source[position] == 0xFF
            position += 1
            if is_null:
                return position
        for inner in steps:
            position = inner(walk, position)
        return position

    return step


def _length(source: bytearray, position: int, compact: bool, *, is_long: bool) -> tuple[int, int]:
    if compact:
        length, position = read_uvarint(source, position)
        return length - 1, position
    if is_long:
        return INT32.unpack_from(source, position)[0], position + 4
    return INT16.unpack_from(source, position)[0], position + 2


def _check_null(name: str, length: int, may_be_null: bool) -> None:
    if length < -1 or not may_be_null:
        raise ValueError(f"{name} is null" if length == -1 else f"{name} has a length of {length}")


def _skip_tags(walk: _CheckState, position: int) -> int:
    source = walk.source
    count, after_count = read_uvarint(source, position)
    if not count:
        return after_count
    walk.tags += count
    walk.copied += len(source) - after_count
    if walk.tags > MAX_TAGS or walk.copied > MAX_COPIED_BYTES:
        raise ValueError(f"{walk.tags} tagged fields")
    return skip_tags(source, position)
