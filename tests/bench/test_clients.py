"""The output of clients, and clients that fail or hang."""

from __future__ import annotations

import json
import sys
import zlib
from pathlib import Path

import pytest

from bench import clients
from bench.clients import ClientFailed, rate_of, run, write_events

# Output of Kafka 3.9.2.
WINDOW = (
    "49000 records sent, 9783.4 records/sec (9.55 MB/sec), 12.3 ms avg latency, 345.0 ms max "
    "latency.\n"
)
SUMMARY = (
    "50000 records sent, 9900.990099 records/sec (9.67 MB/sec), 11.90 ms avg latency, 345.00 ms "
    "max latency, "
    "4 ms 50th, 60 ms 95th, 210 ms 99th, 340 ms 99.9th.\n"
)


def test_rate_is_taken_from_last_summary() -> None:
    assert rate_of(WINDOW + SUMMARY, 50_000) == 9.67


@pytest.mark.parametrize("printed", ["", WINDOW, SUMMARY.replace("50000", "0")])
def test_missing_records_fail_the_run(printed: str) -> None:
    with pytest.raises(ClientFailed):
        rate_of(printed, 50_000)


def test_lines_are_reported_as_they_arrive() -> None:
    lines: list[str] = []
    assert (
        run([sys.executable, "-c", "print('mark'); print('1 2')"], 1, lines.append) == "mark\n1 2\n"
    )
    assert lines == ["mark\n", "1 2\n"]


def test_events_are_different_lines_of_one_record_size(tmp_path: Path) -> None:
    events = tmp_path / "events"
    write_events(events)
    lines = events.read_text().splitlines()
    assert len(set(lines)) == clients.EVENTS
    assert {len(line) for line in lines} == {clients.RECORD_BYTES}
    assert all(json.loads(line)["items"] for line in lines[:100])
    # As compressible as events usually are.
    assert 4 < sum(map(len, lines[:40])) / len(zlib.compress("".join(lines[:40]).encode())) < 8


def test_failed_client_error_contains_output() -> None:
    with pytest.raises(ClientFailed, match=r"exited with 3(?s:.*)no such topic"):
        run(
            [
                sys.executable,
                "-c",
                "import sys; print('no such topic', file=sys.stderr); sys.exit(3)",
            ],
            1,
        )


def test_hung_client_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "START_SECONDS", 0.1)
    with pytest.raises(ClientFailed, match="exited with -9"):
        run([sys.executable, "-c", "import time; time.sleep(60)"], 1)
