"""Starts on a Pulsar that cannot store anything yet, or that still lists the previous gateway.

The gateway waits until its start timeout.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.peers.on_pulsar.pulsar_gateway import (
    gateway_arguments,
    gateway_on,
    produce,
    run_to_exit,
)
from tests.testkit.gateway import one_record
from tests.testkit.tenant import Tenant

pytestmark = [pytest.mark.peer, pytest.mark.timeout(1800)]

NOT_READY = "store not ready, retrying"
NOTICED_SECONDS = 240.0
END_SECONDS = 240.0
#: Without bookies some calls of the admin API are never answered.
IMPATIENT = ("--set", "pulsar_admin_timeout_ms=5000")


@pytest.fixture
def settings(pulsar: Tenant) -> Any:
    return pulsar.settings()


@pytest.fixture(scope="module")
def bookie_group(pulsar: Tenant) -> Iterator[None]:
    """Assign the only bookie to a group, so that namespaces of other groups have none.

    Pulsar's IsolatedBookieEnsemblePlacementPolicy.
    """
    (bookie,) = [one["bookieId"] for one in pulsar.admin("GET", "bookies/all")["bookies"]]
    pulsar.admin("POST", f"bookies/racks-info/{bookie}?group=some", {"rack": "/a"})
    yield
    pulsar.admin("DELETE", f"bookies/racks-info/{bookie}")


def affinity_path(settings: Any, kind: str) -> str:
    """The admin path of a namespace's bookie affinity group."""
    return f"namespaces/{settings.tenant}/{getattr(settings, kind)}/persistence/bookieAffinity"


def without_bookies(pulsar: Tenant, settings: Any, kind: str) -> None:
    pulsar.admin(
        "POST", affinity_path(settings, kind), {"bookkeeperAffinityGroupPrimary": "others"}
    )


def waits_for_store(log: Path) -> bool:
    """Whether the gateway logs in time that it retries its start."""
    end = time.monotonic() + NOTICED_SECONDS
    while time.monotonic() < end:
        if log.exists() and NOT_READY in log.read_text():
            return True
        time.sleep(0.1)
    return False


@pytest.mark.usefixtures("bookie_group")
@pytest.mark.parametrize("kind", ["namespace", "metadata_namespace"])
def test_gateway_waits_for_bookies_and_serves_once_there_is_one(
    pulsar: Tenant, settings: Any, tmp_path: Path, kind: str
) -> None:
    without_bookies(pulsar, settings, kind)
    log = tmp_path / "gateway.log"
    has_logged = threading.Event()

    def bring_them_back() -> None:
        if waits_for_store(log):
            has_logged.set()
        pulsar.admin("DELETE", affinity_path(settings, kind))

    waiting = threading.Thread(target=bring_them_back)
    waiting.start()
    try:
        with gateway_on(settings, tmp_path, *IMPATIENT) as running:
            assert has_logged.is_set()
            # A client that retries: on a busy machine the leader's lease may end.
            produce(running, "orders", b"v")
            assert running.stop() == 0
    finally:
        waiting.join()
    topics = pulsar.admin(
        "GET", f"persistent/{settings.tenant}/{getattr(settings, kind)}/partitioned"
    )
    assert not [name for name in topics if "-check-" in name], "topics of failed probes are deleted"
    assert all("Traceback" not in line for line in log.read_text().splitlines())


@pytest.mark.usefixtures("bookie_group")
@pytest.mark.parametrize(
    "kind", [pytest.param("namespace", marks=pytest.mark.slow), "metadata_namespace"]
)
def test_gateway_without_bookies_exits_at_the_start_timeout(
    pulsar: Tenant, settings: Any, tmp_path: Path, kind: str
) -> None:
    without_bookies(pulsar, settings, kind)
    try:
        code, log = run_to_exit(
            *gateway_arguments(settings, *IMPATIENT), "--set", "pulsar_start_timeout_ms=1000"
        )
    finally:
        pulsar.admin("DELETE", affinity_path(settings, kind))
    assert code == 1
    last = log.splitlines()[-1]
    assert "cannot start" in last
    assert "no answer of Pulsar's admin API" in last
    assert "Traceback" not in log


@pytest.mark.usefixtures("bookie_group")
def test_gateway_that_waits_for_bookies_can_be_stopped(
    pulsar: Tenant, settings: Any, tmp_path: Path
) -> None:
    without_bookies(pulsar, settings, "namespace")
    log = tmp_path / "gateway.log"
    argv = [
        sys.executable,
        "-m",
        "gateway",
        "serve",
        "--listener",
        "PLAINTEXT://127.0.0.1:0",
        *gateway_arguments(settings, *IMPATIENT),
    ]
    with (
        log.open("w") as errors,
        subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=errors) as process,
    ):
        try:
            assert waits_for_store(log)
            process.terminate()
            assert process.wait(END_SECONDS) == 0
        finally:
            process.kill()
            pulsar.admin("DELETE", affinity_path(settings, "namespace"))
    assert "Traceback" not in log.read_text()


def test_gateway_started_right_after_a_kill_serves(settings: Any, tmp_path: Path) -> None:
    """As a supervisor starts it, without waiting for the broker to notice the kill."""
    for number in range(2):
        with gateway_on(settings, tmp_path) as running, running.peer() as peer:
            peer.create_topic("orders")
            assert peer.produce("orders", one_record(b"v")).error_code == 0, number
            running.process.kill()
            running.process.wait()
            with gateway_on(settings, tmp_path) as again, again.peer() as other:
                assert other.produce("orders", one_record(b"w")).error_code == 0
                again.process.kill()
