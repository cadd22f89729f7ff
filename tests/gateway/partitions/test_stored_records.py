"""The gateway without the package `compat`; `tests/peers/test_without_compat.py` runs clients."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.records.building import Sample, batch, message_set

SAMPLES = [Sample(n, 1000 + n, b"key", b"value") for n in range(3)]


def without_compat(code: str) -> object:
    """The JSON that `code` prints in a process that cannot import `compat`."""
    hidden = f"import sys; sys.modules['compat'] = None\nimport json\n{code}"
    ran = subprocess.run([sys.executable, "-c", hidden], capture_output=True, text=True, check=True)
    return json.loads(ran.stdout)


def test_versions_that_need_compat_are_not_served():
    lowest = without_compat(
        "import gateway.app, gateway.cli.main, gateway.handlers\n"
        "from gateway.protocol.routes import supported_versions\n"
        "lowest = {key.name: low for key, (low, _) in supported_versions().items()}\n"
        "print(json.dumps({name: low for name, low in lowest.items() if low}))"
    )
    assert lowest == {
        "PRODUCE": 3,
        "FETCH": 4,
        "LIST_OFFSETS": 1,
        "METADATA": 1,
        "OFFSET_COMMIT": 2,
        "OFFSET_FETCH": 1,
    }


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
