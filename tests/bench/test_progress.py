from __future__ import annotations

from twisted.internet.task import Clock

from bench.progress import StepProgress


def test_at_first_the_guesses_say_how_long_it_takes() -> None:
    assert (
        StepProgress([100, 200], Clock().seconds).next("produce")
        == "[1/2] produce; some 5 min left"
    )


def test_what_is_left_is_told_by_how_long_the_steps_before_took() -> None:
    clock = Clock()
    progress = StepProgress([10, 20, 30], clock.seconds)
    progress.next("one")
    clock.advance(60)
    # Six times what was guessed: so will be the 50 that are left.
    assert progress.next("two") == "[2/3] two; some 5 min left"
    clock.advance(120)
    assert progress.next("three") == "[3/3] three; some 3 min left"


def test_the_last_minute_is_a_minute() -> None:
    assert StepProgress([3], Clock().seconds).next("one") == "[1/1] one; some 1 min left"
