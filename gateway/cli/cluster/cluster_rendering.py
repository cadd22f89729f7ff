"""Formats the description of a cluster as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gateway.cli.cluster.cluster_description import ClusterDescription, MetadataLogDescription
from gateway.cli.output import count_of, format_table, printable


def as_json(cluster: ClusterDescription, log: MetadataLogDescription | None) -> dict[str, Any]:
    return {
        "cluster": cluster.cluster_id,
        "controller": cluster.controller,
        "nodes": [
            {
                "node": node.node_id,
                "host": node.host,
                "port": node.port,
                "rack": node.rack,
                "partitions": node.partitions,
                "shards": None if cluster.shards is None else node.shards,
            }
            for node in cluster.nodes
        ],
        "partitions_without_leader": cluster.partitions_without_leader,
        "shards": None
        if cluster.shards is None
        else [
            {"shard": one.shard, "leader": one.leader, "epoch": one.epoch} for one in cluster.shards
        ],
        "metadata_log": None
        if log is None
        else {
            "leader": log.leader,
            "epoch": log.epoch,
            "end": log.end,
            "replicas": [
                {
                    "node": one.node_id,
                    "role": one.role,
                    "end": one.end,
                    "lag": one.lag,
                    "caught_up_ms_ago": one.caught_up_ms_ago,
                }
                for one in log.replicas
            ],
        },
    }


def as_text(cluster: ClusterDescription, log: MetadataLogDescription | None) -> str:
    return "\n".join(line for part in _parts(cluster, log) for line in part)


def _parts(cluster: ClusterDescription, log: MetadataLogDescription | None) -> Iterator[list[str]]:
    controller = "unknown" if cluster.controller is None else cluster.controller
    about = [count_of(len(cluster.nodes), "node"), f"controller {controller}"]
    if cluster.partitions_without_leader:
        about.append(f"{count_of(cluster.partitions_without_leader, 'partition')} without leader")
    yield [printable(f"cluster {cluster.cluster_id or 'without id'}: {', '.join(about)}")]
    head = ["NODE", "HOST", "PORT", "RACK", "PARTITIONS"]
    rows = [
        [node.node_id, node.host, node.port, node.rack, node.partitions] for node in cluster.nodes
    ]
    if cluster.shards is not None:
        head.append("SHARDS")
        rows = [[*row, node.shards] for row, node in zip(rows, cluster.nodes, strict=True)]
    yield _indented(head, rows)
    yield from _log_parts(log)
    if cluster.shards is not None:
        yield ["", count_of(len(cluster.shards), "shard")]
        yield _indented(
            ["SHARD", "LEADER", "EPOCH"],
            [[one.shard, one.leader, one.epoch] for one in cluster.shards],
        )


def _log_parts(log: MetadataLogDescription | None) -> Iterator[list[str]]:
    if log is None:
        return
    leader = "no leader" if log.leader is None else f"leader {log.leader}"
    yield ["", f"metadata log: {leader}, epoch {log.epoch}, end offset {log.end}"]
    yield _indented(
        ["NODE", "ROLE", "END", "LAG", "CAUGHT UP"],
        [
            [
                one.node_id,
                one.role,
                one.end,
                one.lag,
                None if one.caught_up_ms_ago is None else f"{one.caught_up_ms_ago} ms ago",
            ]
            for one in log.replicas
        ],
    )


def _indented(head: list[str], rows: list[list[Any]]) -> list[str]:
    return [f"  {line}" for line in format_table(head, rows)]
