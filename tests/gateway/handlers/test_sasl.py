from __future__ import annotations

import pytest
from kafka.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

from gateway.protocol.errors import ErrorCode
from tests.fakes.broker import open_environment
from tests.gateway.handlers.handler_calls import call


@pytest.mark.parametrize("version", [0, 1])
def test_handshake_without_sasl_is_illegal_state(version):
    """KafkaApis.handleSaslHandshakeRequest."""
    answer = call(open_environment(), SaslHandshakeRequest(mechanism="PLAIN"), version)
    assert (answer.error_code, list(answer.mechanisms)) == (ErrorCode.ILLEGAL_SASL_STATE, [])


@pytest.mark.parametrize("version", [0, 1, 2])
def test_token_without_handshake_is_illegal_state(version):
    answer = call(
        open_environment(), SaslAuthenticateRequest(auth_bytes=b"\0alice\0secret"), version
    )
    assert (answer.error_code, bytes(answer.auth_bytes)) == (ErrorCode.ILLEGAL_SASL_STATE, b"")
    assert "secret" not in answer.error_message
