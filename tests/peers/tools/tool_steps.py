"""Runs Kafka's tools for all tests of a module at the same time, step by step.

A JVM starts more slowly than most tools run. So a test decorated with `in_steps` is a generator: it
yields the commands of a step, and receives their outputs, the gateway's first. The commands of a
step of all tests run one after the other in one process per broker. Kafka applies some changes
asynchronously: those of a step are visible in the next one, whose process takes longer to start.

The module has a fixture `ends`, which calls `play_selected`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

import pytest

from tests.peers.comparison import Command, CommandOutput, ComparedBrokers

Outputs = tuple[list[CommandOutput], list[CommandOutput]]
Steps = Generator[Sequence[Command], Outputs, None]
Ends = Mapping[str, BaseException | None]
"""How each test ended, by the name of its function."""


def in_steps(steps: Callable[..., Steps]) -> Callable[[Ends], None]:
    """The test for these steps. Their arguments are those of `play_selected`."""

    def test(ends: Ends) -> None:
        failure = ends[steps.__name__]
        if failure is not None:
            raise failure

    test.__name__, test.__doc__, test.__module__ = steps.__name__, steps.__doc__, steps.__module__
    test.steps = steps
    return test


def play_selected(
    request: pytest.FixtureRequest, sides: ComparedBrokers, version: str, *arguments: Any
) -> Ends:
    """Play the steps of the module's selected tests with tools of this version."""
    functions = {
        item.function.__name__: item.function.steps
        for item in request.session.items
        if isinstance(item, pytest.Function)
        and item.module is request.module
        and hasattr(item.function, "steps")
    }
    ends: dict[str, BaseException | None] = {}
    waiting: dict[str, tuple[Steps, Sequence[Command]]] = {}

    def advance(name: str, test: Steps, outputs: Outputs | None) -> None:
        try:
            waiting[name] = test, test.send(outputs)
        except StopIteration:
            ends[name] = None
        except (Exception, pytest.fail.Exception, pytest.skip.Exception) as failure:
            ends[name] = failure

    for name, steps in functions.items():
        advance(name, steps(sides, *arguments), None)
    while waiting:
        commands = [command for _, wanted in waiting.values() for command in wanted]
        ours, theirs = sides.tools(*commands, version=version) if commands else ([], [])
        at, current, waiting = 0, waiting, {}
        for name, (test, wanted) in current.items():
            part = slice(at, at + len(wanted))
            at += len(wanted)
            advance(name, test, (ours[part], theirs[part]))
    return ends
