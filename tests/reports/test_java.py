"""Spark's Java: suppression of py4j's log messages, and the class archive in tests."""

from __future__ import annotations

import errno
import logging
import os
import socket
import threading
from pathlib import Path

import pytest

from tests.reports import spark_cache

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


def test_driver_uses_its_class_archive(spark):
    """Java ignores an archive that was made with another class path."""
    options = os.environ.get("SPARK_SUBMIT_OPTS")
    if not options:
        pytest.skip("no archive could be made: the summary has a warning")
    maps = Path(f"/proc/{spark.sparkContext._gateway.proc.pid}/maps").read_text()
    assert options.removeprefix("-XX:SharedArchiveFile=") in maps


def test_spark_starts_without_archive_if_it_cannot_be_stored(pyspark, monkeypatch):
    def cached(name, build):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(spark_cache, "cached", cached)
    with pytest.warns(UserWarning, match="without archived classes"):
        assert spark_cache.environment() == {}
