"""One broker for all tests of a worker.

The gateway on its embedded store or on Apache Pulsar, or with `--reference` Apache Kafka 3.9.2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.legacy_clients.brokers import (
    NO_REBALANCE_DELAY,
    RunningBroker,
    StoreArguments,
    are_required,
    embedded,
    gateway,
    in_pulsar,
    reference,
)
from tests.legacy_clients.clients import Client, table
from tests.legacy_clients.grid import outcomes_by_client, render_grid, render_refusals
from tests.legacy_clients.install import install
from tests.testkit.cache import CannotInstall


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--reference",
        action="store_true",
        help="run the real clients against Apache Kafka 3.9.2 instead of the gateway",
    )
    parser.addoption(
        "--store",
        choices=["embedded", "pulsar"],
        default="embedded",
        help="the gateway's store",
    )
    parser.addoption(
        "--client",
        action="append",
        default=[],
        metavar="NAME",
        help="run only this real client (or legacy-NAME); may be repeated",
    )
    parser.addoption(
        "--every-pair",
        action="store_true",
        help="test all pairs that can share a group, and all codecs with all consumers",
    )
    parser.addoption("--grid", action="store_true", help="print the outcome of each real client")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    wanted = {name.removeprefix("legacy-") for name in config.getoption("--client")}
    if unknown := wanted - set(table()):
        raise pytest.UsageError(f"--client: clients.toml has no {', '.join(sorted(unknown))}")
    if wanted:
        kept = [item for item in items if wanted & names_in(item)]
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = kept


def names_in(item: pytest.Item) -> set[str]:
    """The clients in the id of a test: one, or two as `one+other`."""
    return (
        set(item.callspec.id.split("+"))
        if isinstance(item, pytest.Function) and hasattr(item, "callspec")
        else set()
    )


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if config.getoption("--grid"):
        terminalreporter.section("real clients")
        reports = (
            one
            for kind in terminalreporter.stats.values()
            for one in kind
            if isinstance(one, pytest.TestReport)
        )
        outcomes = outcomes_by_client(reports)
        terminalreporter.write_line(render_grid(table(), outcomes))
        if refusals := render_refusals(table(), outcomes):
            terminalreporter.section("after a wrong password")
            terminalreporter.write_line(refusals)


@pytest.fixture(scope="session")
def is_reference(pytestconfig: pytest.Config) -> bool:
    return bool(pytestconfig.getoption("--reference"))


@pytest.fixture(scope="session")
def store_arguments(request: pytest.FixtureRequest) -> StoreArguments:
    """The store of each gateway."""
    if request.config.getoption("--store", "embedded") == "embedded":
        return embedded
    tenant = request.getfixturevalue("pulsar")
    return lambda _: in_pulsar(tenant)


@pytest.fixture(scope="session")
def broker(
    is_reference: bool, store_arguments: StoreArguments, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningBroker]:
    ours = gateway(
        tmp_path_factory.mktemp("gateway"), arguments=NO_REBALANCE_DELAY, stored=store_arguments
    )
    with _installed_or_skipped(), reference() if is_reference else ours as running:
        yield running


@pytest.fixture(scope="session")
def bootstrap(broker: RunningBroker) -> str:
    """host:port of the plaintext listener."""
    return broker.bootstrap


@pytest.fixture(scope="session")
def client() -> Callable[[str], Client]:
    """Return the client of this name, installed; otherwise skip the test, or fail it in CI."""

    def ready(name: str) -> Client:
        row = table()[name]
        with _installed_or_skipped():
            install(row)
        return row

    return ready


class _installed_or_skipped:
    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        if isinstance(error, CannotInstall):
            (pytest.fail if are_required() else pytest.skip)(str(error))
