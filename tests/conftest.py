"""For all tests: properties have no deadline for an example, since a busy machine would fail them; pytest-timeout ends what hangs."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("kopgate", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# `make check` looks at a quarter of the examples, so that it stays a matter of two minutes; `make test` looks at all of them.
settings.register_profile("quick", settings.get_profile("kopgate"), max_examples=25)
settings.load_profile("kopgate")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """pytest-twisted wraps a property's inner test anew for each parameter, the wrapped one too, and then refuses to run it: unwrap in between."""
    handle = getattr(pyfuncitem.obj, "hypothesis", None)
    inner = handle.inner_test if handle else None
    try:
        return (yield)
    finally:
        if handle:
            handle.inner_test = inner
