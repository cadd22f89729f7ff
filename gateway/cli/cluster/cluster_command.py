"""`kopgate cluster`: any Kafka cluster, through the Kafka protocol."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click
from kafka import errors

from gateway.cli.cluster import cluster_rendering as rendering
from gateway.cli.cluster.cluster_description import describe_metadata_log, describe_nodes
from gateway.cli.connect import error_text, with_client
from gateway.cli.kafka_client import AdminClient, retry
from gateway.cli.output import error_reason, exit_if_errors, print_json


@click.group()
def cluster() -> None:
    """Describe a cluster: its nodes, controller, shards and metadata log.

    Works with gateways and any other Kafka cluster.

    Exit codes: 0 success, 1 failed, at least for a part, 2 usage error.
    """


@cluster.command()
@with_client
def describe(client: AdminClient, as_json: bool) -> None:
    """Describe the cluster.

    PARTITIONS and SHARDS are the numbers that a node leads. LAG is the number of offsets of the
    metadata log that a node has not replayed yet. CAUGHT UP is when it last had replayed them all,
    by the clock of the log's leader. A dash means that the value is not known, or under LEADER that
    no node leads the shard.

    Gateways with an embedded store and Kafka clusters have no shards. Gateways with an embedded
    store and Kafka clusters with ZooKeeper have no metadata log.
    """
    found = retry(client, lambda: describe_nodes(client))
    log, reasons = None, []
    try:
        log = retry(client, lambda: describe_metadata_log(client))
    except errors.UnsupportedVersionError:
        # A single gateway lists __consumer_offsets with as many partitions as Kafka.
        found = replace(found, shards=None)
    except errors.BrokerResponseError as error:
        code: Any = error.errno
        reasons.append(f"metadata log: {error_reason(code, error_text(error))}")
    if log is not None and log.leader is not None:
        # A broker of Kafka does not return the controller in Metadata, but any broker.
        found = replace(found, controller=log.leader)
    if as_json:
        print_json(rendering.as_json(found, log))
    else:
        click.echo(rendering.as_text(found, log))
    exit_if_errors(reasons)
