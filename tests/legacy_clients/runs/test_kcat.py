"""`kcat -L` on a topic."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable

import pytest

from tests.legacy_clients.cases import create_topics
from tests.legacy_clients.clients import Client
from tests.legacy_clients.install import install

pytestmark = [pytest.mark.peer]


def test_kcat_lists_the_broker_the_topic_and_its_partitions(
    bootstrap: str, client: Callable[[str], Client]
) -> None:
    create_topics(bootstrap, ["listed"], 3)
    kcat = install(client("kcat-1.7.1"))[-1]
    done = subprocess.run(
        [kcat, "-b", bootstrap, "-L", "-m", "120", "-J", "-t", "listed"],
        capture_output=True,
        text=True,
        timeout=180,
        check=True,
    )
    seen = json.loads(done.stdout)
    assert [broker["name"] for broker in seen["brokers"]] == [bootstrap]
    partitions = {row["partition"]: len(row["replicas"]) for row in seen["topics"][0]["partitions"]}
    assert partitions == {0: 1, 1: 1, 2: 1}
