"""Fuzz targets: the loops of a Fetch over stored entries, by both implementations."""

from __future__ import annotations

from collections.abc import Callable
from struct import pack

from gateway.fetch import entry_loops
from records import _pure, kernel
from storage.log import Entry
from tests.fuzz.buffers import exact, parts
from tests.fuzz.records_targets import kernel as compiled_kernel
from tests.records.sample_records import Sample, batch, message_set, wrapper

_SIZES = 3
_MAGICS = (-1, 0, 1, 2, 3, 127)


def entries(payload: bytes) -> None:
    """The first byte selects the options; three 16-bit sizes follow, which divide the rest into the
    payloads of four entries.
    """
    if len(payload) < 1 + 2 * _SIZES:
        return
    choice, content = payload[0], payload[1 + 2 * _SIZES :]
    sizes = [int.from_bytes(payload[at : at + 2], "big") for at in range(1, 1 + 2 * _SIZES, 2)]
    payloads = [exact(part) for part in parts(content, sizes)]
    _tallies(payloads, _MAGICS[choice % len(_MAGICS)])
    if entry_loops.loops is not entry_loops:
        _loops(payloads, choice)


def _tallies(payloads: list[memoryview], magic: int) -> None:
    if compiled_kernel is not None:
        assert _pure.tally(payloads) == compiled_kernel.tally(payloads)
        assert _pure.conversions(payloads, magic) == compiled_kernel.conversions(payloads, magic)


def _loops(payloads: list[memoryview], choice: int) -> None:
    ours, theirs = entry_loops, entry_loops.loops
    with_zstd = bool(choice & 1)
    stored = [Entry(10 * number, 10 * number, 0, one) for number, one in enumerate(payloads)]
    size = sum(map(len, payloads))
    for some, limit in ((stored, size), (stored[:1], size), (stored[1:], 100), ([], 0)):
        asked = some, choice % 16, limit
        expected = ours.whole_batches(*asked, with_zstd=with_zstd)
        assert expected == theirs.whole_batches(*asked, with_zstd=with_zstd)
    assert ours.legacy_lz4(stored, payloads) == theirs.legacy_lz4(stored, payloads)
    for one in payloads:
        for count in range(3):
            expected_answer = ours.are_batches(one, count, with_zstd=with_zstd)
            assert expected_answer == theirs.are_batches(one, count, with_zstd=with_zstd)
    codecs = kernel.PACKED_CODECS if choice & 2 else choice >> 2
    for some_payloads in (payloads, payloads[:1]):
        run = some_payloads, choice % 4, 1 << 62, codecs
        assert ours.run_mark(*run) == theirs.run_mark(*run)


TARGETS: dict[str, Callable[[bytes], None]] = {"entries": entries}


def seeds() -> list[bytes]:
    """Batches in each codec, alone and joined, and older messages."""
    found = [Sample(number, 1000 + number, b"k", b"value" * number) for number in range(3)]
    sets = [batch(found, codec=codec) for codec in range(5)]
    sets += [message_set(found, magic=0), wrapper(found, 3, magic=0), wrapper(found, 1, magic=1)]
    groups = [sets[n : n + 4] for n in range(0, len(sets), 2)]
    groups += [[sets[3] + sets[1] + sets[0], b"", sets[2], b""], [sets[1] * 2, b"", b"", b""]]
    return [
        b"\3" + pack(f">{_SIZES}H", *[len(one) for one in [*group, b"", b""][:_SIZES]])
        + b"".join(group)
        for group in groups
    ]  # fmt: skip
