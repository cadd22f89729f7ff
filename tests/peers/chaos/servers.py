"""The servers of a run: gateways, always at the same addresses and on the same store, and a Pulsar
broker.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tests.peers.chaos.faults import Action, ServerFault, Target
from tests.testkit.forks.prepared_gateway import start_gateway
from tests.testkit.gateway import Peer
from tests.testkit.kafka import free_ports
from tests.testkit.pulsar import suspend
from tests.testkit.pulsar_relay import PulsarRelays

#: On a Pulsar that has just started, on a busy machine.
START_SECONDS = 480.0
#: The gateway's own limits add up to about 10 s; the rest is for a busy machine.
STOP_SECONDS = 180.0


class Server(Protocol):
    """A process into which faults are injected and that can be restarted."""

    def kill(self) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def end(self) -> None: ...
    def launch(self) -> None: ...


class GatewayDied(Exception):
    """The gateway exited, or did not start, without a fault; the message ends with its log."""


class RestartableGateway:
    """`store` are the command-line arguments for the store; `settings` are passed with --set.

    `by_fork` and `checkout` are those of `start_gateway`.
    """

    by_fork: bool | None = None
    checkout: Path | None = None

    def __init__(
        self,
        folder: Path,
        store: Sequence[str],
        settings: Mapping[str, object],
        name: str = "gateway",
    ) -> None:
        (self.port,) = free_ports(1)
        self._argv = [
            "serve",
            "--listener",
            f"PLAINTEXT://127.0.0.1:{self.port}",
            *store,
        ]
        self._argv += [
            word for key, value in settings.items() for word in ("--set", f"{key}={value}")
        ]
        self._log = folder / f"{name}.log"
        self._process: subprocess.Popen[str] | None = None

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def process(self) -> subprocess.Popen[str]:
        assert self._process
        return self._process

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def launch(self, *arguments: str) -> None:
        """Start the gateway and wait until it is ready."""
        with self._log.open("a") as errors:
            self._process = process = start_gateway(
                [*self._argv, *arguments], errors, checkout=self.checkout, by_fork=self.by_fork
            )
        assert process.stdout
        overdue = threading.Timer(START_SECONDS, process.kill)
        overdue.start()
        ready = process.stdout.readline()
        overdue.cancel()
        if not ready.startswith("ready "):
            raise GatewayDied(f"it did not start, exit code {process.wait()}\n{self.log()}")

    def kill(self) -> None:
        if self._process:
            self._process.kill()
            self._process.wait()

    def pause(self) -> None:
        suspend(self.process)

    def resume(self) -> None:
        os.kill(self.process.pid, signal.SIGCONT)

    def end(self) -> None:
        """Stop the gateway with SIGTERM, as for an upgrade."""
        self.process.terminate()
        try:
            code = self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            raise GatewayDied(
                f"it did not end within {STOP_SECONDS:.0f} s of SIGTERM\n{self.log()}"
            ) from None
        if code:
            raise GatewayDied(f"exit code {code} after SIGTERM\n{self.log()}")

    def assert_running(self) -> None:
        """Raise GatewayDied if the process has exited."""
        if self.process.poll() is not None:
            raise GatewayDied(f"exit code {self.process.returncode} without a fault\n{self.log()}")

    def peer(self, seconds: float = 240.0) -> Peer:
        return Peer(("127.0.0.1", self.port), seconds=seconds)

    def log(self) -> str:
        return self._log.read_text(errors="replace")[-6000:]

    def has_logged(self, words: str) -> bool:
        """Whether the whole log contains these words; `log` returns only its tail."""
        return words in self._log.read_text(errors="replace")

    def unexpected_errors(self) -> list[str]:
        """Log lines about unexpected exceptions."""
        lines = self._log.read_text(errors="replace").splitlines()
        return [line for line in lines if " traceback=" in line or "which is a bug" in line]


class RetryingGateway(RestartableGateway):
    """A gateway that is started again if it cannot start, as by a service manager.

    A Pulsar that has just started may be ready and still fail to store anything.
    """

    def launch(self, *arguments: str) -> None:
        end = time.monotonic() + START_SECONDS
        while True:
            try:
                return super().launch(*arguments)
            except GatewayDied as died:
                if "cannot start" not in str(died) or time.monotonic() > end:
                    raise


class Link:
    """The connection of a gateway to Pulsar."""

    def __init__(self, relays: PulsarRelays) -> None:
        self._relays = relays
        self._cut = ExitStack()

    def cut(self) -> None:
        self._cut.enter_context(self._relays.cut())

    def mend(self) -> None:
        self._cut.close()


@dataclass(frozen=True, slots=True)
class Servers:
    """What faults can be injected into. `links` are those of the gateways, in the same order."""

    gateways: Sequence[Server]
    broker: Server | None = None
    links: Sequence[Link] = ()

    def inject(self, fault: ServerFault) -> None:
        if fault.action is Action.CUT:
            self.links[fault.node - 1].cut()
        for server in self._targets(fault):
            match fault.action:
                case Action.KILL:
                    server.kill()
                case Action.PAUSE:
                    server.pause()
                case Action.STOP:
                    server.end()

    def recover(self, fault: ServerFault) -> None:
        """Restart or resume the servers, and return when they are ready."""
        if fault.action is Action.CUT:
            self.links[fault.node - 1].mend()
        for server in reversed(self._targets(fault)):
            if fault.action is Action.PAUSE:
                server.resume()
            else:
                server.launch()

    def _targets(self, fault: ServerFault) -> list[Server]:
        """The gateway first: it is stopped first and started last."""
        found: list[Server] = []
        if fault.target in (Target.GATEWAY, Target.BOTH):
            found.append(self.gateways[max(fault.node - 1, 0)])
        if fault.target in (Target.BROKER, Target.BOTH):
            assert self.broker
            found.append(self.broker)
        return found
