"""Selection of the inner loops' implementation. If the kernel is not used, a reason is given."""

from __future__ import annotations

import subprocess
import sys

import pytest

TELLS = "from records import KERNEL, KERNEL_REASON; print(KERNEL, KERNEL_REASON)"


def told(before="", **environment):
    done = subprocess.run(
        [sys.executable, "-c", f"{before}\n{TELLS}"],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    return done.stdout.strip()


def test_compiled_kernel_is_used_if_available():
    pytest.importorskip("records._kernel", reason="it is not compiled (pip install -e .)")
    assert told() == "cython"


def test_pure_python_can_be_selected():
    assert told(KOPGATE_PURE_PYTHON="1") == "python KOPGATE_PURE_PYTHON is set"


def test_missing_kernel_falls_back_to_pure_python_with_reason():
    assert told("import sys; sys.modules['records._kernel'] = None").startswith(
        "python the compiled kernel is missing"
    )


def test_kernel_of_other_version_is_not_used():
    left_over = (
        "import sys, types; sys.modules['records._kernel'] = types.ModuleType('records._kernel')"
    )
    assert told(left_over).startswith(
        "python the compiled kernel is from another version: reinstall"
    )
