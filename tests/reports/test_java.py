"""Suppression of py4j's log messages."""

from __future__ import annotations

import logging
import socket
import threading

import pytest

pytestmark = pytest.mark.spark


@pytest.fixture
def quiet():
    from reports.java import _is_not_echo, silence_py4j

    level = logging.getLogger("py4j").level
    silence_py4j()
    yield
    logging.getLogger("py4j").setLevel(level)
    logging.getLogger().removeFilter(_is_not_echo)


def calls_ended_java():
    """What py4j's finalizer thread does while Java ends."""
    from py4j.java_gateway import GatewayClient, GatewayParameters

    with socket.create_server(("127.0.0.1", 0)) as server:

        def close_connection():
            connection, _ = server.accept()
            connection.recv(100)
            connection.close()

        java = threading.Thread(target=close_connection)
        java.start()
        client = GatewayClient(gateway_parameters=GatewayParameters(port=server.getsockname()[1]))
        assert client.send_command("m\nd\no1\ne\n", retry=False) == "x"
        java.join()


def test_errors_raised_by_py4j_are_not_logged_too(quiet, caplog):
    calls_ended_java()
    assert caplog.records == []


def test_py4j_logs_errors_by_default(caplog):
    calls_ended_java()
    assert "Exception while sending command." in caplog.messages
