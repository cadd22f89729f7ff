"""Every field of a message that holds a name is found."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest

from gateway.protocol.routes import ROUTES, supported_versions
from gateway.protocol.wire.api_keys import ApiKey
from gateway.protocol.wire.messages import REQUESTS, encode
from gateway.protocol.wire.named_fields import Renaming, rename
from tests.gateway.handlers.handler_calls import response_class
from tests.gateway.security.requests_by_api import request_of

MARKED = Renaming("topic:{}".format, "id:{}".format, "text:{}".format)

#: Strings that are no names of topics, groups or transactions, by the last part of their path.
OTHER_STRINGS = {
    # Clients, members and hosts.
    "client_host", "client_id", "client_software_name", "client_software_version", "cluster_id",
    "group_instance_id", "host", "instance_id", "leader", "log_dir", "member_id", "path", "rack",
    "rack_id", "reason",
    # Values from fixed sets, configs and metadata.
    "assignor_name", "committed_metadata", "configuration_keys", "documentation", "feature",
    "group_state", "group_type", "match", "mechanism", "mechanisms", "metadata", "protocol_data",
    "protocol_name", "protocol_type", "server_assignor", "state_filters", "states_filter",
    "subscribed_topic_regex", "transaction_state", "types_filter", "unknown_state_filters", "value",
    # Security: super users only, by global names (decision 041).
    "entity_name", "entity_type", "host_filter", "owner_principal_name", "owner_principal_type",
    "principal", "principal_filter", "principal_name", "principal_type", "resource_name_filter",
    "token_id", "token_requester_principal_name", "token_requester_principal_type", "user",
    # There are no transactions to list.
    "transactional_id_pattern",
}  # fmt: skip

#: The same for names that have another meaning elsewhere.
OTHER_PATHS = {
    "AddRaftVoterRequest.listeners.name",
    "AlterClientQuotasRequest.entries.ops.key",
    "AlterConfigsRequest.resources.configs.name",
    "AlterUserScramCredentialsRequest.deletions.name",
    "AlterUserScramCredentialsRequest.upsertions.name",
    "ApiVersionsResponse.finalized_features.name",
    "ApiVersionsResponse.supported_features.name",
    "CreateAclsRequest.creations.resource_name",
    "CreateTopicsRequest.topics.configs.name",
    "CreateTopicsResponse.topics.configs.name",
    "DeleteAclsResponse.filter_results.matching_acls.resource_name",
    "DescribeAclsResponse.resources.resource_name",
    "DescribeClientQuotasResponse.entries.values.key",
    "DescribeConfigsResponse.results.configs.name",
    "DescribeConfigsResponse.results.configs.synonyms.name",
    "DescribeQuorumResponse.nodes.listeners.name",
    "DescribeUserScramCredentialsRequest.users.name",
    "IncrementalAlterConfigsRequest.resources.configs.name",
    "JoinGroupRequest.protocols.name",
}

KINDS = [
    kind
    for request in REQUESTS.values()
    for kind in (request, response_class(request.__new__(request)))
]


def strings(struct: Any, path: str) -> Iterator[str]:
    for field in struct._fields:
        inner = field.array_of if field.is_struct_array() else field
        if inner.is_struct():
            yield from strings(inner, f"{path}.{field.name}")
        elif "string" in field.type_str:
            yield f"{path}.{field.name}"


def filled(struct: Any, make: Any, version: int) -> Any:
    """A message with "x" in each string and one item in each array. Config resources are topics."""
    values: dict[str, Any] = {}
    for field in struct._fields:
        if not field.for_version_q(version):
            continue
        if field.is_struct_array():
            values[field.name] = [filled(field.array_of, field.data_class, version)]
        elif field.is_struct():
            values[field.name] = filled(field, field.data_class, version)
        elif field.is_array() and "string" in field.type_str:
            values[field.name] = ["x"]
        elif "string" in field.type_str:
            values[field.name] = "x"
        elif field.name == "resource_type":
            values[field.name] = 2
    return make(**values)


def renamed_strings(message: Any, struct: Any, path: str) -> Iterator[str]:
    for field in struct._fields:
        value = getattr(message, field.name)
        inner = field.array_of if field.is_struct_array() else field
        if inner.is_struct():
            for item in value if isinstance(value, list) else [value]:
                if item is not None:
                    yield from renamed_strings(item, inner, f"{path}.{field.name}")
        elif ":x" in str(value):
            yield f"{path}.{field.name}"


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind._json["name"])
def test_every_string_is_a_name_or_known_to_be_none(kind: Any) -> None:
    name = kind._json["name"]
    others = {
        path
        for path in strings(kind._struct, name)
        if path in OTHER_PATHS or path.rpartition(".")[2] in OTHER_STRINGS
    }
    found: set[str] = set()
    for version in range(kind._valid_versions[1] + 1):
        message = rename(filled(kind._struct, kind, version), version, MARKED)
        found |= set(renamed_strings(message, kind._struct, name))
    assert found == set(strings(kind._struct, name)) - others


@pytest.mark.parametrize("key", sorted(supported_versions()))
def test_messages_of_all_versions_can_be_renamed(key: ApiKey) -> None:
    """Decoded by the codec that serves them."""
    for version in range(supported_versions()[key][1] + 1):
        if (key, version) in ROUTES:
            request = request_of(key, version)
            body = bytearray(encode(request, version))
            decoded = ROUTES[key, version].decode(body, 0, version)
            rename(decoded, version, MARKED)


def test_hand_written_messages_are_renamed() -> None:
    for key in (ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.OFFSET_COMMIT):
        body = bytearray(encode(request_of(key, 7, transactional_id="t"), 7))
        request = rename(ROUTES[key, 7].decode(body, 0, 7), 7, MARKED)
        assert [topic.topic for topic in request.topics] == ["topic:orders"]
        assert getattr(request, "transactional_id", "id:t") == "id:t"
        assert getattr(request, "group_id", "id:readers") == "id:readers"
        if key is ApiKey.FETCH:
            assert [topic for topic, _ in request.forgotten] == ["topic:orders"]
    beat = ROUTES[ApiKey.HEARTBEAT, 4].decode(
        bytearray(encode(request_of(ApiKey.HEARTBEAT, 4), 4)), 0, 4
    )
    assert rename(beat, 4, MARKED).group_id == "id:readers"


def test_topic_ids_stay() -> None:
    topic_id = bytes(range(16))
    body = bytearray(encode(request_of(ApiKey.FETCH, 13, topic_id=UUID(bytes=topic_id)), 13))
    request = rename(ROUTES[ApiKey.FETCH, 13].decode(body, 0, 13), 13, MARKED)
    assert request.topics[0].topic == request.forgotten[0][0] == topic_id


@pytest.mark.parametrize(
    ("kind", "name", "expected"),
    [(2, "t", "topic:t"), (32, "g", "id:g"), (4, "0", "0"), (2, "", ""), (32, "", "")],
)
def test_config_resource_is_renamed_by_its_type(kind: int, name: str, expected: str) -> None:
    request = request_of(ApiKey.DESCRIBE_CONFIGS, 4, resource_type=kind, resource_name=name)
    assert rename(request, 4, MARKED).resources[0].resource_name == expected


def test_default_lists_of_the_codec_stay_as_they_are() -> None:
    request = REQUESTS[ApiKey.DELETE_GROUPS]()
    rename(request, 2, MARKED)
    assert REQUESTS[ApiKey.DELETE_GROUPS]().groups_names == []
