"""`make pulsar`: run a Pulsar to try the gateway on, in the foreground. Its data is kept."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.testkit.cache import CannotInstall
from tests.testkit.kafka import BrokerFailed
from tests.testkit.pulsar import VERSION, Pulsar


def main(arguments: Sequence[str]) -> int:
    """The exit code: 0 after Ctrl-C or SIGTERM, 1 if Pulsar did not start or exited."""
    options = _parse(arguments)
    folder: Path = options.data.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    # SIGINT is ignored in a process that a shell started in the background.
    for asked in (signal.SIGINT, signal.SIGTERM):
        signal.signal(asked, signal.default_int_handler)
    print(
        f"Pulsar {VERSION} starts; its data and its log, broker.log, are in {options.data}",
        flush=True,
    )
    broker = None
    try:
        broker = Pulsar(folder, (options.port, options.web_port), {}, options.memory)
        broker.launch()
        print(_ready_text(broker), flush=True)
        code = broker.wait()
        print(f"Pulsar went away with exit code {code}:\n{broker.log()}", file=sys.stderr)
    except (CannotInstall, BrokerFailed) as failure:
        print(failure, file=sys.stderr)
    except KeyboardInterrupt:
        print("Pulsar ends", flush=True)
        return 0
    finally:
        if broker:
            broker.end()
    return 1


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make pulsar ARGS=...", description=__doc__)
    parser.add_argument(
        "--data",
        type=Path,
        default=Path("data-pulsar"),
        help="folder for data and log (default data-pulsar)",
    )
    parser.add_argument("--port", type=int, default=6650, help="port of the broker (default 6650)")
    parser.add_argument(
        "--web-port", type=int, default=8080, help="port of the admin API (default 8080)"
    )
    parser.add_argument(
        "--memory", default="1g", help="heap size, and limit of direct memory (default 1g)"
    )
    return parser.parse_args(arguments)


def _ready_text(broker: Pulsar) -> str:
    gateway = (
        f"kopgate serve --store {broker.service_url} "
        f"--pulsar-admin {broker.admin_url} --pulsar-setup"
    )
    return (
        f"ready {broker.service_url} {broker.admin_url}\n"
        f"Start a gateway with: {gateway}\nStop Pulsar with Ctrl-C."
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
