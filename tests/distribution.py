"""How test files are distributed among the workers of `--dist loadfile --no-loadscope-reorder`.

The longest files start first. Files that share servers, which each of their workers would start,
run in one worker.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

#: The files that take longest with real peers, the longest first (`--junitxml` has the times).
#: Those at the beginning run in one worker (`TOGETHER`), in this order: the last one leaves its
#: broker killed.
LONGEST = (
    "tests/peers/chaos/test_pulsar_chaos.py",
    "tests/peers/on_pulsar/test_traffic_log_on_pulsar.py",
    "tests/peers/cluster/test_cut_off_gateway.py",
    "tests/storage/pulsar/log/test_partition_reader_outages.py",
    "tests/storage/pulsar/tables/test_table_outages.py",
    "tests/storage/pulsar/native/test_native_restarts.py",
    "tests/peers/on_pulsar/test_pulsar_outages.py",
    "tests/storage/lmdb/simulation/test_power_cuts.py",
    "tests/legacy_clients/runs/test_interop.py",
    "tests/peers/cluster/test_cluster_failures.py",
    "tests/peers/security/test_kerberos_clients.py",
    "tests/peers/on_pulsar/test_pulsar_errors.py",
    "tests/peers/on_pulsar/test_compaction_on_pulsar.py",
    "tests/storage/pulsar/test_store.py",
    "tests/legacy_clients/runs/test_sasl.py",
    "tests/legacy_clients/runs/test_client_certificates.py",
    "tests/legacy_clients/runs/test_pairs.py",
    "tests/peers/groups/test_groups.py",
    "tests/peers/tools/test_kafka_tools.py",
    "tests/peers/groups/test_committed_offsets.py",
    "tests/peers/on_pulsar/test_pulsar_starts.py",
    "tests/contract/test_trim.py",
    "tests/peers/tools/test_kafka_groups_tool.py",
    "tests/storage/pulsar/native/test_native_log.py",
    "tests/peers/faults/test_failing_disk.py",
    "tests/peers/on_pulsar/test_pulsar_fencing.py",
    "tests/peers/tools/test_kafka_groups_tool_and_the_consumer_protocol.py",
    "tests/peers/faults/test_hostile_peers.py",
    "tests/gateway/test_server.py",
    "tests/peers/groups/test_consumer_protocol_clients.py",
    "tests/storage/pulsar/compaction/test_space_reclaim.py",
    "tests/peers/groups/test_consumer_protocol_alike.py",
    "tests/contract/test_read.py",
    "tests/contract/test_append.py",
    "tests/peers/on_pulsar/test_mirrored_cursors.py",
    "tests/storage/pulsar/compaction/test_space_reclaim_model.py",
    "tests/reports/test_cluster.py",
    "tests/reports/test_real_clients.py",
    "tests/reports/traffic/test_skew.py",
    "tests/reports/test_exit_codes.py",
)

TOGETHER = {
    # The broker of `restartable_pulsar`.
    "Pulsar that is killed and paused": LONGEST[:7],
    # `compared_brokers` of `tests/peers/conftest.py`.
    "Kafka 3.9.2 beside a gateway": (
        "tests/peers/tools/test_kafka_tools.py",
        "tests/peers/tools/test_kafka_groups_tool.py",
        "tests/peers/groups/test_committed_offsets_alike.py",
        "tests/peers/groups/test_groups_alike.py",
        "tests/peers/test_records_alike.py",
    ),
    # `authorizing_gateway` and `authorizing_kafka` of `tests/peers/tools/conftest.py`.
    "servers with users and ACLs": (
        "tests/peers/tools/test_acls_command.py",
        "tests/peers/tools/test_credential_tools.py",
        "tests/peers/tools/test_topics_command.py",
    ),
    # `modern_kafka` of the same module.
    "Kafka 4": (
        "tests/peers/tools/test_kafka_groups_tool_and_the_consumer_protocol.py",
        "tests/peers/tools/test_groups_command_and_the_consumer_protocol.py",
        "tests/peers/tools/test_cluster_command.py",
    ),
}
"""Files that run in one worker, by what they share."""

_UNIT_OF = {file: unit for unit, files in TOGETHER.items() for file in files}


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `--dist loadfile`: as xdist does, but a unit of TOGETHER is like one file."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class FilesTogether(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return _UNIT_OF.get(file, file)

    return FilesTogether(config, log)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    """Sort the longest files first, then others with real peers, then by the number of tests.

    With `--dist loadfile --no-loadscope-reorder` files are distributed in this order. Short files
    last keep all workers busy until the end.
    """
    tests = Counter(item.path for item in items)
    found = {path: number for number, path in enumerate(tests)}
    with_peers = {item.path for item in items if item.get_closest_marker("peer")}

    def place(item):
        name = item.nodeid.partition("::")[0]
        return (
            LONGEST.index(name) if name in LONGEST else len(LONGEST),
            item.path not in with_peers,
            -tests[item.path],
            found[item.path],
        )

    items.sort(key=place)
