from __future__ import annotations

from typing import Any

import pytest
from kafka.protocol.metadata.api_versions import ApiVersionsRequest, ApiVersionsResponse

from gateway.handlers.api_versions import unsupported_version_response
from gateway.protocol.errors import ErrorCode
from gateway.protocol.routes import ROUTES, supported_versions
from gateway.protocol.wire.api_keys import ApiKey
from tests.fakes.broker import open_environment
from tests.gateway.handlers.handler_calls import call


def ranges(answer: Any) -> dict[int, tuple[int, int]]:
    return {row.api_key: (row.min_version, row.max_version) for row in answer.api_keys}


@pytest.mark.parametrize("version", range(5))
def test_every_version_returns_served_ranges(version):
    asked = ApiVersionsRequest(client_software_name="a-client", client_software_version="1.0")
    answer = call(open_environment(), asked, version)
    assert answer.error_code == 0
    assert ranges(answer) == supported_versions()
    for key, number in ROUTES:
        low, high = ranges(answer)[key]
        assert low <= number <= high


def test_produce_and_fetch_ranges_start_at_0():
    """librdkafka disables compression if Produce does not start at 0."""
    assert supported_versions()[ApiKey.PRODUCE][0] == supported_versions()[ApiKey.FETCH][0] == 0


def test_unsupported_version_is_answered_as_v0():
    answer = ApiVersionsResponse.decode(
        b"".join(map(bytes, unsupported_version_response())), version=0
    )
    assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert ranges(answer)[ApiKey.API_VERSIONS] == (0, 4)
