"""Settings of all tests.

Properties have no deadline per example, because a busy machine would exceed it; pytest-timeout
stops hanging tests.
"""

from __future__ import annotations

import gc
import re
from functools import cache

import pytest
from hypothesis import HealthCheck, settings

#: The list of real peers, the fixture `pulsar`, the second run of failed tests with real peers, and
#: the distribution of files among workers.
pytest_plugins = ["tests.used_peers", "tests.testkit.pulsar", "tests.reruns", "tests.distribution"]

# In CI Hypothesis makes examples deterministic, so that failures are reproducible. Elsewhere each
# run has different examples.
settings.register_profile("kopgate", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# Of Hypothesis's 100 examples `make check` runs a tenth, `.ci/run` a quarter, `make test` all, and
# `make slow` ten times as many. Properties with numbers of their own follow (`tests/examples.py`).
for name, examples in {"quick": 10, "quarter": 25, "long": 1000}.items():
    settings.register_profile(name, settings.get_profile("kopgate"), max_examples=examples)
settings.load_profile("kopgate")


#: The marks of a module, which all of its tests have.
PYTESTMARK = re.compile(r"^pytestmark = (\[[^\]]*\]|.*)$", re.MULTILINE)
MARK = re.compile(r"\bpytest\.mark\.(\w+)")
#: Marks that only the text of a test's module gives it.
OF_TEXT = frozenset({"slow", "spark"})


def pytest_ignore_collect(collection_path, config):
    """Do not import a module in which `-m "A and not B"` selects no test.

    This is read from its text: it has no `pytest.mark.A` (`slow` and `spark` only), or its
    `pytestmark` has B.
    A module that is named on the command line is always imported.
    """
    terms = config.option.markexpr.split(" and ")
    if collection_path.suffix != ".py" or not all(
        re.fullmatch(r"(not )?\w+", one) for one in terms
    ):
        return None
    required = OF_TEXT.intersection(terms)
    excluded = {term.removeprefix("not ") for term in terms if " " in term}
    found = PYTESTMARK.search(collection_path.read_text("utf-8"))
    of_module = set(MARK.findall(found[1])) if found else set()
    return True if of_module & excluded or required - marks_in(collection_path) else None


@cache
def marks_in(path):
    return frozenset(MARK.findall(path.read_text("utf-8")))


def pytest_itemcollected(item):
    """Refuse a mark that `pytest_ignore_collect` cannot see: `-m A` would leave out the test."""
    unseen = {mark.name for mark in item.iter_markers()} & OF_TEXT - marks_in(item.path)
    if unseen:
        raise pytest.UsageError(
            f"{item.nodeid} has a mark from another module; write pytest.mark."
            f"{' and pytest.mark.'.join(unseen)} in {item.path.name}"
        )


@pytest.hookimpl(trylast=True)
def pytest_collection_finish():
    """Exempt all collected tests from garbage collection; with them a full one takes 0.3 s."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """Restore a property's inner test after each call.

    pytest-twisted wraps the inner test again for each parameter, including the wrapped one, and
    then refuses to run it.
    """
    handle = getattr(pyfuncitem.obj, "hypothesis", None)
    inner = handle.inner_test if handle else None
    try:
        return (yield)
    finally:
        if handle:
            handle.inner_test = inner
