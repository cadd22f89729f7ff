"""Folders of logs and reports.

As a command, prints the file to run with spark-submit: `python -m reports.places [follow]`.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

ADDRESS = re.compile(r"(?i)[a-z][a-z0-9+.-]*:/")


def folder(text: str) -> Path:
    """Convert to a Path. Raises ValueError for an object store URL: locks and renames need a local
    file system.
    """
    if ADDRESS.match(text):
        raise ValueError(
            f"{text} is not a local folder: logs and reports must be on a file system that the "
            "driver and the workers see under the same path (NFS, CephFS, a mounted disk); "
            "data in an object store must be mounted or copied first"
        )
    return Path(text)


def argument(text: str) -> Path:
    """`folder`, for argparse."""
    try:
        return folder(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


if __name__ == "__main__":
    name = sys.argv[1] if len(sys.argv) > 1 else "__main__"
    sys.stdout.write(f"{Path(__file__).with_name(name)}.py\n")
