"""A traffic log on a separate disk that is full, read-only, emptied or hanging.

It loses rows, which is logged and visible as gaps, but never affects service.
"""

from __future__ import annotations

import os
import shutil
import statistics
import time
from pathlib import Path

import pytest
from kafka.protocol.producer.produce import ProduceResponse

from tests.legacy_clients.brokers import are_required
from tests.peers.faults.test_full_disk import NAMESPACES, succeeds, write_until_full
from tests.testkit.cache import CannotInstall, cached, command, fingerprint
from tests.testkit.gateway import (
    MIB,
    Stopwatch,
    encode_request,
    gateway,
    one_record,
    produce_request,
)
from tests.testkit.traffic_rows import read_lines, read_rows, wait_for_rows

pytestmark = [pytest.mark.peer]

TOPIC = "orders"
VOLUME = 4 * MIB
OFTEN = {"traffic_log_interval_ms": 1000, "traffic_log_rotate_ms": 1000}
HANGS = Path(__file__).with_name("hanging_disk.c")
#: Limit of the median of a thousand clients while the disk hangs, by the stopwatch; the store's
#: disk can be busy.
AT_ONCE_SECONDS = 2.0


@pytest.fixture
def volume(tmp_path):
    """A command that mounts a small volume for the gateway's traffic log."""
    folder = tmp_path / "traffic"
    folder.mkdir()
    mounted = [
        "sh",
        "-c",
        'mount -t tmpfs -o size="$0" none "$1" && shift && exec "$@"',
        str(VOLUME),
        str(folder),
    ]
    found = next(
        (
            [*namespace, *mounted]
            for namespace in NAMESPACES
            if succeeds([*namespace, *mounted, "true"])
        ),
        None,
    )
    if found is None:
        (pytest.fail if are_required() else pytest.skip)("no tmpfs can be mounted here")
    return found


def test_full_disk_drops_rows_without_affecting_service(tmp_path, volume):
    folder = tmp_path / "traffic"
    with (
        gateway(tmp_path, "--traffic-log", str(folder), within=volume, **OFTEN) as server,
        server.peer() as peer,
    ):
        log = Path(f"/proc/{server.process.pid}/root{folder}")
        peer.create_topic(TOPIC)
        assert wait_for_rows(log, lambda row: row["kind"] == "usage")
        filler = log / "of others"
        with filler.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space left"):
            write_until_full(file)
        assert is_logged(server, peer, "traffic rows dropped")
        assert peer.produce(TOPIC, one_record(b"v")).error_code == 0
        filler.unlink()
        # Once there is space and the retry pause is over.
        assert wait_under_load(peer, lambda: bool(gaps(log)))
        assert server.process.poll() is None
        # Written lines are complete; a line being written is so soon.
        assert wait_under_load(peer, lambda: all(line.endswith(b"}") for line in read_lines(log)))


def test_read_only_volume_drops_rows_until_it_is_writable(tmp_path, volume):
    folder = tmp_path / "traffic"
    with (
        gateway(tmp_path, "--traffic-log", str(folder), within=volume, **OFTEN) as server,
        server.peer() as peer,
    ):
        inside = [
            "nsenter",
            "--target",
            str(server.process.pid),
            "--mount",
            *(["--user"] if "--user" in volume else []),
            "mount",
            "-o",
        ]
        log = Path(f"/proc/{server.process.pid}/root{folder}")
        peer.create_topic(TOPIC)
        assert wait_for_rows(log, lambda row: row["kind"] == "usage")
        remounts([*inside, "remount,ro", str(folder)])
        # A finished file does not count: dropped rows show as gaps below.
        assert is_logged(server, peer, "traffic rows dropped", "Read-only file system")
        remounts([*inside, "remount,rw", str(folder)])
        assert wait_under_load(peer, lambda: bool(gaps(log)))
        assert server.stop() == 0


def remounts(argv):
    """Retry the mount, which fails while a file is being written."""
    end = time.monotonic() + 240
    while not succeeds(argv):
        assert time.monotonic() < end
        time.sleep(0.2)


def test_removed_folder_is_recreated_and_its_rows_are_logged_as_lost(tmp_path):
    log = tmp_path / "traffic"
    with (
        gateway(tmp_path, "--traffic-log", str(log), traffic_log_interval_ms=1000) as server,
        server.peer() as peer,
    ):
        peer.create_topic(TOPIC)
        assert wait_for_rows(log, lambda row: row["kind"] == "usage")
        # Renamed first: the gateway may write while the files are deleted one by one.
        shutil.rmtree(log.rename(tmp_path / "removed"))
        assert is_logged(server, peer, "file was deleted")
        assert wait_under_load(peer, lambda: bool(list(log.rglob("*.jsonl"))))
        assert server.stop() == 0
    rows = read_rows(log)
    assert rows[-1]["reason"] == "drain"
    assert [row["sequence"] for row in rows] == list(
        range(rows[0]["sequence"], rows[-1]["sequence"] + 1)
    )


@pytest.fixture(scope="session")
def hanging_disk_library():
    """The preloaded library whose file operations hang; built once."""
    library = HANGS.with_suffix(".so").name

    def build(folder):
        command(
            [
                "cc",
                "-shared",
                "-fPIC",
                "-O1",
                "-Wall",
                "-Wextra",
                "-Werror",
                "-o",
                folder / library,
                HANGS,
                "-ldl",
            ]
        )

    try:
        return cached(f"hanging-disk/{fingerprint([HANGS.read_bytes()])}", build) / library
    except CannotInstall as missing:
        (pytest.fail if are_required() else pytest.skip)(str(missing))


def test_hanging_disk_drops_rows_over_the_queue_limit_without_affecting_service(
    tmp_path, hanging_disk_library
):
    log, orders = tmp_path / "traffic", tmp_path / "hangs"
    environment = {"LD_PRELOAD": str(hanging_disk_library), "HANGING_DISK": str(orders)}
    settings = {"traffic_log_queue_lines": 1000, "traffic_log_rotate_ms": 60_000}
    with gateway(
        tmp_path, "--traffic-log", str(log), environment=environment, **settings
    ) as server:
        with server.peer() as peer:
            peer.create_topic(TOPIC)
        assert wait_for_rows(log, lambda row: row.get("event") == "closed")
        orders.touch()
        memory = server.memory()
        waited = []
        for _ in range(1000):
            watch = Stopwatch(server)
            with server.peer() as peer:
                assert peer.produce(TOPIC, one_record(b"v")).error_code == 0
            waited.append(watch.seconds())
        assert statistics.median(waited) < AT_ONCE_SECONDS
        assert server.wait_for_lines(1, "queue full")
        assert server.memory() - memory < 50 * MIB
        orders.unlink()
        with server.peer() as peer:
            assert wait_under_load(peer, lambda: bool(gaps(log)))
        assert server.stop() == 0


def test_hanging_disk_does_not_delay_the_shutdown(tmp_path, hanging_disk_library):
    log, orders = tmp_path / "traffic", tmp_path / "hangs"
    with gateway(
        tmp_path,
        "--traffic-log",
        str(log),
        environment={"LD_PRELOAD": str(hanging_disk_library), "HANGING_DISK": str(orders)},
    ) as server:
        orders.touch()
        with server.peer() as peer:
            peer.create_topic(TOPIC)
        assert server.stop() == 0


def is_logged(server, peer, *words):
    """Whether a line of the gateway's log contains all these words."""
    return wait_under_load(
        peer, lambda: any(all(one in line for one in words) for line in server.lines())
    )


def wait_under_load(peer, is_enough, seconds=120):
    """Whether it becomes so in time, while requests produce rows."""
    for _ in range(seconds * 10):
        peer.send(encode_request(produce_request(TOPIC, one_record(os.urandom(10))), 7))
        assert (
            ProduceResponse.decode(peer.receive()[4:], version=7)
            .responses[0]
            .partition_responses[0]
            .error_code
            == 0
        )
        if is_enough():
            return True
        peer.is_closed(0.1)
    return False


def gaps(log):
    """The missing sequence numbers between the logged ones."""
    numbers = [row["sequence"] for row in read_rows(log)]
    return sorted(set(range(max(numbers))) - set(numbers)) if numbers else []
