"""What the clients print, and what becomes of those that fail or hang."""

from __future__ import annotations

import sys

import pytest

from bench import clients
from bench.clients import ClientFailed, rate_of, run

# As Kafka 3.9.2 prints it.
WINDOW = "49000 records sent, 9783.4 records/sec (9.55 MB/sec), 12.3 ms avg latency, 345.0 ms max latency.\n"
SUMMARY = (
    "50000 records sent, 9900.990099 records/sec (9.67 MB/sec), 11.90 ms avg latency, 345.00 ms max latency, "
    "4 ms 50th, 60 ms 95th, 210 ms 99th, 340 ms 99.9th.\n"
)


def test_the_rate_is_that_of_the_whole_run() -> None:
    assert rate_of(WINDOW + SUMMARY, 50_000) == 9.67


@pytest.mark.parametrize("printed", ["", WINDOW, SUMMARY.replace("50000", "0")])
def test_a_run_that_sent_less_is_a_failure(printed: str) -> None:
    with pytest.raises(ClientFailed):
        rate_of(printed, 50_000)


def test_each_line_is_told_when_it_comes() -> None:
    lines: list[str] = []
    assert (
        run([sys.executable, "-c", "print('mark'); print('1 2')"], 1, lines.append) == "mark\n1 2\n"
    )
    assert lines == ["mark\n", "1 2\n"]


def test_a_client_that_fails_says_why() -> None:
    with pytest.raises(ClientFailed, match=r"ended with 3(?s:.*)no such topic"):
        run(
            [
                sys.executable,
                "-c",
                "import sys; print('no such topic', file=sys.stderr); sys.exit(3)",
            ],
            1,
        )


def test_a_client_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "START_SECONDS", 0.1)
    with pytest.raises(ClientFailed, match="ended with -9"):
        run([sys.executable, "-c", "import time; time.sleep(60)"], 1)
