"""A batch with a correct header and checksum and unreadable records.

Old clients continue behind it, and wait at the end of the log as after any other batch.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from tests.legacy_clients.brokers import are_required
from tests.legacy_clients.clients import Record, Span, consume, table
from tests.legacy_clients.install import install
from tests.records.sample_records import GZIP, NONE, Sample, batch
from tests.testkit.cache import CannotInstall
from tests.testkit.gateway import GatewayProcess, gateway

pytestmark = [pytest.mark.peer, pytest.mark.xdist_group("unreadable")]

OLD_CLIENTS = ["java-0.9.0.1", "java-0.10.2.2", "kafka-python-1.0.2", "franz-go-1.22.2-as-0.9"]
EVENT = "unreadable records skipped"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    with gateway(tmp_path_factory.mktemp("gateway")) as started:
        yield started


def stores(running: GatewayProcess, topic: str, *batches: bytes) -> None:
    with running.peer() as peer:
        peer.create_topic(topic)
        for one in batches:
            assert peer.produce(topic, one).error_code == 0


def readable(timestamp: int = 1000) -> bytes:
    return batch([Sample(n, timestamp, b"key", b"value") for n in range(3)])


def unreadable(codec: int = NONE, timestamp: int = 1000) -> bytes:
    return batch(
        [Sample(n, timestamp, b"key", b"value") for n in range(3)], codec=codec, content=b"nonsense"
    )


def reads(client: str, running: GatewayProcess, topic: str, count: int) -> list[Record]:
    with skip_if_not_installed():
        return consume(
            table()[client], "{}:{}".format(*running.address), [Span(topic, 0, 0, count)]
        )


@contextmanager
def skip_if_not_installed() -> Iterator[None]:
    try:
        yield
    except CannotInstall as reason:
        (pytest.fail if are_required() else pytest.skip)(str(reason))


@pytest.mark.parametrize("client", OLD_CLIENTS)
@pytest.mark.parametrize("codec", [NONE, GZIP])
def test_old_client_reads_batches_around_unreadable_one(running, client, codec):
    topic = f"between-{client}-{codec}"
    stores(running, topic, readable(), unreadable(codec), readable())
    assert [record.offset for record in reads(client, running, topic, 6)] == [0, 1, 2, 6, 7, 8]


@pytest.mark.parametrize("client", OLD_CLIENTS)
def test_old_client_waits_behind_unreadable_batch_for_new_ones(running, client):
    topic = f"last-{client}"
    stores(running, topic, readable(), unreadable())
    with ThreadPoolExecutor(1) as consumer:
        read = consumer.submit(reads, client, running, topic, 6)
        told = running.wait_for_lines(1, f"topic={topic}", seconds=240)
        stores(running, topic, readable())
        assert [record.offset for record in read.result()] == [0, 1, 2, 6, 7, 8]
    assert [EVENT in line for line in told] == [True]


def test_list_offsets_by_time_returns_base_offset_of_unreadable_batch(running):
    with skip_if_not_installed():
        kcat = install(table()["kcat-1.7.1"])[-1]
    stores(running, "by-time", readable(1000), unreadable(timestamp=2000), readable(3000))
    # The default timeout is five seconds.
    command = [kcat, "-m", "60", "-b", "{}:{}".format(*running.address), "-Q", "-t"]
    found = [
        subprocess.run(
            [*command, f"by-time:0:{timestamp}"],
            capture_output=True,
            text=True,
            timeout=240,
            check=True,
        ).stdout
        for timestamp in (1000, 1500, 2500)
    ]
    assert found == ["by-time [0] offset 0\n", "by-time [0] offset 3\n", "by-time [0] offset 6\n"]


def test_skipped_batch_is_logged_once(running):
    stores(running, "told", unreadable())
    with running.peer() as peer:
        for version in (0, 2, 3):
            peer.fetch("told", 0, version=version)
    (line,) = running.wait_for_lines(1, "topic=told")
    assert "first_offset=0 last_offset=2" in line
