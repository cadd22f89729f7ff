"""Going round things that come and go."""

from __future__ import annotations

import pytest

from gateway.net.sweep import Sweep


@pytest.mark.parametrize(
    ("count", "steps", "most"),
    [(0, 1, 0), (1, 1, 1), (9, 9, 1), (10, 10, 1), (11, 6, 2), (95, 10, 10)],
)
def test_each_is_looked_at_once_a_round(count, steps, most):
    sweep = Sweep(set(range(count)), 10)
    for _ in range(3):
        seen = [sweep.step() for _ in range(steps)]
        assert sorted(one for step in seen for one in step) == list(range(count))
        assert max(map(len, seen)) <= most


def test_what_has_gone_is_not_looked_at():
    things = {1, 2, 3, 4}
    sweep = Sweep(things, 2)
    first = sweep.step()
    (kept, gone) = things - set(first)
    things.remove(gone)
    assert sweep.step() == [kept]


def test_what_has_come_is_looked_at_in_the_next_round():
    things = {1, 2}
    sweep = Sweep(things, 1)
    assert sorted(sweep.step()) == [1, 2]
    things.add(3)
    assert sorted(sweep.step()) == [1, 2, 3]


def test_nothing_is_kept_of_those_who_have_all_gone():
    things = {1, 2, 3, 4}
    sweep = Sweep(things, 4)
    sweep.step()
    things.clear()
    assert sweep.step() == []
    things.add(5)
    assert sweep.step() == [5]
