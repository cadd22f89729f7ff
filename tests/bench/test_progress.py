from __future__ import annotations

from twisted.internet.task import Clock

from bench.progress import StepProgress


def test_first_estimate_is_the_sum_of_guesses() -> None:
    assert (
        StepProgress([100, 200], Clock().seconds).next("produce")
        == "[1/2] produce; about 5 min left"
    )


def test_remaining_time_follows_the_speed_of_previous_steps() -> None:
    clock = Clock()
    progress = StepProgress([10, 20, 30], clock.seconds)
    progress.next("one")
    clock.advance(60)
    # The first step took six times its guess, so the remaining 50 s take 300 s.
    assert progress.next("two") == "[2/3] two; about 5 min left"
    clock.advance(120)
    assert progress.next("three") == "[3/3] three; about 3 min left"


def test_remaining_time_is_at_least_one_minute() -> None:
    assert StepProgress([3], Clock().seconds).next("one") == "[1/1] one; about 1 min left"
