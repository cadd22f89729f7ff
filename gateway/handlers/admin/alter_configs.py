"""AlterConfigs and IncrementalAlterConfigs: configs of topics, groups and brokers.

AlterConfigs
v0-2: same fields; v2 is flexible.

IncrementalAlterConfigs (KIP-339)
v0-1: same fields; v1 is flexible.

The rules are those of Kafka's ConfigAdminManager and ConfigurationControlManager. Logger levels are
fixed at startup: changing them is rejected, and the error names the settings to change.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from enum import IntEnum
from functools import partial
from typing import Any

from kafka.protocol.admin.configs import AlterConfigsResponse, IncrementalAlterConfigsResponse

from gateway.configs.broker_configs import DYNAMIC
from gateway.configs.topic_configs import DEFINITIONS, check, effective_value
from gateway.configs.value_types import ConfigType, show
from gateway.coroutines import TimeSlices
from gateway.handlers.admin.describe_configs import (
    ResourceType,
    broker_id_is_number,
    require_for_configs,
)
from gateway.protocol.caller import Caller
from gateway.protocol.errors import ErrorCode, KafkaError
from gateway.protocol.large_requests import (
    check_changes,
    check_configs,
    encode_if_large,
    reply_with_rows,
)
from gateway.protocol.routes import serves
from gateway.protocol.wire.api_keys import ApiKey
from gateway.security.acls import AclOperation
from gateway.settings.model import Settings
from storage.log import Topic

#: Returns the new overrides of a resource from its current ones.
OverridesChange = Callable[[Mapping[str, str]], dict[str, str]]

#: Returns the items of a list config from its name and the resource's overrides; None if the config
#: is not a list.
ListItems = Callable[[str, Mapping[str, str]], Iterable[str] | None]


class AlterOperation(IntEnum):
    """Codes of AlterConfigOp.OpType (KIP-339)."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


async def _refuse_changes(request: Any, error: KafkaError, caller: Caller) -> Any:
    return await _refuse(request, error, caller, AlterConfigsResponse)


async def _refuse_incremental_changes(request: Any, error: KafkaError, caller: Caller) -> Any:
    return await _refuse(request, error, caller, IncrementalAlterConfigsResponse)


async def _refuse(request: Any, error: KafkaError, caller: Caller, response: Any) -> Any:
    return await reply_with_rows(
        request.resources,
        lambda resource: _altered_row(resource, error, response),
        lambda rows: response(responses=rows),
        caller,
    )


def _altered_row(resource: Any, error: KafkaError | None, response: Any) -> Any:
    return response.AlterConfigsResourceResponse(
        error_code=ErrorCode.NONE if error is None else error.code,
        error_message=None if error is None else error.message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )


@serves(ApiKey.ALTER_CONFIGS, 0, 2, at_controller=_refuse_changes)
async def alter_configs(request: Any, caller: Caller) -> Any:
    """Replace all overrides of a resource; overrides that are not listed are removed."""

    def change(resource: Any) -> OverridesChange:
        _check_keys(
            resource.configs, [config.name for config in resource.configs if config.value is None]
        )
        return lambda _: {config.name: config.value for config in resource.configs}

    return await _alter(request, caller, change, AlterConfigsResponse)


@serves(ApiKey.INCREMENTAL_ALTER_CONFIGS, 0, 1, at_controller=_refuse_incremental_changes)
async def incremental_alter_configs(request: Any, caller: Caller) -> Any:
    """Set, delete, append to or subtract from single overrides (KIP-339)."""
    settings = caller.broker.settings

    def change(resource: Any) -> OverridesChange:
        missing = [
            config.name
            for config in resource.configs
            if config.value is None and config.config_operation != AlterOperation.DELETE
        ]
        _check_keys(resource.configs, missing)
        of_broker = resource.resource_type == ResourceType.BROKER
        of_group = resource.resource_type == ResourceType.GROUP
        items = (
            _no_items
            if of_group
            else partial(_items_of_broker if of_broker else _items_of_topic, settings=settings)
        )
        return lambda overrides: _apply(overrides, resource.configs, items)

    return await _alter(request, caller, change, IncrementalAlterConfigsResponse)


def _check_keys(configs: Iterable[Any], nulls: list[str]) -> None:
    if any(count > 1 for count in Counter(config.name for config in configs).values()):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
    if nulls:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"Null value not supported for : {', '.join(nulls)}"
        )


async def _alter(
    request: Any, caller: Caller, change_of: Callable[[Any], OverridesChange], response: Any
) -> Any:
    """Return the response, with one row per requested resource, in request order."""
    slices = TimeSlices(caller.broker.clock)
    counts = Counter(
        (resource.resource_type, resource.resource_name) for resource in request.resources
    )

    async def alter_one(resource: Any) -> None:
        check_changes(len(request.resources))
        check_configs(len(resource.configs))
        if counts[resource.resource_type, resource.resource_name] > 1:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
        change = change_of(resource)
        _check_resource(resource.resource_type, resource.resource_name, caller)
        if resource.resource_type == ResourceType.BROKER:
            name = resource.resource_name and str(int(resource.resource_name))
            await caller.broker.configs.alter(name, change, validate_only=request.validate_only)
        elif resource.resource_type == ResourceType.GROUP:
            await caller.broker.group_configs.alter(
                resource.resource_name, change, validate_only=request.validate_only
            )
        else:
            await _alter_topic(
                resource.resource_name, change, caller, validate_only=request.validate_only
            )

    rows = []
    outcomes = await slices.gather(alter_one(resource) for resource in request.resources)
    for resource, outcome in zip(request.resources, outcomes, strict=True):
        if isinstance(outcome, BaseException) and not isinstance(outcome, KafkaError):
            raise outcome
        rows.append(_altered_row(resource, outcome, response))
        await slices.take()
    return await encode_if_large(response(responses=rows), slices, caller)


def _check_resource(kind: int, name: str, caller: Caller) -> None:
    """Raise KafkaError for resources whose configs cannot be altered.

    They can be altered for a topic or group by name, the broker that was asked by id, and all
    brokers by the empty name, by callers that may alter configs.
    """
    if kind == ResourceType.TOPIC:
        if not name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed.")
        require_for_configs(AclOperation.ALTER_CONFIGS, kind, name, caller)
        caller.broker.topics.names.canonical(name)
        return
    if kind == ResourceType.GROUP:
        if not name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Default group resources are not allowed.")
        require_for_configs(AclOperation.ALTER_CONFIGS, kind, name, caller)
        caller.broker.groups.check_active(name)
        return
    require_for_configs(AclOperation.ALTER_CONFIGS, kind, name, caller)
    if kind == ResourceType.CLIENT_METRICS:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, "The gateway collects no client metrics (KIP-714)."
        )
    if kind not in (ResourceType.BROKER, ResourceType.BROKER_LOGGER):
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {kind}")
    if name:
        if not broker_id_is_number(name):
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"Node id must be an integer, but it is: {name}"
            )
        node_id = caller.node_id
        if int(name) != node_id:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"Unexpected broker id, expected {node_id}, but received {name}",
            )
    if kind == ResourceType.BROKER_LOGGER:
        what = (
            "The log levels of this broker (log_level, log_levels) cannot be altered while it runs"
        )
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"{what}: set them in its file, environment or flags, and restart it.",
        )


async def _alter_topic(
    name: str, change: OverridesChange, caller: Caller, *, validate_only: bool
) -> None:
    topics, settings = caller.broker.topics, caller.broker.settings

    def checked(topic: Topic) -> Topic:
        overrides = change(topic.configs)
        check(overrides, settings)
        return replace(topic, configs=overrides)

    live = topics.get(name)
    if live is None:
        # Kafka validates the configs before it checks that the topic exists.
        checked(Topic(name, b"", 1))
        if topics.find_internal(name) is not None:
            topics.require(name)
        raise KafkaError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist."
        )
    if validate_only:
        checked(live.topic)
    else:
        await topics.alter(live, checked)


def _apply(
    overrides: Mapping[str, str], configs: Iterable[Any], items: ListItems
) -> dict[str, str]:
    changed = dict(overrides)
    for config in configs:
        name, operation = config.name, config.config_operation
        if operation == AlterOperation.SET:
            changed[name] = config.value
        elif operation == AlterOperation.DELETE:
            changed.pop(name, None)
        elif operation in (AlterOperation.APPEND, AlterOperation.SUBTRACT):
            changed[name] = _join(name, AlterOperation(operation), config.value, changed, items)
        else:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown operations type {operation}")
    return changed


def _join(
    name: str, operation: AlterOperation, value: str, overrides: Mapping[str, str], items: ListItems
) -> str:
    """Append items to a list config or subtract them from it.

    Without an override, the operation starts from the default.
    """
    known = items(name, overrides)
    if known is None:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"Can't {operation.name} to key {name} because its type is not LIST.",
        )
    joined: dict[str, None] = dict.fromkeys(item for item in known if item)
    for item in value.split(","):
        if operation is AlterOperation.APPEND:
            joined[item] = None
        else:
            joined.pop(item, None)
    return show(list(joined))


def _items_of_topic(
    name: str, overrides: Mapping[str, str], *, settings: Settings
) -> Iterable[str] | None:
    if name not in DEFINITIONS or DEFINITIONS[name].definition.type is not ConfigType.LIST:
        return None
    items: list[str] = effective_value(name, overrides, settings)
    return items


def _items_of_broker(
    name: str, overrides: Mapping[str, str], *, settings: Settings
) -> Iterable[str] | None:
    if name not in DYNAMIC or DYNAMIC[name][0].type is not ConfigType.LIST:
        return None
    items: list[str] = (
        DYNAMIC[name][0].read(overrides[name])
        if name in overrides
        else list(getattr(settings, DYNAMIC[name][1]))
    )
    return items


def _no_items(name: str, overrides: Mapping[str, str]) -> Iterable[str] | None:
    """Return None: groups have no list configs."""
    return None
