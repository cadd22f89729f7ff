"""Times of refused log-ins: of users that do not exist, and of users with another password.

If they differed, clients could find out which users exist.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from bench.logins.login_servers import SCRAM_USERS, LoginServer, user_name
from bench.logins.sasl_client import LoginConnection, LoginFailed

#: Guesses of each kind before those that are measured.
WARM_UP = 20


@dataclass(frozen=True)
class GuessTimes:
    """Seconds until the reply to each token: step by step, the times of all attempts."""

    mechanism: str
    wrong_user: list[list[float]]
    wrong_password: list[list[float]]

    def probability(self, step: int) -> float:
        """Probability that a wrong user takes longer than a wrong password; 0.5 if they are alike.

        This is the Mann-Whitney statistic, divided by the number of pairs.
        """
        return probability_of_longer(self.wrong_user[step], self.wrong_password[step])

    @property
    def margin(self) -> float:
        """Half of the interval that has 95 % of the probabilities of equal distributions."""
        a, b = len(self.wrong_user[0]), len(self.wrong_password[0])
        return 1.96 * ((a + b + 1) / (12 * a * b)) ** 0.5


def probability_of_longer(left: Sequence[float], right: Sequence[float]) -> float:
    """Probability that a value of `left` is larger than one of `right`; ties count half."""
    wins = sum((one > other) + (one == other) / 2 for one in left for other in right)
    return wins / (len(left) * len(right))


def measure_guesses(
    server: LoginServer, mechanism: str, count: int, chance: random.Random
) -> GuessTimes:
    """Guess `count` times each, in random order, with one connection at a time."""
    kinds = [True, False] * count
    chance.shuffle(kinds)
    times: dict[bool, list[list[float]]] = {True: [], False: []}
    for number, is_wrong_user in enumerate([True, False] * WARM_UP + kinds):
        # Names of the same length.
        known = user_name(chance.randrange(SCRAM_USERS))
        user = f"n{chance.randrange(10_000_000):07}" if is_wrong_user else known
        seconds = _guess(server, mechanism, user, f"guess-{chance.random()}")
        if number >= 2 * WARM_UP:
            times[is_wrong_user].append(seconds)
    return GuessTimes(
        mechanism,
        *([list(step) for step in zip(*times[key], strict=True)] for key in (True, False)),
    )


def _guess(server: LoginServer, mechanism: str, user: str, password: str) -> list[float]:
    with LoginConnection(server.addresses["SASL_PLAINTEXT"]) as connection:
        try:
            connection.log_in(mechanism, user, password)
        except LoginFailed as refusal:
            seconds = refusal.args[0]
            if isinstance(seconds, list):
                return seconds
            raise
    raise RuntimeError(f"{server.name} accepted a guess")
