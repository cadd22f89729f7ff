"""SCRAM users, ACLs and quotas are in tables on Pulsar and survive a killed gateway."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaProducer
from kafka.errors import TopicAuthorizationFailedError

from tests.peers.on_pulsar.pulsar_gateway import gateway_arguments, wait_until_lock_released
from tests.peers.security.test_quota_clients import QuotaClient
from tests.testkit.gateway import GatewayProcess, gateway

pytestmark = pytest.mark.peer

SECONDS = 120


def kopgate(*arguments: str, password: str = "") -> None:
    argv = [sys.executable, "-m", "gateway", *arguments]
    subprocess.run(argv, input=password, text=True, check=True, timeout=SECONDS)


def address(server: GatewayProcess, listener: str) -> str:
    return "{}:{}".format(*server.addresses[listener])


def quotas(at: str) -> Any:
    with QuotaClient(at) as client:
        return client.describe(("user", 0, "app"))


def test_users_acls_and_quotas_survive_a_killed_gateway(pulsar: Any, tmp_path: Path) -> None:
    settings = pulsar.settings()
    arguments = gateway_arguments(settings)
    security = {
        "listeners": ("PLAINTEXT", "SASL_PLAINTEXT"),
        "sasl_enabled_mechanisms": "SCRAM-SHA-256",
        "authorizer": "acls",
        # It can only connect to the first listener.
        "super_users": "User:ANONYMOUS",
    }
    with gateway(tmp_path, *arguments, **security) as server:
        at = address(server, "PLAINTEXT")
        to_it = ("--bootstrap-server", at, "--timeout", str(SECONDS))
        kopgate("topics", "create", "orders", *to_it)
        kopgate("topics", "create", "others", *to_it)
        add = ("users", "add", "app", "--mechanism", "SCRAM-SHA-256", "--password-file", "-")
        kopgate(*add, *to_it, password="s3cret\n")
        kopgate("acls", "add", "--allow", "User:app", "--producer", "--topic", "orders", *to_it)
        with QuotaClient(at) as client:
            altered = client.alter(([("user", "app")], {"producer_byte_rate": 1e6}))
        assert [code for code, _ in altered.values()] == [0]
        before = quotas(at)
    # The context ends with SIGKILL.
    wait_until_lock_released(settings)
    with gateway(tmp_path, *arguments, **security) as server:
        assert quotas(address(server, "PLAINTEXT")) == before
        producer = KafkaProducer(
            bootstrap_servers=address(server, "SASL_PLAINTEXT"),
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="SCRAM-SHA-256",
            sasl_plain_username="app",
            sasl_plain_password="s3cret",
            max_block_ms=SECONDS * 1000,
            enable_idempotence=False,
        )
        with closing(producer):
            assert producer.send("orders", b"allowed").get(SECONDS).offset == 0
            with pytest.raises(TopicAuthorizationFailedError):
                producer.send("others", b"refused").get(SECONDS)
