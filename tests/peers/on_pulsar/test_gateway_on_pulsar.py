"""`kopgate serve` on a real Pulsar: requirements, error messages and recovery."""

from __future__ import annotations

import pytest

from tests.peers.on_pulsar.pulsar_gateway import (
    consume,
    gateway_arguments,
    gateway_on,
    produce,
    run_to_exit,
)
from tests.testkit.kafka import free_ports
from tests.testkit.tenant import rest

pytestmark = [pytest.mark.peer, pytest.mark.timeout(1800)]


def test_topics_records_and_committed_offsets_are_only_in_pulsar(pulsar, tmp_path):
    settings = pulsar.settings()
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
    with gateway_on(settings, first) as running:
        produce(running, "orders", b"1", b"2")
        assert consume(running, "orders", 2) == [(0, b"1"), (1, b"2")]
        assert running.stop() == 0
    with gateway_on(settings, second) as running:
        produce(running, "orders", b"3")
        assert consume(running, "orders", 1) == [(2, b"3")]
        assert running.stop() == 0
    assert not (second / "store").exists()


def test_missing_namespaces_are_reported_and_pulsar_setup_creates_them(pulsar, tmp_path):
    settings = pulsar.settings(namespace="not-there", metadata_namespace="nor-this")
    code, log = run_to_exit(*gateway_arguments(settings))
    assert code == 1
    lines = [line for line in log.splitlines() if "cannot start" in line]
    for name in ("not-there", "nor-this"):
        assert (
            len(
                [
                    line
                    for line in lines
                    if f"there is no namespace {settings.tenant}/{name}." in line
                ]
            )
            == 1
        ), log
    assert len(lines) == 2, log
    assert all("pulsar-setup" in line or "pulsar-admin" in line for line in lines), log
    with gateway_on(settings, tmp_path, "--pulsar-setup") as running:
        produce(running, "orders", b"1")
        assert running.stop() == 0
    assert (
        rest("GET", f"{settings.admin_url}/admin/v2/namespaces/{settings.tenant}/not-there")[0]
        == 200
    )


def test_unreachable_cluster_fails_the_start_with_a_reason_per_address():
    port, web_port = free_ports(2)
    code, log = run_to_exit(
        "--store", f"pulsar://127.0.0.1:{port}", "--pulsar-admin", f"http://127.0.0.1:{web_port}"
    )
    assert code == 1
    admin, broker = [line for line in log.splitlines() if "cannot start" in line]
    assert f"127.0.0.1:{web_port}" in admin
    assert f"127.0.0.1:{port}" in broker
    assert "Traceback" not in log


def test_token_is_not_logged(pulsar, tmp_path):
    token = tmp_path / "gateway.jwt"
    token.write_text("eyJhbGciOiJIUzI1NiJ9.not-to-be-seen.anywhere\n")
    settings = pulsar.settings()
    folder = tmp_path / "gateway"
    folder.mkdir()
    with gateway_on(
        settings, folder, "--pulsar-token-file", str(token), "--log-level", "debug"
    ) as running:
        produce(running, "orders", b"1")
        assert running.stop() == 0
        assert [
            line for line in running.lines() if "not-to-be-seen" in line or "eyJhbGciOi" in line
        ] == []
