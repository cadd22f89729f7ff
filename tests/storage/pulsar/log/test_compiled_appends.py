"""Appends have the same effects in compiled code and in Python."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.log import Entry
from storage.pulsar.log.entry_messages import HEADER, Header
from tests.storage.pulsar.log import append_scenarios
from tests.storage.pulsar.log.test_append_queue import begun

SCENARIOS = 150

naturals = st.integers(0, (1 << 63) - 1)
or_none = st.integers(-1, (1 << 63) - 1)


def test_compiled_appends_have_the_effects_of_those_in_python(compiled: Any) -> None:
    program = [sys.executable, "-m", append_scenarios.__name__, str(SCENARIOS)]
    environment = os.environ | {"KOPGATE_PURE_PYTHON": "1"}
    in_python = subprocess.run(
        program, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True
    ).stdout.decode()
    expected = in_python.splitlines()
    for number in range(SCENARIOS):
        for step, state in enumerate(append_scenarios.states(number)):
            assert state == expected[number * append_scenarios.STEPS + step], (number, step)


@given(
    header=st.builds(
        Header, naturals, or_none, or_none, naturals, or_none, or_none, naturals, naturals
    )
)
def test_compiled_header_has_the_text_of_the_reference(header: Header) -> None:
    from storage.pulsar.client import bulk_client

    if bulk_client.compiled is None:
        pytest.skip("the compiled module is not built")
    assert bulk_client.compiled.header_text(header) == header.properties("kafka")[HEADER]


def bytecodes(call: Callable[[], object]) -> int:
    """Bytecodes of Python that `call` runs."""
    count = 0

    def trace(frame: Any, event: str, _: object) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(None)
    return count


def test_append_of_the_common_case_runs_no_python_before_it_is_sent(compiled: Any) -> None:
    scene = begun()
    sent: list[Any] = []
    scene.appending._producer.send = sent.append
    entry = Entry(11, 11, 5, b"x")
    append = scene.appending.append
    assert bytecodes(lambda: append((entry,))) <= 10
    assert sent[0].header.base_offset == 11
