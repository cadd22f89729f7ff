"""One secured broker for all log-in tests of a worker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.legacy_clients.brokers import StoreArguments
from tests.legacy_clients.logins.secured_brokers import SecuredBroker, secured_broker


@pytest.fixture(scope="session")
def secured(
    is_reference: bool, store_arguments: StoreArguments, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SecuredBroker]:
    folder = tmp_path_factory.mktemp("secured")
    with secured_broker(folder, store_arguments, is_reference=is_reference) as running:
        yield running
