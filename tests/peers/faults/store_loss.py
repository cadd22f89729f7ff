"""A gateway with an in-memory store that another process takes over: `python -m
tests.peers.faults.store_loss`.

The store is lost at the first line on stdin. With the argument `hangs`, closing the store never
finishes.
"""

from __future__ import annotations

import sys
from typing import Any

from twisted.internet import reactor as the_reactor
from twisted.internet.defer import Deferred

from gateway import logs, server
from gateway.settings.addresses import parse_endpoint
from gateway.settings.model import Settings
from tests.fakes.memory_store import MemoryStore

reactor: Any = the_reactor


class LosableStore(MemoryStore):
    async def close(self) -> None:
        if "hangs" in sys.argv:
            await Deferred()
        await super().close()


def main() -> int:
    store = LosableStore()

    def wait() -> None:
        sys.stdin.readline()
        reactor.callFromThread(store.lose, "node 2 has it")

    server.make_store = lambda settings, reactor: store
    reactor.callWhenRunning(reactor.callInThread, wait)
    settings = Settings(
        listeners=(parse_endpoint("PLAINTEXT://127.0.0.1:0"),), shutdown_timeout_ms=500
    )
    with logs.ProcessLog(
        sys.stderr,
        settings.log_format,
        settings.log_level,
        settings.log_levels,
        settings.log_queue_events,
    ):
        return server.run(settings, reactor)


if __name__ == "__main__":
    sys.exit(main())
