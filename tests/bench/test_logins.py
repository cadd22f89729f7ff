"""The load of log-ins against a gateway and the memory of idle connections, and the tables of their
results.
"""

from __future__ import annotations

import random

import pytest

from bench.logins.__main__ import KINDS, LoginLoad, LoginRate, guess_table, rate_table
from bench.logins.guesses import GuessTimes, measure_guesses, probability_of_longer
from bench.logins.idle import IdleMemory, measure, table
from bench.logins.login_servers import login_servers
from bench.logins.sasl_client import TOKENS


def test_each_mechanism_has_a_client() -> None:
    assert {kind.mechanism for kind in KINDS} == {None, *TOKENS}


@pytest.mark.peer
def test_each_kind_logs_in_and_guesses_fail() -> None:
    with login_servers(has_kafka=False) as ((server,), credentials):
        load = LoginLoad(4, 2, credentials)
        rates = [load.run(server, kind) for kind in KINDS if load.includes(server, kind)]
        guesses = measure_guesses(server, "SCRAM-SHA-256", 3, random.Random(1))
    assert all(rate.rate > 0 and rate.cpu_ms >= 0 for rate in rates)
    assert [len(step) for step in guesses.wrong_user] == [3, 3]
    assert [len(step) for step in guesses.wrong_password] == [3, 3]


def test_probability_counts_pairs() -> None:
    # Of 6 pairs, (2, 1), (3, 1) and (3, 2) are larger and (1, 1) and (2, 2) are equal.
    assert probability_of_longer([1.0, 2.0, 3.0], [1.0, 2.0]) == pytest.approx(4 / 6)
    assert probability_of_longer([1.0], [1.0]) == 0.5


def test_table_of_rates_has_medians_and_ranges() -> None:
    rates = [
        LoginRate("PLAIN", server, rate, cpu)
        for server, rate, cpu in (
            ("kopgate", 10, 1.0),
            ("kopgate", 30, 3.0),
            ("kopgate", 20, 2.5),
            ("Kafka", 5, 4.0),
        )
    ]
    assert rate_table(rates).splitlines() == [
        "| log-in | kopgate CPU ms | Kafka CPU ms | kopgate log-ins/s | Kafka log-ins/s |",
        "| --- | --- | --- | --- | --- |",
        "| PLAIN | 2.50 (1.00-3.00) | 4.00 (4.00-4.00) | 20 (10-30) | 5 (5-5) |",
    ]


def test_table_of_guesses_has_percentiles_and_the_effect() -> None:
    slow, quick = [0.002] * 10, [0.001] * 10
    made = guess_table([GuessTimes("PLAIN", [slow], [quick])])
    # The standard deviation of the probability is (21 / 1200) ** 0.5 = 0.132.
    assert made.splitlines()[2] == (
        "| PLAIN | 1 | 2.00 / 2.00 | 1.00 / 1.00 | 1.000 (0.5 +- 0.259) |"
    )


@pytest.mark.peer
@pytest.mark.parametrize("has_tls", [False, True])
def test_clients_connect_and_are_served(has_tls: bool) -> None:
    found = measure("some", 20, has_tls=has_tls, has_traffic_log=not has_tls, settle_seconds=0)
    assert found.connections == 20


def test_memory_is_shown_in_kib() -> None:
    assert table([IdleMemory("TLS", 2_000, 1024.0, 2560.0)]).splitlines() == [
        "| connections | number | KiB each, connected | KiB each, after the requests |",
        "| --- | --- | --- | --- |",
        "| TLS | 2,000 | 1.0 | 2.5 |",
    ]
