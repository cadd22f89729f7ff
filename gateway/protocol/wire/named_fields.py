"""The fields of messages that hold names: finds and replaces them in a decoded message.

Kafka's message definitions mark them by `entityType`. Names that are not marked are in `_UNMARKED`
and `_SPECIAL`. Error messages, which can contain names, are recognized by their field's name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from msgspec.structs import replace

from gateway.protocol.wire.fetch_codec import FetchRequest, FetchResponse
from gateway.protocol.wire.heartbeat_codec import HeartbeatRequest, HeartbeatResponse
from gateway.protocol.wire.offset_commit_codec import OffsetCommitRequest, OffsetCommitResponse
from gateway.protocol.wire.produce_codec import (
    PartitionProduced,
    ProduceRequest,
    ProduceResponse,
)


class Renaming(NamedTuple):
    """What a topic name, a group or transactional id, and an error message become."""

    topic: Callable[[str], str]
    identifier: Callable[[str], str]
    text: Callable[[str], str]


#: Replaces the names in one structure, in place.
_Step = Callable[[Any, Renaming], None]

_BY_ENTITY = {"topicName": "topic", "groupId": "identifier", "transactionalId": "identifier"}

#: Fields without an entity type. FindCoordinator's keys are ids, whatever their type.
_UNMARKED = {
    ("FindCoordinatorRequest", "key"): "identifier",
    ("FindCoordinatorRequest", "coordinator_keys"): "identifier",
    ("FindCoordinatorResponse", "key"): "identifier",
}

#: Error messages.
TEXTS = frozenset({"error_message", "batch_index_error_message"})

#: Codes of ConfigResource.Type.
_TOPIC, _GROUP = 2, 32


def rename(message: Any, version: int, renaming: Renaming) -> Any:
    """Return the message with other names. It may be the same object, changed.

    The messages of hand-written codecs are not changed.
    """
    hand_written = _HAND_WRITTEN.get(type(message))
    if hand_written is not None:
        return hand_written(message, renaming)
    key = type(message), version
    steps = _STEPS.get(key)
    if steps is None:
        steps = _STEPS[key] = _steps_of(message._struct, type(message)._json["name"], version)
    for step in steps:
        step(message, renaming)
    return message


_STEPS: dict[tuple[type, int], list[_Step]] = {}


def _steps_of(struct: Any, message: str, version: int) -> list[_Step]:
    steps: list[_Step] = []
    for field in struct._fields:
        if not field.for_version_q(version):
            continue
        special = _SPECIAL.get((message, field.name))
        kind = _kind_of(field, message)
        if special is not None:
            steps.append(special)
        elif field.is_struct_array():
            inner = _steps_of(field.array_of, message, version)
            if inner:
                steps.append(_each(field.name, inner))
        elif field.is_struct():
            inner = _steps_of(field, message, version)
            if inner:
                steps.append(_inside(field.name, inner))
        elif kind is not None:
            index = Renaming._fields.index(kind)
            steps.append((_items if field.is_array() else _value)(field.name, index))
    return steps


def _kind_of(field: Any, message: str) -> str | None:
    if field.name in TEXTS:
        return "text"
    return _UNMARKED.get((message, field.name)) or _BY_ENTITY.get(field._entity_type or "")


def _each(name: str, inner: list[_Step]) -> _Step:
    def step(struct: Any, renaming: Renaming) -> None:
        for item in getattr(struct, name) or ():
            for one in inner:
                one(item, renaming)

    return step


def _inside(name: str, inner: list[_Step]) -> _Step:
    def step(struct: Any, renaming: Renaming) -> None:
        item = getattr(struct, name)
        if item is not None:
            for one in inner:
                one(item, renaming)

    return step


def _value(name: str, kind: int) -> _Step:
    def step(struct: Any, renaming: Renaming) -> None:
        value = getattr(struct, name)
        if value is not None:
            setattr(struct, name, renaming[kind](value))

    return step


def _items(name: str, kind: int) -> _Step:
    def step(struct: Any, renaming: Renaming) -> None:
        values = getattr(struct, name)
        if values:
            # A new list: a field that is not set refers to the default of its class.
            setattr(struct, name, [renaming[kind](value) for value in values])

    return step


def _rename_resource(struct: Any, renaming: Renaming) -> None:
    """Config resources. An empty name stands for all resources of the type."""
    name = struct.resource_name
    if name and struct.resource_type == _TOPIC:
        struct.resource_name = renaming.topic(name)
    elif name and struct.resource_type == _GROUP:
        struct.resource_name = renaming.identifier(name)


#: Names in fields whose type is in another field.
_SPECIAL: Mapping[tuple[str, str], _Step] = {
    ("DescribeConfigsRequest", "resource_name"): _rename_resource,
    ("DescribeConfigsResponse", "resource_name"): _rename_resource,
    ("AlterConfigsRequest", "resource_name"): _rename_resource,
    ("AlterConfigsResponse", "resource_name"): _rename_resource,
    ("IncrementalAlterConfigsRequest", "resource_name"): _rename_resource,
    ("IncrementalAlterConfigsResponse", "resource_name"): _rename_resource,
    ("ListConfigResourcesResponse", "resource_name"): _rename_resource,
}


# Messages of hand-written codecs. Topics may be given by id.


def _topic(topic: str | bytes, renaming: Renaming) -> str | bytes:
    return renaming.topic(topic) if isinstance(topic, str) else topic


def _rename_topics(request: Any, renaming: Renaming) -> Any:
    return [replace(one, topic=_topic(one.topic, renaming)) for one in request.topics]


def _produce_request(request: ProduceRequest, renaming: Renaming) -> ProduceRequest:
    transactional_id = request.transactional_id
    if transactional_id is not None:
        transactional_id = renaming.identifier(transactional_id)
    return replace(
        request, topics=_rename_topics(request, renaming), transactional_id=transactional_id
    )


def _produce_response(response: ProduceResponse, renaming: Renaming) -> ProduceResponse:
    return replace(
        response,
        topics=[
            (_topic(topic, renaming), [_produced(row, renaming) for row in rows])
            for topic, rows in response.topics
        ],
    )


def _produced(row: PartitionProduced, renaming: Renaming) -> PartitionProduced:
    if row.error_message is None:
        return row
    return replace(
        row,
        error_message=renaming.text(row.error_message),
        record_errors=[
            replace(record, message=renaming.text(record.message)) for record in row.record_errors
        ],
    )


def _fetch_request(request: FetchRequest, renaming: Renaming) -> FetchRequest:
    return replace(
        request,
        topics=_rename_topics(request, renaming),
        forgotten=[(_topic(topic, renaming), rows) for topic, rows in request.forgotten],
    )


def _fetch_response(response: FetchResponse, renaming: Renaming) -> FetchResponse:
    return replace(
        response, topics=[(_topic(topic, renaming), rows) for topic, rows in response.topics]
    )


def _heartbeat_request(request: HeartbeatRequest, renaming: Renaming) -> HeartbeatRequest:
    return replace(request, group_id=renaming.identifier(request.group_id))


def _heartbeat_response(response: HeartbeatResponse, _: Renaming) -> HeartbeatResponse:
    return response


def _commit_request(request: OffsetCommitRequest, renaming: Renaming) -> OffsetCommitRequest:
    return replace(
        request,
        group_id=renaming.identifier(request.group_id),
        topics=_rename_topics(request, renaming),
    )


def _commit_response(response: OffsetCommitResponse, renaming: Renaming) -> OffsetCommitResponse:
    return OffsetCommitResponse(
        {_topic(topic, renaming): codes for topic, codes in response.topics.items()}
    )


_HAND_WRITTEN: dict[type, Callable[[Any, Renaming], Any]] = {
    ProduceRequest: _produce_request,
    ProduceResponse: _produce_response,
    FetchRequest: _fetch_request,
    FetchResponse: _fetch_response,
    HeartbeatRequest: _heartbeat_request,
    HeartbeatResponse: _heartbeat_response,
    OffsetCommitRequest: _commit_request,
    OffsetCommitResponse: _commit_response,
}
