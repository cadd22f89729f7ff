"""`make chaos`: inject faults from a seed for some minutes, on Pulsar or the embedded store. Exit
code 1 if a check fails.
"""

from __future__ import annotations

import argparse
import math
import random
import signal
import sys
import tempfile
from pathlib import Path

from tests.peers.chaos.client_processes import install_clients
from tests.peers.chaos.faults import plan_faults
from tests.peers.chaos.report import draw_svg, summary
from tests.peers.chaos.setups import SETUPS, RunProcesses


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make chaos ARGS=", description=__doc__)
    parser.add_argument(
        "--seed",
        type=int,
        default=random.randrange(1 << 16),
        help="repeat the faults of an earlier run",
    )
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--minutes", type=float, default=5.0)
    length.add_argument(
        "--rounds", type=int, metavar="N", help="inject N faults, however long it takes"
    )
    parser.add_argument("--store", choices=sorted(SETUPS), default="pulsar")
    parser.add_argument(
        "--gateways",
        type=int,
        default=1,
        metavar="N",
        help="gateways of one cluster; also cuts their connections to Pulsar",
    )
    parser.add_argument(
        "--plot",
        type=Path,
        metavar="FILE",
        help="write a chart of the recovery times to this file, as .svg",
    )
    parser.add_argument(
        "--folder", type=Path, help="folder for the logs of all processes; it must be empty"
    )
    asked = parser.parse_args()
    if not SETUPS[asked.store].kinds_for(asked.gateways):
        parser.error(f"--store {asked.store} has one gateway")
    return asked


def main() -> int:
    asked = arguments()
    # Unwind on SIGTERM, so that every started process is stopped.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    stage = SETUPS[asked.store]
    seconds = asked.minutes * 60 if asked.rounds is None else math.inf
    length = f"{asked.minutes:g} minutes" if asked.rounds is None else f"{asked.rounds} rounds"
    kinds = stage.kinds_for(asked.gateways)
    faults = plan_faults(asked.seed, seconds, kinds, asked.gateways, asked.rounds)
    print(
        f"seed {asked.seed}, {length} on {asked.store}, gateways: {asked.gateways}",
        *faults,
        sep="\n",
        flush=True,
    )
    install_clients()
    folder = asked.folder or Path(tempfile.mkdtemp(prefix="kopgate-chaos-"))
    folder.mkdir(parents=True, exist_ok=True)
    print(f"logs of all processes: {folder}", flush=True)
    outcome = stage.run(
        folder, faults, seconds, lambda line: print(line, flush=True), RunProcesses(asked.gateways)
    )
    print("", summary(outcome), sep="\n")
    if asked.plot:
        asked.plot.write_text(
            draw_svg(outcome.recoveries, f"Time to recover, seed {asked.seed}, {asked.store}")
        )
    return 1 if outcome.complaints else 0


if __name__ == "__main__":
    sys.exit(main())
