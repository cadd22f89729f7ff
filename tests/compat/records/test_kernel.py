"""Which implementation of the inner loops is taken, and what is said where it is not the fast one."""

from __future__ import annotations

import subprocess
import sys

import pytest

TELLS = "from compat.records import KERNEL, KERNEL_REASON; print(KERNEL, KERNEL_REASON)"


def told(before="", **environment):
    done = subprocess.run(
        [sys.executable, "-c", f"{before}\n{TELLS}"],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    return done.stdout.strip()


def test_the_compiled_ones_are_taken_where_they_are():
    pytest.importorskip("compat.records._kernel", reason="it is not compiled (pip install -e .)")
    assert told() == "cython"


def test_the_plain_ones_can_be_asked_for():
    assert told(KOPGATE_PURE_PYTHON="1") == "python KOPGATE_PURE_PYTHON is set"


def test_without_a_kernel_the_plain_ones_are_taken_and_the_reason_is_told():
    assert told("import sys; sys.modules['compat.records._kernel'] = None").startswith(
        "python the compiled kernel is missing"
    )


def test_a_kernel_left_over_from_another_version_is_not_taken():
    left_over = "import sys, types; sys.modules['compat.records._kernel'] = types.ModuleType('compat.records._kernel')"
    assert told(left_over).startswith(
        "python the compiled kernel is not of this version: install again"
    )
