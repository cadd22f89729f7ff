"""The gateway without the package `compat`; `tests/peers/test_without_compat.py` runs clients."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.records.sample_records import Sample, batch, message_set

SAMPLES = [Sample(n, 1000 + n, b"key", b"value") for n in range(3)]


MISSING = "import sys; sys.modules['compat'] = None"


def without_compat(code: str, hiding: str = MISSING) -> object:
    """The JSON that `code` prints in a process that cannot import `compat`."""
    hidden = f"{hiding}\nimport json\n{code}"
    ran = subprocess.run([sys.executable, "-c", hidden], capture_output=True, text=True, check=True)
    return json.loads(ran.stdout)


def remains_of_compat(folder: Path) -> str:
    """Code that replaces `compat` by folders without modules, as `git rm` leaves them."""
    for name in ("message_sets", "handlers", "fingerprint"):
        (folder / "compat" / name / "__pycache__").mkdir(parents=True)
    return (
        "import sys\n"
        "from importlib.machinery import PathFinder\n"
        "from importlib.util import module_from_spec\n"
        f"remains = PathFinder.find_spec('compat', [{str(folder)!r}])\n"
        "sys.modules['compat'] = module_from_spec(remains)"
    )


@pytest.mark.long
@pytest.mark.parametrize("is_deleted", [False, True], ids=["not installed", "deleted"])
def test_versions_that_need_compat_are_not_served(tmp_path, is_deleted):
    lowest = without_compat(
        "import gateway.app, gateway.cli.main, gateway.handlers\n"
        "from gateway.protocol.routes import supported_versions\n"
        "lowest = {key.name: low for key, (low, _) in supported_versions().items()}\n"
        "print(json.dumps({name: low for name, low in lowest.items() if low}))",
        remains_of_compat(tmp_path) if is_deleted else MISSING,
    )
    assert lowest == {
        "PRODUCE": 3,
        "FETCH": 4,
        "LIST_OFFSETS": 1,
        "METADATA": 1,
        "OFFSET_COMMIT": 2,
        "OFFSET_FETCH": 1,
    }


def test_help_without_compat_has_no_report():
    told = without_compat(
        "from click.testing import CliRunner\n"
        "from gateway.cli.main import main\n"
        "print(json.dumps(CliRunner().invoke(main, ['--help']).output))"
    )
    assert "kopgate users add" in told
    assert "report" not in told


@pytest.mark.parametrize(
    ("stored", "expected"),
    [(batch(SAMPLES), [0, 1, 2]), (message_set(SAMPLES, magic=1), "CorruptRecords")],
    ids=["batch", "message set"],
)
def test_only_batches_are_read(stored, expected):
    assert (
        without_compat(
            "from gateway.partitions.stored_records import read_records\n"
            "try:\n"
            f"    print(json.dumps([one.offset for one in read_records({stored!r})]))\n"
            "except ValueError as error:\n"
            "    print(json.dumps(type(error).__name__))"
        )
        == expected
    )


@pytest.mark.parametrize("magic", [0, 1])
def test_message_set_is_not_cut(magic):
    stored = message_set(SAMPLES, magic=magic)
    assert (
        without_compat(
            "from gateway.partitions.stored_records import cut\n"
            f"print(json.dumps(bytes(cut({stored!r}, 2, 1)).hex()))"
        )
        == stored.hex()
    )
