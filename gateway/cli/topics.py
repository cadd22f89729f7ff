"""`kopgate topics`: topics of any Kafka server, through the Kafka protocol."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click
from kafka import errors
from kafka.admin import AlterConfigOp, ConfigResource, ConfigResourceType, KafkaAdminClient

from gateway.cli.connect import with_client
from gateway.cli.output import (
    error_lines,
    exit_if_errors,
    format_table,
    print_json,
    print_results,
    print_table,
    printable,
)


@click.group()
def topics() -> None:
    """List, create, describe, change and delete topics.

    Works with the gateway and any other Kafka server.

    Exit codes: 0 success, 1 failed for at least one topic, 2 usage error.
    """


@topics.command("list")
@click.option("--internal", is_flag=True, help="Also list internal topics.")
@with_client
def list_topics(client: KafkaAdminClient, as_json: bool, internal: bool) -> None:
    """List topics with their number of partitions."""
    found = sorted(
        (topic for topic in client.describe_topics() if internal or not topic["is_internal"]),
        key=lambda topic: str(topic["name"]),
    )
    if as_json:
        print_json(
            [
                {
                    "name": topic["name"],
                    "partitions": len(topic["partitions"]),
                    "internal": topic["is_internal"],
                }
                for topic in found
            ]
        )
    elif found:
        print_table(
            ["TOPIC", "PARTITIONS"], [[topic["name"], len(topic["partitions"])] for topic in found]
        )


@topics.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option(
    "--partitions",
    type=click.IntRange(1),
    metavar="N",
    help="Number of partitions.  [default: the server's]",
)
@click.option(
    "--replication-factor",
    type=click.IntRange(1),
    metavar="N",
    help="Replication factor.  [default: the server's]",
)
@click.option(
    "--config",
    "configs",
    multiple=True,
    metavar="NAME=VALUE",
    help="Topic config, for example retention.ms=86400000; can be repeated.",
)
@click.option("--if-not-exists", is_flag=True, help="Do not fail for topics that exist.")
@click.option("--validate-only", is_flag=True, help="Only validate; create nothing.")
@with_client
def create(
    client: KafkaAdminClient,
    as_json: bool,
    names: Sequence[str],
    partitions: int | None,
    replication_factor: int | None,
    configs: Sequence[str],
    if_not_exists: bool,
    validate_only: bool,
) -> None:
    """Create topics."""
    wanted = {
        "num_partitions": partitions or -1,
        "replication_factor": replication_factor or -1,
        "configs": _assignments(configs),
    }
    answer = client.create_topics(
        dict.fromkeys(names, wanted), raise_errors=False, validate_only=validate_only
    )
    allowed = {errors.TopicAlreadyExistsError.errno} if if_not_exists else set()
    print_results(
        answer["topics"], "could be created" if validate_only else "created", as_json, allowed
    )


@topics.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@with_client
def describe(client: KafkaAdminClient, as_json: bool, names: Sequence[str]) -> None:
    """Describe topics: partitions and configs that differ from the default. Default: all topics."""
    found = sorted(
        client.describe_topics(list(names) or None), key=lambda topic: str(topic["name"])
    )
    present = [topic for topic in found if topic["error_code"] == 0]
    configs = _configs_of(client, [topic["name"] for topic in present])
    rows = [_description(topic, configs.get(topic["name"], {})) for topic in present]
    if as_json:
        print_json(rows)
    else:
        click.echo("\n\n".join(_as_text(row) for row in rows), nl=bool(rows))
    exit_if_errors(error_lines(found))


@topics.command()
@click.argument("name")
@click.option(
    "--partitions",
    type=click.IntRange(1),
    metavar="N",
    help="New number of partitions; cannot decrease.",
)
@click.option(
    "--config",
    "configs",
    multiple=True,
    metavar="NAME=VALUE",
    help="Set a topic config; can be repeated.",
)
@click.option(
    "--unset",
    multiple=True,
    metavar="NAME",
    help="Reset a topic config to its default; can be repeated.",
)
@with_client
def alter(
    client: KafkaAdminClient,
    as_json: bool,
    name: str,
    partitions: int | None,
    configs: Sequence[str],
    unset: Sequence[str],
) -> None:
    """Add partitions to a topic or change its configs."""
    changes: dict[str, tuple[AlterConfigOp, str | None]] = {
        key: (AlterConfigOp.SET, value) for key, value in _assignments(configs).items()
    }
    if set(unset) & set(changes):
        raise click.UsageError("the same config is in --config and --unset")
    changes |= dict.fromkeys(unset, (AlterConfigOp.DELETE, None))
    if partitions is None and not changes:
        raise click.UsageError("nothing to change: give --partitions, --config or --unset")
    exit_if_errors(error_lines(client.describe_topics([name])))
    if changes:
        resource = ConfigResource(ConfigResourceType.TOPIC, name, changes)
        outcome = client.alter_configs([resource], raise_on_unknown=False)["topic"][name]
        if outcome != "OK":
            raise click.ClickException(f"{name}: {outcome.partition(': ')[2] or outcome}")
    if partitions is not None:
        results = client.create_partitions({name: partitions}, raise_errors=False).results
        exit_if_errors(
            error_lines(
                [
                    {
                        "name": row.name,
                        "error_code": row.error_code,
                        "error_message": row.error_message,
                    }
                    for row in results
                ]
            )
        )
    print_results([{"name": name, "error_code": 0}], "changed", as_json)


@topics.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("--if-exists", is_flag=True, help="Do not fail for topics that do not exist.")
@click.confirmation_option(
    "--yes", prompt="Delete the topics with all their records?", help="Skip the prompt."
)
@with_client
def delete(client: KafkaAdminClient, as_json: bool, names: Sequence[str], if_exists: bool) -> None:
    """Delete topics and all their records."""
    allowed = {errors.UnknownTopicOrPartitionError.errno} if if_exists else set()
    print_results(
        client.delete_topics(list(names), raise_errors=False)["topics"], "deleted", as_json, allowed
    )


def _configs_of(client: KafkaAdminClient, names: Sequence[str]) -> Mapping[str, Mapping[str, str]]:
    if not names:
        return {}
    try:
        described = client.describe_configs(
            [ConfigResource(ConfigResourceType.TOPIC, name) for name in names]
        ).get("topic", {})
    except errors.IncompatibleBrokerVersion:  # Kafka before 0.11 has no DescribeConfigs
        return {}
    return {
        name: {
            key: config["value"]
            for key, config in sorted(configs.items())
            if config["config_source"] == "DYNAMIC_TOPIC_CONFIG"
        }
        for name, configs in described.items()
    }


def _description(topic: Mapping[str, Any], configs: Mapping[str, str]) -> dict[str, Any]:
    partitions = sorted(
        topic["partitions"], key=lambda partition: int(partition["partition_index"])
    )
    return {
        "name": topic["name"],
        "topic_id": str(topic["topic_id"]) if topic.get("topic_id") else None,
        "internal": topic["is_internal"],
        "configs": dict(configs),
        "partitions": [
            {
                "partition": row["partition_index"],
                "leader": row["leader_id"],
                "replicas": row["replica_nodes"],
                "isr": row["isr_nodes"],
            }
            for row in partitions
        ],
    }


def _as_text(row: Mapping[str, Any]) -> str:
    lines = [
        printable(f"{row['name']}: {len(row['partitions'])} partitions")
        + (f", id {row['topic_id']}" if row["topic_id"] else "")
    ]
    lines += [printable(f"  {key}={value}") for key, value in row["configs"].items()]
    cells = [
        [
            part["partition"],
            part["leader"],
            _comma_separated(part["replicas"]),
            _comma_separated(part["isr"]),
        ]
        for part in row["partitions"]
    ]
    return "\n".join(
        [
            *lines,
            *(
                f"  {line}"
                for line in format_table(["PARTITION", "LEADER", "REPLICAS", "IN SYNC"], cells)
            ),
        ]
    )


def _assignments(pairs: Iterable[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key or key in found:
            raise click.BadParameter(
                f"{pair!r} is not NAME=VALUE, or NAME is set more than once", param_hint="--config"
            )
        found[key] = value
    return found


def _comma_separated(ids: Iterable[int]) -> str:
    return ",".join(str(one) for one in ids)
