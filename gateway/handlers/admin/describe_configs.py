"""DescribeConfigs and ListConfigResources: configs of topics, groups, the broker and its loggers.

DescribeConfigs
v0: is_default only.
v1-2: sources and synonyms (KIP-226).
v3-4: types and documentation (KIP-569).

ListConfigResources
v0: client metrics only (KIP-714).
v1: any resource types (KIP-1142).

The rules are those of Kafka's ConfigHelper.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import Any

from kafka.protocol.admin.configs import DescribeConfigsResponse, ListConfigResourcesResponse

from gateway.configs.entries import (
    ConfigEntry,
    ConfigSource,
    Synonym,
    all_brokers_entries,
    broker_entries,
    group_entries,
    topic_entries,
)
from gateway.configs.value_types import ConfigType
from gateway.coroutines import TimeSlices
from gateway.protocol.caller import Caller
from gateway.protocol.errors import ErrorCode, KafkaError
from gateway.protocol.large_requests import encode_if_large
from gateway.protocol.routes import serves
from gateway.protocol.wire.api_keys import ApiKey
from gateway.security.acls import AclOperation, AclResource
from gateway.settings.model import Settings


class ResourceType(IntEnum):
    """Codes of ConfigResource.Type."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


_Result = DescribeConfigsResponse.DescribeConfigsResult
_Row = _Result.DescribeConfigsResourceResult


@serves(ApiKey.DESCRIBE_CONFIGS, 0, 4)
async def describe_configs(request: Any, caller: Caller) -> Any:
    """Return configs and their sources. Duplicate resources are merged into one result."""
    results = []
    slices = TimeSlices(caller.broker.clock)
    for (kind, name), keys in (await _merge_resources(request.resources, slices)).items():
        try:
            require_for_configs(AclOperation.DESCRIBE_CONFIGS, kind, name, caller)
            entries = _entries(kind, name, caller)
            rows = [_row(entry, request) for entry in entries if keys is None or entry.name in keys]
            results.append(
                _Result(
                    error_code=0,
                    error_message="",
                    resource_type=kind,
                    resource_name=name,
                    configs=rows,
                )
            )
            await slices.take(len(rows))
        except KafkaError as failure:
            results.append(
                _Result(
                    error_code=failure.code,
                    error_message=failure.message,
                    resource_type=kind,
                    resource_name=name,
                    configs=[],
                )
            )
        await slices.take()
    return await encode_if_large(DescribeConfigsResponse(results=results), slices, caller)


def require_for_configs(operation: AclOperation, kind: int, name: str, caller: Caller) -> None:
    """Require an operation on a topic or group, or for other resources on the cluster.

    Raises KafkaError.
    """
    if kind == ResourceType.TOPIC:
        caller.require_topic(operation, name)
    elif kind == ResourceType.GROUP:
        caller.require(operation, AclResource.GROUP, name)
    else:
        caller.require_cluster(operation)


async def _merge_resources(
    resources: Iterable[Any], slices: TimeSlices
) -> dict[tuple[int, str], set[str] | None]:
    """Return the requested config names by resource type and name, None for all.

    An empty list also means all.
    """
    requested: dict[tuple[int, str], set[str] | None] = {}
    for resource in resources:
        key = resource.resource_type, resource.resource_name
        keys = requested.setdefault(key, set())
        if not resource.configuration_keys:
            requested[key] = None
        elif keys is not None:
            keys.update(resource.configuration_keys)
        await slices.take()
    return requested


def _entries(kind: int, name: str, caller: Caller) -> Iterable[ConfigEntry]:
    settings = caller.broker.settings
    if kind == ResourceType.TOPIC:
        caller.broker.topics.names.canonical(name)
        topics = caller.broker.topics
        return topic_entries(
            (topics.find_internal(name) or topics.require(name)).topic.configs,
            caller.broker.configs,
        )
    if kind == ResourceType.BROKER:
        configs = caller.broker.configs
        if not name:
            return all_brokers_entries(configs)
        _check_broker(name, settings, "or empty string, ")
        return broker_entries(
            configs, caller.broker.cluster.advertised, caller.broker.topics.internal_partitions
        )
    if kind == ResourceType.BROKER_LOGGER:
        if not name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Broker id must not be empty")
        _check_broker(name, settings, "")
        return _logger_entries(settings)
    if kind == ResourceType.GROUP:
        if not name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Group name must not be empty")
        return group_entries(caller.broker.group_configs.overrides(name), caller.broker.configs)
    if kind == ResourceType.CLIENT_METRICS:
        # Client metrics have no configs: AlterConfigs rejects them.
        return []
    raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unsupported resource type: {kind}")


def _check_broker(name: str, settings: Settings, otherwise: str) -> None:
    if not broker_id_is_number(name):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"Broker id must be an integer, but it is: {name}"
        )
    if int(name) != settings.node_id:
        comma = " " + otherwise if otherwise else " "
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"Unexpected broker id, expected {settings.node_id}{comma}but received {name}",
        )


def broker_id_is_number(name: str) -> bool:
    """Whether the name of a broker resource is an integer."""
    digits = name.removeprefix("-")
    return digits.isascii() and digits.isdigit() and len(digits) <= 10


def _logger_entries(settings: Settings) -> Iterable[ConfigEntry]:
    levels = {"root": settings.log_level, **settings.log_levels}
    for name, level in sorted(levels.items()):
        synonym = Synonym(name, level.upper(), ConfigSource.DYNAMIC_BROKER_LOGGER_CONFIG)
        documentation = "Minimum level that this logger writes; set by log_level and log_levels."
        yield ConfigEntry(
            name, level.upper(), ConfigType.STRING, documentation, (synonym,), is_read_only=True
        )


def _row(entry: ConfigEntry, request: Any) -> Any:
    synonyms = entry.synonyms if request.include_synonyms else ()
    return _Row(
        name=entry.name,
        value=entry.value,
        read_only=entry.is_read_only,
        is_default=entry.source is ConfigSource.DEFAULT_CONFIG,
        config_source=entry.source,
        is_sensitive=False,
        synonyms=[
            _Row.DescribeConfigsSynonym(name=one.name, value=one.value, source=one.source)
            for one in synonyms
        ],
        config_type=entry.type,
        documentation=entry.documentation if request.include_documentation else None,
    )


#: Resource types of ListConfigResources. A group is listed once it has configs; client metrics
#: never have any.
_LISTED_TYPES = (
    ResourceType.TOPIC,
    ResourceType.BROKER,
    ResourceType.BROKER_LOGGER,
    ResourceType.CLIENT_METRICS,
    ResourceType.GROUP,
)

FIRST_VERSION_WITH_TYPES = 1


@serves(ApiKey.LIST_CONFIG_RESOURCES, 0, 1)
async def list_config_resources(request: Any, caller: Caller) -> Any:
    """Return the names of resources that have configs; all types by default."""
    try:
        caller.require_cluster(AclOperation.DESCRIBE_CONFIGS)
    except KafkaError as refusal:
        return ListConfigResourcesResponse(error_code=refusal.code, config_resources=[])
    requested = (
        set(request.resource_types) or set(_LISTED_TYPES)
        if caller.api_version >= FIRST_VERSION_WITH_TYPES
        else {ResourceType.CLIENT_METRICS}
    )
    if not requested <= set(_LISTED_TYPES):
        return ListConfigResourcesResponse(
            error_code=ErrorCode.UNSUPPORTED_VERSION, config_resources=[]
        )
    slices = TimeSlices(caller.broker.clock)
    rows = []
    for kind in sorted(requested):
        for name in list(_resource_names(ResourceType(kind), caller)):
            rows.append(
                ListConfigResourcesResponse.ConfigResource(resource_name=name, resource_type=kind)
            )
            await slices.take()
    return await encode_if_large(
        ListConfigResourcesResponse(error_code=ErrorCode.NONE, config_resources=rows),
        slices,
        caller,
    )


def _resource_names(kind: ResourceType, caller: Caller) -> Iterable[str]:
    if kind is ResourceType.TOPIC:
        return (
            live.name
            for live in caller.broker.topics.listed()
            if caller.is_visible(AclResource.TOPIC, live.name)
        )
    if kind in (ResourceType.BROKER, ResourceType.BROKER_LOGGER):
        return (str(node.node_id) for node in caller.broker.cluster.nodes(caller.listener))
    if kind is not ResourceType.GROUP:
        return ()
    return (
        group_id
        for group_id in caller.broker.group_configs
        if caller.is_visible(AclResource.GROUP, group_id)
    )
