"""Kill a writing process and compare the acknowledgements with the stored data."""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import islice

from storage.log import Store
from tests.storage.entries import everything


@dataclass(slots=True)
class AcknowledgedWrites:
    """What the killed process had acknowledged: appends by partition, rows of the table."""

    appends: dict[int, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    rows: list[int] = field(default_factory=list)


def write_and_kill(spec: str, after: int, acknowledged: AcknowledgedWrites) -> None:
    """Start the writer on `spec`, kill it after `after` acknowledgements, and add them to
    `acknowledged`.
    """
    command = [sys.executable, "-m", "tests.contract.crash_writer", spec]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        assert process.stderr
        lines = list(islice(process.stdout, after))
        process.kill()
        lines += list(process.stdout)
        errors = process.stderr.read()
    assert len(lines) >= after, errors
    for line in lines:
        if not line.endswith("\n"):
            continue
        match line.split():
            case ["log", partition, base, end]:
                acknowledged.appends[int(partition)].append((int(base), int(end)))
            case ["row", row]:
                acknowledged.rows.append(int(row))


async def check_nothing_is_lost(store: Store, acknowledged: AcknowledgedWrites) -> None:
    """Every acknowledged append and row is in `store`, appends are whole, offsets have no gaps."""
    for partition, appends in acknowledged.appends.items():
        log = await store.log("orders", partition)
        entries = await everything(log)
        assert [one.base_offset for one in entries] == [
            0,
            *(one.last_offset + 1 for one in entries[:-1]),
        ]
        assert entries[-1].last_offset + 1 == log.end_offset == log.next_offset
        assert log.size == sum(len(one.payload) for one in entries)
        assert all(bytes(one.payload[:12]) == b"%012d" % one.base_offset for one in entries)
        bases = {one.base_offset for one in entries}
        assert {base for base, _ in appends} <= bases
        assert all(base + 1 in bases for base in bases if base % 4 == 0), "half an append is there"
        assert max(end for _, end in appends) <= log.end_offset
    rows = dict(await (await store.table("rows")).items())
    last = int(rows.pop(b"last", b"-1"))
    expected = [b"%012d%s" % (row, half) for row in range(last + 1) for half in (b"a", b"b")]
    assert sorted(rows) == expected, "a put is missing, half there, or newer than the last one"
    assert last >= max(acknowledged.rows, default=-1), "an acknowledged put is lost"
