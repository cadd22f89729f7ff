"""A gateway on a small volume that fills up: Produce is refused, reads continue, and freed space is
used at once.
"""

from __future__ import annotations

import os
import subprocess
import time
import warnings
from pathlib import Path
from resource import RLIM_INFINITY, RLIMIT_FSIZE, prlimit

import pytest
from kafka.protocol.admin.topics import (
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)

from tests.testkit.gateway import MIB, gateway, one_record

pytestmark = [pytest.mark.peer]

#: The store reserves 64 MiB of it for deletions.
VOLUME = 96 * MIB
VALUE = 1_000_000
TOPIC = "orders"
OTHERS = "others"
KAFKA_STORAGE_ERROR = 56

#: Runs a command on a tmpfs that is removed with the process. Arguments of `sh` are the size, the
#: mount point and the command. With or without root privileges.
NAMESPACES = [["unshare", "--mount"], ["unshare", "--user", "--map-root-user", "--mount"]]
MOUNTED = ["sh", "-c", 'mount -t tmpfs -o size="$0" none "$1" && shift && exec "$@"']


class Volume:
    """The volume of the store's folder. Where no tmpfs can be mounted, a limit on the file size of
    the gateway stands for it.
    """

    def __init__(self, folder):
        self._store = folder / "store"
        self._store.mkdir()
        self._pid = 0
        self.within = next(
            (found for found in map(self._command, NAMESPACES) if succeeds([*found, "true"])), []
        )
        if not self.within:
            warnings.warn(
                "cannot mount a tmpfs: using a file size limit instead of a full disk",
                stacklevel=2,
            )

    def _command(self, namespace):
        return [*namespace, *MOUNTED, str(VOLUME), str(self._store)]

    def attach(self, server):
        self._pid = server.process.pid
        self.free_space()

    def fill_completely(self):
        """Fill the volume to the last byte."""
        if not self.within:
            prlimit(
                self._pid, RLIMIT_FSIZE, (self._inside("data.mdb").stat().st_size, RLIM_INFINITY)
            )
            return
        with (
            self._inside("of others").open("wb", buffering=0) as file,
            pytest.raises(OSError, match="No space left"),
        ):
            write_until_full(file)

    def free_space(self):
        if not self.within:
            prlimit(self._pid, RLIMIT_FSIZE, (VOLUME, RLIM_INFINITY))
            return
        self._inside("of others").unlink(missing_ok=True)

    def _inside(self, name):
        return Path(f"/proc/{self._pid}/root{self._store / name}")


def write_until_full(file):
    while True:
        file.write(bytes(MIB))


def succeeds(argv):
    try:
        return subprocess.run(argv, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


@pytest.fixture
def volume(tmp_path):
    return Volume(tmp_path)


@pytest.fixture
def server(volume, tmp_path):
    """A gateway on that volume that keeps no records in memory, so that every read is served from
    the store.
    """
    with gateway(tmp_path, within=volume.within, lmdb_resident_bytes=0) as started:
        volume.attach(started)
        with started.peer() as peer:
            peer.create_topic(TOPIC)
            peer.create_topic(OTHERS)
        yield started
        assert started.process.poll() is None


def fill(peer, topic, at_most=1000):
    """Produce until a record is refused, and return the number of stored records."""
    for number in range(at_most):
        stored = peer.produce(topic, one_record(os.urandom(VALUE)))
        if stored.error_code:
            assert stored.error_code == KAFKA_STORAGE_ERROR
            return number
    return at_most


def delete_records(peer):
    """Delete the first half of the records."""
    topic = DeleteRecordsRequest.DeleteRecordsTopic
    half = peer.fetch(TOPIC, 0).high_watermark // 2
    rows = [
        topic(name=TOPIC, partitions=[topic.DeleteRecordsPartition(partition_index=0, offset=half)])
    ]
    reply = peer.request(
        DeleteRecordsRequest(version=1, topics=rows, timeout_ms=10_000), DeleteRecordsResponse, 1
    )
    assert reply.topics[0].partitions[0].error_code == 0


def delete_other_topic(peer):
    asked = DeleteTopicsRequest(version=3, topic_names=[OTHERS], timeout_ms=10_000)
    assert peer.request(asked, DeleteTopicsResponse, 3).responses[0].error_code == 0


def makes_progress(peer, seconds=240.0):
    """Whether Produce succeeds within this time. Deleted space is freed gradually."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if fill(peer, TOPIC, 1):
            return True
    return False


def is_read(peer, offsets):
    return all(len(peer.fetch(TOPIC, offset, max_bytes=1).records) > VALUE for offset in offsets)


def failure_lines(server):
    """The log lines at the first failed and the first successful write; there must be no other
    errors or warnings.
    """
    began, ended = server.wait_for_lines(2, "storage.lmdb")
    assert [line for line in server.lines() if " warning " in line or " error " in line] == [
        began,
        ended,
    ]
    return began, ended


@pytest.mark.parametrize("deletes", [delete_records, delete_other_topic])
def test_full_volume_refuses_produce_and_serves_reads_until_deletion(server, deletes):
    with server.peer() as peer:
        assert fill(peer, OTHERS, 15) == 15
        stored = fill(peer, TOPIC)
        assert stored > 10
        assert fill(peer, TOPIC) == fill(peer, OTHERS) == 0
        assert is_read(peer, range(stored))
        deletes(peer)
        assert makes_progress(peer)
        assert "the disk is full" in failure_lines(server)[0]
        # Space is freed between writes, so a write can still be refused.
        assert all(makes_progress(peer) for _ in range(4))
        assert is_read(peer, range(stored // 2, stored + 1 + 4))


def test_volume_filled_by_other_files_refuses_produce_serves_reads_and_deletes(server, volume):
    with server.peer() as peer:
        assert fill(peer, TOPIC, 10) == 10
        volume.fill_completely()
        assert fill(peer, TOPIC) == fill(peer, OTHERS) == 0
        assert is_read(peer, range(10))
        delete_records(peer)
        assert is_read(peer, range(5, 10))
        volume.free_space()
        assert makes_progress(peer)
        server.wait_for_lines(2, "storage.lmdb")
        failed = [line for line in server.lines() if " error " in line]
        assert len(failed) == 1
        assert "appending" in failed[0]
        assert fill(peer, TOPIC, 5) == 5
        assert is_read(peer, range(5, 16))
