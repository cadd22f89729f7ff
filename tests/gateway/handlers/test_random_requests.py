"""Any decodable request gets a response, without other exceptions or background failures."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gateway.protocol.errors import Refused
from gateway.protocol.routes import ROUTES
from gateway.protocol.wire.api_keys import ApiKey
from gateway.protocol.wire.messages import REQUESTS
from gateway.settings.field_types import INT32_MAX
from tests.examples import scaled
from tests.fakes.broker import BrokerEnvironment, open_environment
from tests.gateway.handlers.handler_calls import call, decode_response, start_call
from tests.gateway.protocol.wire.values import int8s, int16s, int32s, int64s, texts
from tests.records.record_sets import batch, old_set

pytestmark = pytest.mark.long

ASKED = sorted(ROUTES)

#: Meaningful words among random ones, so that requests pass the first check.
WORDS = st.sampled_from(
    [
        "orders",
        "or.ders",
        "or_ders",
        "acme/sales/orders",
        "persistent://acme/sales/orders",
        "public/default/orders",
        "\0acme/sales\0orders",
        "",
        "0",
        "1",
        "-1",
        "retention.ms",
        "cleanup.policy",
        "compact,delete",
        "min.cleanable.dirty.ratio",
    ]
)
LONGEST_WAIT = INT32_MAX / 1000 + 1
SMALL = st.integers(-7, 12)


def values(field: Any, version: int) -> st.SearchStrategy[Any]:
    """Generate values of a message field, null if it is nullable."""
    versions = field._nullable_versions
    strategy = _values(field, version)
    return (
        st.none() | strategy
        if versions is not None and versions[0] <= version <= versions[1]
        else strategy
    )


def _values(field: Any, version: int) -> st.SearchStrategy[Any]:
    if field.is_struct_array():
        return st.lists(structs(field.array_of, field.data_class, version), max_size=3)
    if field.is_array():
        return st.lists(_PLAIN[field.array_of.type_str.removeprefix("[]")], max_size=3)
    if field.is_struct():
        return structs(field, field.data_class, version)
    return _PLAIN[field.type_str]


def structs(struct: Any, make: Any, version: int) -> st.SearchStrategy[Any]:
    return st.builds(
        make, **{field.name: values(field, version) for field in struct.untagged_fields(version)}
    )


_PLAIN: dict[str, st.SearchStrategy[Any]] = {
    "bool": st.booleans(),
    "bytes": st.binary(max_size=20),
    "records": st.sampled_from(
        [bytes(batch(2)), bytes(old_set(2, magic=0)), bytes(old_set(2, magic=1, codec=1))]
    )
    | st.binary(max_size=80),
    "int8": SMALL | int8s,
    "int16": SMALL | int16s,
    "int32": SMALL | int32s,
    "int64": SMALL | int64s,
    "uint16": st.integers(0, 65535),
    "float64": st.floats(allow_nan=False),
    "string": WORDS | texts,
    "uuid": st.sampled_from([None]) | st.uuids(),
}


def open_env() -> BrokerEnvironment:
    env = open_environment(
        max_partitions_per_topic=20,
        group_min_session_timeout_ms=0,
        group_max_session_timeout_ms=INT32_MAX,
    )
    env.store.has_namespaces = True
    env.topic("orders", 2, cleanup_policy="compact,delete")
    env.topic("acme/sales/orders", 2)
    return env


@settings(
    max_examples=scaled(300),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(asked=st.sampled_from(ASKED), data=st.data())
def test_any_request_is_answered(asked: tuple[ApiKey, int], data: st.DataObject) -> None:
    key, version = asked
    request = REQUESTS[ApiKey(key)]
    env = open_env()
    if data.draw(st.booleans()):
        env = env.bound_to(data.draw(st.sampled_from(["acme/sales", "public/default"])))
    for _ in range(2):
        body = data.draw(structs(request._struct, request, version))
        try:
            waiting = start_call(env, body, version)
        except ValueError:
            # A topic without a name, which the library's decoders accept.
            assert key in (ApiKey.PRODUCE, ApiKey.FETCH)
            continue
        # Longer than every wait for records and for other group members.
        env.clock.advance(LONGEST_WAIT)
        if key == ApiKey.PRODUCE and body.acks == 0:
            # There is no response, and a failure closes the connection.
            assert isinstance(waiting.failure, Refused) or waiting.result == b""
        else:
            assert decode_response(body, waiting.result, version) is not None
    assert env.bugs == []


@settings(max_examples=scaled(10), deadline=None)
@given(texts)
@example("0" * 400)
@example("٣")
@example("1_0")
@example("nan")
def test_any_config_value_is_accepted_or_rejected(text: str) -> None:
    env = open_env()
    kind = REQUESTS[ApiKey.INCREMENTAL_ALTER_CONFIGS]
    resource = kind.AlterConfigsResource
    names = [row.name for row in _configs(env)]
    assert len(names) == 37
    for name in names:
        config = resource.AlterableConfig(name=name, config_operation=0, value=text)
        request = kind(
            resources=[resource(resource_type=2, resource_name="orders", configs=[config])],
            validate_only=False,
        )
        assert call(env, request, 1).responses[0].error_code in (0, 40)
        # Accepted configs can be described, and the topic still works.
        assert len(_configs(env)) == 37


def _configs(env: BrokerEnvironment) -> Any:
    kind = REQUESTS[ApiKey.DESCRIBE_CONFIGS]
    resource = kind.DescribeConfigsResource(
        resource_type=2, resource_name="orders", configuration_keys=None
    )
    return call(env, kind(resources=[resource]), 1).results[0].configs
