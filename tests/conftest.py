"""For all tests: properties have no deadline for an example, since a busy machine would fail them; pytest-timeout ends what hangs."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import HealthCheck, settings

#: The fixture `pulsar`, and the second run of failed tests with real peers.
pytest_plugins = ["tests.peers.pulsar", "tests.reruns"]

#: Files whose few tests take longest, by their names: five to seven minutes each.
LONGEST = ("test_pulsar_chaos.py", "test_pulsar_outages.py", "test_pulsar_silences.py")

# In CI (Hypothesis looks for it) this inherits that examples are the same each time: what fails there fails again. Elsewhere each run has others.
settings.register_profile("kopgate", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# `make check` looks at a quarter of the examples, so that it stays a matter of two minutes; `make test` looks at all of them.
settings.register_profile("quick", settings.get_profile("kopgate"), max_examples=25)
settings.load_profile("kopgate")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    """The longest files first, then those with the most tests: with `--dist loadfile --no-loadscope-reorder` files are handed out in this order, and
    the last ones should be short, or one worker has a long one while the others have nothing left."""
    tests = Counter(item.path for item in items)
    found = {path: number for number, path in enumerate(tests)}

    def place(item):
        name = item.path.name
        return (
            LONGEST.index(name) if name in LONGEST else len(LONGEST),
            -tests[item.path],
            found[item.path],
        )

    items.sort(key=place)


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
