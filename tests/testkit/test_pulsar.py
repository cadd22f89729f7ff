"""The tests' own Pulsar keeps its settings and data across kills and restarts."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.testkit.kafka import free_ports
from tests.testkit.pulsar import ONE_BOOKIE, shared_urls, stop_shared, suspend, with_settings
from tests.testkit.tenant import rest


def test_setting_replaces_an_existing_line():
    conf = with_settings("# one=comment\none=1\ntwo=2\noneMore=1", {"one": "5", "three": "3"})
    assert conf == "# one=comment\ntwo=2\noneMore=1\none=5\nthree=3\n"


@pytest.mark.long
def test_suspend_stops_all_threads_of_a_process():
    program = (
        "import threading; "
        "[threading.Thread(target=lambda: [None for _ in iter(int, 1)]).start() "
        "for _ in range(20)]; "
        "print(flush=True)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout.readline()
            for _ in range(20):
                suspend(process)
                suspend(process)
                stats = [
                    (task / "stat").read_text()
                    for task in Path(f"/proc/{process.pid}/task").iterdir()
                ]
                assert {stat.rpartition(")")[2].split()[0] for stat in stats} == {"T"}
                assert len(stats) == 21
                process.send_signal(signal.SIGCONT)
        finally:
            process.kill()


@pytest.mark.parametrize("names_its_data", [True, False], ids=["broker", "other process"])
def test_shared_broker_is_started_once_and_only_it_is_killed(tmp_path, names_its_data):
    shared, data = tmp_path / "shared", tmp_path / "data"
    shared.mkdir()
    data.mkdir()
    sleep = [sys.executable, "-c", "import time; print(flush=True); time.sleep(600)"]
    argv = [*sleep, str(data)] if names_its_data else sleep
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        # A process has its arguments slightly later than `Popen` returns.
        process.stdout.readline()
        started = []

        def start():
            started.append(True)
            return SimpleNamespace(
                service_url="pulsar://h:1", admin_url="http://h:2", pid=process.pid, folder=data
            )

        try:
            for _ in range(2):
                assert shared_urls(shared, start) == ("pulsar://h:1", "http://h:2")
            assert started == [True]
            stop_shared(shared)
            assert not shared.exists()
            assert not data.exists()
            if names_its_data:
                assert process.wait(60) == -signal.SIGKILL
            else:
                assert process.poll() is None
        finally:
            process.kill()


def test_shared_broker_that_was_not_needed_is_not_stopped(tmp_path):
    stop_shared(tmp_path)
    assert not tmp_path.exists()


@pytest.mark.peer
@pytest.mark.timeout(1800)
def test_tenant_of_a_shared_broker_starts_empty(pulsar):
    settings = pulsar.settings()
    assert settings.namespace != settings.metadata_namespace
    assert (
        pulsar.admin("GET", f"persistent/{settings.tenant}/{settings.namespace}/partitioned") == []
    )


@pytest.mark.peer
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_killed_broker_restarts_with_its_data_ports_and_settings(restartable_pulsar):
    tenant = restartable_pulsar.tenant()
    path = f"persistent/{tenant.name}/{tenant.namespace()}/orders/partitions"
    tenant.admin("PUT", path, 3)
    restartable_pulsar.kill()
    restartable_pulsar.restart()
    assert tenant.admin("GET", path)["partitions"] == 3
    settings = tenant.admin("GET", "brokers/configuration/runtime")
    assert {name: settings[name] for name in ONE_BOOKIE} == ONE_BOOKIE


@pytest.mark.peer
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_make_pulsar_prints_its_address_stops_on_sigint_and_keeps_its_data(tmp_path):
    port, web_port = free_ports(2)
    options = [
        "--data",
        str(tmp_path / "data"),
        "--port",
        str(port),
        "--web-port",
        str(web_port),
        "--memory",
        "512m",
    ]
    for topics in ([], ["persistent://public/default/orders"]):
        with subprocess.Popen(
            [sys.executable, "-m", "tests.testkit.standalone", *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            lines = [process.stdout.readline() for _ in range(3)]
            assert lines[1] == f"ready pulsar://127.0.0.1:{port} http://127.0.0.1:{web_port}\n", (
                process.stderr.read()
            )
            assert "kopgate serve --store pulsar://" in lines[2]
            api = f"http://127.0.0.1:{web_port}/admin/v2/persistent/public/default"
            assert rest("GET", f"{api}/partitioned") == (200, topics)
            assert rest("PUT", f"{api}/orders/partitions", 1)[0] == (409 if topics else 204)
            process.send_signal(signal.SIGINT)
            assert process.wait(240) == 0
            with socket.create_server(("127.0.0.1", port)):
                pass
