"""Apache Pulsar 4.0.8 from Maven, as `pulsar standalone` on free loopback ports.

Broker, bookie and metadata store run in one process. It is configured as the gateway requires: only
the gateway creates topics, nothing is deleted automatically, and every entry has its index and
broker timestamp.

    with Pulsar.start() as broker:
        settings = broker.tenant().settings()

Tests that do not stop or reconfigure the broker use the fixture `pulsar`: a tenant on a broker
that all workers share. The first worker that needs it starts it, and the controller stops it. Tests
that kill or pause a broker share that of the fixture `restartable_pulsar`; their files run in one
worker (`tests/distribution.py`).
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from tests.legacy_clients.brokers import are_required
from tests.testkit import jvm
from tests.testkit.cache import TAIL_CHARACTERS, CannotInstall, cached, command, maven
from tests.testkit.kafka import BrokerFailed, free_ports
from tests.testkit.tenant import Tenant, TenantRequestFailed, rest
from tests.used_peers import uses

VERSION = "4.0.8"
#: A start takes 10 s on an idle core and over 4 minutes on a twentieth of one. An exit is noticed
#: at once.
START_SECONDS = 900.0
STOP_SECONDS = 60.0
START_ATTEMPTS = 3
#: Starts before giving up because of registration conflicts. About one start in six after a kill
#: has them.
CONFLICT_ATTEMPTS = 8
#: A log line of a bookie that lost its registration. A killed bookie is still registered when it
#: restarts. It may then delete and renew its registration endlessly, a hundred times per second;
#: meanwhile about every third topic cannot be opened (BookKeeper error -6). Known for ZooKeeper as
#: apache/pulsar#17759; it also occurs with the metadata store of `standalone`. A good start logs
#: one or two of these lines.
REGISTRATION_CONFLICT = b"Lock on resource /ledgers/available/"
MAX_CONFLICTS = 20

SETTINGS = {
    "allowAutoTopicCreation": "false",
    "brokerDeleteInactiveTopicsEnabled": "false",
    "brokerEntryMetadataInterceptors": "org.apache.pulsar.common.intercept."
    "AppendIndexMetadataInterceptor,"
    "org.apache.pulsar.common.intercept.AppendBrokerTimestampMetadataInterceptor",
    "defaultRetentionSizeInMB": "-1",
    "defaultRetentionTimeInMinutes": "-1",
    "managedLedgerNewEntriesCheckDelayInMillis": "0",
}
"""Settings that differ from standalone.conf or are missing there."""

#: Of the broker that all workers share: it keeps the logs of thousands of topics.
SHARED_MEMORY = "1g"
#: A broker that needs less than half the memory of the smallest test machine.
BROKER_MEMORY = "400m"
#: Otherwise the broker's client would exclude its only bookie for half an hour because of writes
#: that failed during a pause, and nothing could be written.
ONE_BOOKIE = {"bookkeeperClientHealthCheckEnabled": "false"}

TEST_SETTINGS = {
    # Larger than most entries in tests, so that an entry is written to the journal by one system
    # call (see `Pulsar.kill`).
    "journalWriteBufferSizeKB": "2048",
    # A check of the cache 100 times per second is a quarter of an idle broker's CPU time.
    "managedLedgerCacheEvictionFrequency": "1.0",
}
"""Settings that only the tests need."""


def distribution() -> Path:
    """The unpacked distribution (250 MB); fetched once."""

    def build(folder: Path) -> None:
        artifact = f"-Dartifact=org.apache.pulsar:pulsar-server-distribution:{VERSION}:tar.gz:bin"
        maven("dependency:copy", artifact, f"-DoutputDirectory={folder}")
        (archive,) = folder.glob("*.tar.gz")
        command(["tar", "-xzf", archive, "-C", folder, "--strip-components=1"])
        archive.unlink()

    if not shutil.which("java"):
        raise CannotInstall(
            "`java` is not on this machine: Pulsar needs a JDK of version 17 or later"
        )
    return cached(f"pulsar/{VERSION}", build)


class Pulsar:
    """A broker that can be killed, paused and restarted on the same data and ports.

    Leaving the context stops it and removes its data.
    """

    def __init__(
        self,
        folder: Path,
        ports: tuple[int, int],
        settings: Mapping[str, str],
        memory: str,
        flags: Sequence[str] | None = None,
    ) -> None:
        uses("Apache Pulsar", VERSION)
        self.folder = folder
        self._ports = ports
        self._memory = memory
        self._flags = _flags_for_short_lives() if flags is None else flags
        # Existing data includes the bookie's port: a bookie is identified by its address.
        self._bookie_port = None if (folder / "bookkeeper").exists() else free_ports(1)[0]
        self._process: subprocess.Popen[bytes] | None = None
        self._has_served = False
        port, web_port = ports
        addresses = {
            "bindAddress": "127.0.0.1",
            "advertisedAddress": "127.0.0.1",
            "brokerServicePort": port,
            "webServicePort": web_port,
        }
        conf = (distribution() / "conf" / "standalone.conf").read_text("utf-8")
        (folder / "standalone.conf").write_text(
            with_settings(
                conf,
                {
                    **SETTINGS,
                    **TEST_SETTINGS,
                    **{k: str(v) for k, v in addresses.items()},
                    **settings,
                },
            )
        )

    @classmethod
    def start(
        cls, *, memory: str = "512m", flags: Sequence[str] | None = None, **settings: str
    ) -> Self:
        """Start a broker on free ports with its data in a temporary folder, and wait until it is
        ready.

        `settings` are those of broker.conf. `memory` limits the heap and, separately, direct
        memory. `flags` are those of the JVM; their default is best for a short life. Another
        process can take a port before Pulsar binds it; the start is then retried.
        """
        for attempt in range(START_ATTEMPTS):
            port, web_port = free_ports(2)
            broker = cls(
                Path(tempfile.mkdtemp(prefix="kopgate-pulsar-")),
                (port, web_port),
                settings,
                memory,
                flags,
            )
            try:
                broker.launch()
            except BrokerFailed as failure:
                broker.stop()
                if attempt + 1 == START_ATTEMPTS or "Address already in use" not in str(failure):
                    raise
            except BaseException:
                broker.stop()
                raise
            else:
                return broker
        raise AssertionError("the last attempt returns or raises")

    @property
    def service_url(self) -> str:
        return f"pulsar://127.0.0.1:{self._ports[0]}"

    @property
    def admin_url(self) -> str:
        return f"http://127.0.0.1:{self._ports[1]}"

    @property
    def pid(self) -> int:
        """The process id of the JVM."""
        assert self._process
        return self._process.pid

    def launch(self) -> None:
        """Start the process on the existing data and wait until it is ready. Raises BrokerFailed.

        A bookie with registration conflicts is killed and started again. So is a process that exits
        although it was ready before: a connection of another process may have taken one of its
        ports meanwhile.
        """
        exits = 0
        for _ in range(CONFLICT_ATTEMPTS):
            already = self._log_bytes()
            try:
                self._launch(already)
            except BrokerFailed:
                exits += 1
                if not self._has_served or exits == START_ATTEMPTS:
                    raise
                self.kill()
                time.sleep(1)
                continue
            self._has_served = True
            if not self._is_in_conflict(already):
                return
            self.kill()
        raise BrokerFailed(
            f"Pulsar's bookie repeatedly lost its registration in each of "
            f"{CONFLICT_ATTEMPTS} starts:\n{self.log()}"
        )

    def _launch(self, already: int) -> None:
        """Return when the process is ready, or when its bookie has registration conflicts."""
        with (self.folder / "broker.log").open("ab") as output:
            self._process = subprocess.Popen(
                self._argv(),
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        self._wait_until_ready(lambda: self._is_in_conflict(already))

    def _wait_until_ready(self, is_useless: Callable[[], bool] = lambda: False) -> None:
        assert self._process
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise BrokerFailed(
                    f"Pulsar exited with {self._process.returncode} while starting:\n{self.log()}"
                )
            if self._is_ready() or is_useless():
                return
            time.sleep(0.1)
        raise BrokerFailed(f"Pulsar was not ready after {START_SECONDS:.0f} s:\n{self.log()}")

    def _log_bytes(self) -> int:
        log = self.folder / "broker.log"
        return log.stat().st_size if log.exists() else 0

    def _is_in_conflict(self, after: int) -> bool:
        """Whether there are many REGISTRATION_CONFLICT lines in the log after byte `after`."""
        with (self.folder / "broker.log").open("rb") as log:
            log.seek(after)
            return sum(REGISTRATION_CONFLICT in line for line in log) > MAX_CONFLICTS

    def tenant(self) -> Tenant:
        """Create a tenant."""
        return Tenant.make(self.service_url, self.admin_url)

    def kill(self) -> None:
        """Send SIGKILL: clients are not notified, and nothing is flushed.

        The process is suspended first, so that it is not killed inside a system call. After a
        restart a bookie takes a partly written journal record for a complete one, because the rest
        of the file is zeros. If that is the last entry of a ledger and there is no other bookie,
        the ledger cannot be opened any more (`Mac mismatch`, error -10). This happened in 8 of 10
        kills while records of 256 KiB were written, and in none of 16 since.
        """
        if self._process is None:
            return
        if self._process.poll() is None:
            suspend(self._process)
            self._process.kill()
        self._process.wait()

    def pause(self) -> None:
        """Send SIGSTOP: connections stay open but get no replies. Returns when the process is
        stopped.
        """
        assert self._process
        suspend(self._process)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def serve(self) -> None:
        """Start or resume a killed or paused broker, and wait until it is ready."""
        assert self._process
        if self._process.poll() is not None:
            self.launch()
            return
        self.resume()
        self._wait_until_ready()

    def end(self) -> None:
        """Send SIGTERM, then SIGKILL after STOP_SECONDS; the data stays."""
        if self._process and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.kill()

    def restart(self) -> None:
        """Stop the process if it runs, and start it again on the same data and ports."""
        self.end()
        self.launch()

    def wait(self) -> int:
        """Wait for the process to exit and return its exit code."""
        assert self._process
        return self._process.wait()

    def stop(self) -> None:
        """Kill the process and remove its folder."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def log(self) -> str:
        """The tail of the broker's log, preceded by its last errors, if any."""
        text = (self.folder / "broker.log").read_text(errors="replace")
        failures = "\n".join(
            [
                line[:300]
                for line in text.splitlines()
                if " ERROR " in line or "Caused by: " in line
            ][-5:]
        )
        return f"{failures}\n...\n{text[-TAIL_CHARACTERS:]}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            error.add_note(self.log())
        self.stop()

    def _argv(self) -> Sequence[str]:
        # The bookie's stream storage would need another port.
        without = ("--no-functions-worker", "--no-stream-storage")
        bookie = (f"--bookkeeper-port={self._bookie_port}",) if self._bookie_port else ()
        data = (
            f"--metadata-dir={self.folder / 'metadata'}",
            f"--bookkeeper-dir={self.folder / 'bookkeeper'}",
        )
        return [str(distribution() / "bin" / "pulsar"), "standalone", *without, *bookie, *data]

    def _environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "PULSAR_STANDALONE_CONF": str(self.folder / "standalone.conf"),
            "PULSAR_LOG_DIR": str(self.folder),
            # A small heap, and not the parallel collector of Pulsar's scripts, whose threads would
            # compete for few cores.
            # Enough for a start without collections of the whole heap.
            "PULSAR_MEM": f"-Xms192m -Xmx{self._memory} -XX:MaxDirectMemorySize={self._memory}",
            "PULSAR_GC": " ".join([*jvm.QUIET, *self._flags]),
            "PULSAR_GC_LOG": " ",
        }

    def _is_ready(self) -> bool:
        """Whether the health check passes (it writes to a topic and reads it again) and
        `public/default` exists.

        Pulsar creates that namespace slightly later.
        """
        try:
            health, _ = rest("GET", f"{self.admin_url}/admin/v2/brokers/health")
            default, _ = rest("GET", f"{self.admin_url}/admin/v2/namespaces/public/default")
        except OSError:
            return False
        return (health, default) == (200, 200)


@cache
def _flags_for_short_lives() -> Sequence[str]:
    """These include the class path: classes are not archived if it begins with a folder of files,
    as that of Pulsar's script does.
    """
    home = distribution()
    jars = sorted(map(str, (home / "lib").glob("*.jar")))
    log = f"-Dlog4j.configurationFile={home / 'conf' / 'log4j2.yaml'}"
    common = [*jvm.CLIENT, "-cp", ":".join(jars), log]

    def record(flags: Sequence[str]) -> None:
        with Pulsar.start(flags=[*common, *flags]) as broker:
            broker.end()
            if broker.wait() == -signal.SIGKILL:
                raise BrokerFailed("killed before it had written an archive of its classes")

    return [*common, *jvm.class_archive(jars, record)]


def suspend(process: subprocess.Popen[Any]) -> None:
    """Send SIGSTOP and return when all threads of the process are stopped, or when it has ended.

    The kernel delivers the signal some time after `kill` has returned; until then the process still
    replies. WNOWAIT leaves the state for the next waiter, since a stopped process does not report a
    second stop.
    """
    process.send_signal(signal.SIGSTOP)
    if process.returncode is None:
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)


def with_settings(conf: str, settings: Mapping[str, str]) -> str:
    """The text of a .conf file with these settings replaced. Pulsar rejects duplicate settings."""
    kept = [
        line
        for line in conf.splitlines()
        if not any(re.match(rf"{re.escape(name)}\s*=", line) for name in settings)
    ]
    return "\n".join([*kept, *(f"{name}={value}" for name, value in settings.items()), ""])


#: The input of a worker that names the folder of the shared broker.
SHARED_FOLDER = "shared_pulsar"


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        return
    folder = Path(tempfile.mkdtemp(prefix="kopgate-shared-"))
    config.pluginmanager.register(SharedPulsar(folder))
    config.add_cleanup(partial(stop_shared, folder))


class SharedPulsar:
    """Tells each worker the folder of the shared broker."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput[SHARED_FOLDER] = str(self._folder)


def shared_urls(folder: Path, start: Callable[[], Pulsar]) -> tuple[str, str]:
    """The service URL and the admin URL of the broker that was first started for this folder."""
    started = folder / "broker.json"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not started.exists():
            broker = start()
            started.write_text(
                json.dumps([broker.service_url, broker.admin_url, broker.pid, str(broker.folder)])
            )
    service_url, admin_url, *_ = json.loads(started.read_text())
    return service_url, admin_url


def stop_shared(folder: Path) -> None:
    """Kill the broker that was started for this folder, if any, and remove both folders.

    Its parent has ended, so that the process can be another one if it ended, too.
    """
    started = folder / "broker.json"
    if started.exists():
        _, _, pid, data = json.loads(started.read_text())
        with suppress(OSError):
            if data.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(data, ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def pulsar(request: pytest.FixtureRequest) -> Iterator[Tenant]:
    """A tenant for this session, on the broker named by TESTS_PULSAR, or on that of all workers.

    TESTS_PULSAR has the form `pulsar://HOST:PORT,http://HOST:PORT`. If Pulsar cannot be installed,
    the test is skipped, or fails in CI.
    """
    running = os.environ.get("TESTS_PULSAR")
    if running:
        service_url, _, admin_url = running.partition(",")
        tenant = Tenant.make(service_url, admin_url)
        yield tenant
        # A broker that the tests did not start may be busy; leftovers there do no harm.
        with suppress(OSError, TenantRequestFailed):
            tenant.remove()
        return
    folder = getattr(request.config, "workerinput", {}).get(SHARED_FOLDER)
    if folder:
        uses("Apache Pulsar", VERSION)
        start = partial(_started_or_skipped, memory=SHARED_MEMORY)
        tenant = Tenant.make(*shared_urls(Path(folder), start))
        _used_tenants.append(tenant)
        yield tenant
        return
    with _started_or_skipped() as broker:
        yield broker.tenant()


#: The tenant of this worker, once `pulsar` is used.
_used_tenants: list[Tenant] = []


@pytest.fixture(scope="module", autouse=True)
def _unloaded_namespaces() -> Iterator[None]:
    """Close the topics of a module after its other fixtures."""
    yield
    for tenant in _used_tenants:
        tenant.unload()


@pytest.fixture(scope="session")
def restartable_process() -> Iterator[Pulsar]:
    """The broker of `restartable_pulsar`."""
    with _started_or_skipped(memory=BROKER_MEMORY, **ONE_BOOKIE) as broker:
        yield broker


@pytest.fixture
def restartable_pulsar(restartable_process: Pulsar) -> Iterator[Pulsar]:
    """A running broker that the test may kill and pause; one for all these tests.

    It is paused between tests, because an idle broker needs CPU time.
    """
    restartable_process.serve()
    yield restartable_process
    restartable_process.pause()


def _started_or_skipped(**options: str) -> Pulsar:
    try:
        return Pulsar.start(**options)
    except CannotInstall as missing:
        (pytest.fail if are_required() else pytest.skip)(str(missing))
