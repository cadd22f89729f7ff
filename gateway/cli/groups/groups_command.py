"""`kopgate groups`: consumer groups of any Kafka server, through the Kafka protocol."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click
from kafka import OffsetAndMetadata, TopicPartition, errors
from kafka.admin import GroupState

from gateway.cli.connect import with_client
from gateway.cli.groups import group_rendering as rendering
from gateway.cli.groups.group_descriptions import NOT_FOUND, find_groups
from gateway.cli.groups.lag import committed_offsets, partition_lags
from gateway.cli.groups.reset_options import with_reset_options
from gateway.cli.groups.reset_plan import (
    CannotReset,
    OffsetChange,
    ResetScope,
    ResetTarget,
    partition_name,
    plan_reset,
)
from gateway.cli.kafka_client import AdminClient, retry
from gateway.cli.output import (
    count_of,
    error_lines,
    exit_if_errors,
    format_table,
    print_json,
    print_results,
    print_table,
)

_STATES = [state.value for state in GroupState if state is not GroupState.UNKNOWN]


@click.group()
def groups() -> None:
    """List, describe and delete consumer groups and reset their offsets.

    Works with the gateway and any other Kafka server.

    Exit codes: 0 success, 1 failed for at least one group or partition, 2 usage error.
    """


@groups.command("list")
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice(_STATES, case_sensitive=False),
    metavar="STATE",
    help=f"Only groups in this state; can be repeated. {', '.join(_STATES)}.",
)
@with_client
def list_groups(client: AdminClient, as_json: bool, states: Sequence[str]) -> None:
    """List groups with their states.

    Stable: all members have their partitions. PreparingRebalance, CompletingRebalance, Assigning,
    Reconciling: a rebalance is in progress. Empty: no members, only committed offsets. A dash means
    that the server does not report the value (Kafka before 2.6).
    """
    try:
        found = retry(client, lambda: client.list_groups(states_filter=list(states)))
    except errors.IncompatibleBrokerVersion:
        raise click.ClickException(
            "the server does not report states (Kafka before 2.6); leave out --state"
        ) from None
    rows = [
        {
            "group": row["group_id"],
            "state": row.get("group_state") or None,
            "type": row.get("group_type") or None,
            "protocol_type": row["protocol_type"] or None,
        }
        for row in sorted(found, key=lambda row: str(row["group_id"]))
    ]
    if as_json:
        print_json(rows)
    elif rows:
        print_table(["GROUP", "STATE", "TYPE", "PROTOCOL"], [list(row.values()) for row in rows])


@groups.command()
@click.argument("names", nargs=-1, metavar="[GROUP]...")
@click.option(
    "--members",
    "with_members",
    is_flag=True,
    help="Also list the members, including those without partitions. JSON always does.",
)
@with_client
def describe(client: AdminClient, as_json: bool, names: Sequence[str], with_members: bool) -> None:
    """Describe groups: committed offsets, lag and owner of each partition. Default: all groups.

    LAG is the end offset minus the committed offset. A dash under COMMITTED: no committed offset.
    Under END: the partition does not exist or has no leader. Under MEMBER: no member owns the
    partition. With --members, TARGET is the target assignment of a member of a consumer group; it
    differs from PARTITIONS during a rebalance.
    """
    wanted = list(dict.fromkeys(names)) or sorted(
        str(row["group_id"]) for row in retry(client, client.list_groups)
    )
    found, missing = find_groups(client, wanted)
    where = partition_lags(client, found)
    if as_json:
        print_json([rendering.as_json(group, where[group.group_id]) for group in found])
    else:
        click.echo(
            "\n\n".join(
                rendering.as_text(group, where[group.group_id], with_members) for group in found
            ),
            nl=bool(found),
        )
    exit_if_errors(error_lines(missing))


@groups.command()
@click.argument("names", nargs=-1, required=True, metavar="GROUP...")
@click.option("--if-exists", is_flag=True, help="Do not fail for groups that do not exist.")
@click.confirmation_option(
    "--yes", prompt="Delete the groups with all their committed offsets?", help="Skip the prompt."
)
@with_client
def delete(client: AdminClient, as_json: bool, names: Sequence[str], if_exists: bool) -> None:
    """Delete groups and their committed offsets. A group with members is not deleted."""
    wanted = list(dict.fromkeys(names))
    retry(client, lambda: client.coordinators(wanted))
    # Sent once: if the reply to a successful deletion was lost, a retry would not find the group.
    rows = [
        {"name": name, "error_code": _code(outcome)}
        for name, outcome in client.delete_groups(wanted).items()
    ]
    print_results(rows, "deleted", as_json, {NOT_FOUND} if if_exists else set())


@groups.command("reset-offsets")
@click.argument("name", metavar="GROUP")
@with_reset_options
@click.option(
    "--execute", is_flag=True, help="Commit the offsets. Without it they are only printed."
)
@with_client
def reset_offsets(
    client: AdminClient,
    as_json: bool,
    name: str,
    target: ResetTarget,
    scopes: Sequence[ResetScope] | None,
    execute: bool,
) -> None:
    """Move the committed offsets of a group. Without --execute, only print the new offsets.

    The group must have no members, because they would continue from their positions. A group that
    does not exist is created. An offset outside the partition is replaced by the nearest one
    inside, which is reported under NOTE.

    \b
    kopgate groups reset-offsets orders-app --to-datetime 2026-11-21T10:00:00+01:00 --all-topics
    kopgate groups reset-offsets orders-app --shift-by -100 --topic orders:0,3 --execute
    """
    if not name:  # usually an unset shell variable
        raise click.BadParameter("the name is empty", param_hint="GROUP")
    _refuse_members(client, name)
    commits = committed_offsets(client, [name])[name]
    if scopes is None and not commits:
        raise click.ClickException(f"{name}: no committed offsets; choose topics with --topic")
    try:
        changes = plan_reset(client, target, scopes, commits)
    except CannotReset as cannot:
        exit_if_errors(cannot.reasons)
        return
    failures = _commit(client, name, changes) if execute else {}
    if as_json:
        print_json(
            {
                "group": name,
                "executed": execute,
                "partitions": [_change(change, failures) for change in changes],
            }
        )
    else:
        click.echo(_changes_as_text(name, changes, execute, failures))
    exit_if_errors(
        [f"{partition_name(partition)}: {reason}" for partition, reason in failures.items()]
    )


def _refuse_members(client: AdminClient, name: str) -> None:
    found, missing = find_groups(client, [name])
    exit_if_errors(error_lines(row for row in missing if row["error_code"] != NOT_FOUND))
    for group in found:
        if group.members or group.state != "Empty":
            raise click.ClickException(
                f"{name}: the group is {group.state} with "
                f"{count_of(len(group.members), 'member')}; offsets can only be reset "
                f"without members: stop the consumers and try again "
                f"(kopgate groups describe {name} --members)"
            )


def _commit(
    client: AdminClient, name: str, changes: Iterable[OffsetChange]
) -> dict[TopicPartition, str]:
    """Commit the planned offsets; return the errors by partition."""
    offsets = {
        change.partition: OffsetAndMetadata(change.new, "", None)
        for change in changes
        if change.new is not None
    }
    return {
        partition: "a consumer has joined the group; stop it and try again"
        if error is errors.UnknownMemberIdError
        else error.description or error.__name__
        for partition, error in client.alter_group_offsets(name, offsets).items()
        if error is not errors.NoError
    }


def _code(outcome: str) -> int:
    """Return the error code of an outcome.

    The library returns names of error classes, and creates classes for codes that it does not know.
    """
    return 0 if outcome == "OK" else int(getattr(errors, outcome, errors.UnknownError).errno)


def _change(change: OffsetChange, failures: Mapping[TopicPartition, str]) -> dict[str, Any]:
    return {
        "topic": change.partition.topic,
        "partition": change.partition.partition,
        "old": change.old,
        "new": change.new,
        "difference": change.difference,
        "note": change.note,
        "error": failures.get(change.partition),
    }


def _changes_as_text(
    name: str,
    changes: Iterable[OffsetChange],
    executed: bool,
    failures: Mapping[TopicPartition, str],
) -> str:
    rows = [
        [
            *change.partition,
            change.old,
            change.new,
            None if change.difference is None else f"{change.difference:+}",
            change.note or "",
        ]
        for change in changes
        if change.partition not in failures
    ]
    said = (
        "committed these offsets"
        if executed
        else "would commit these offsets; add --execute to commit them"
    )
    return "\n".join(
        [
            f"{name}: {said}",
            *(
                f"  {line}"
                for line in format_table(
                    ["TOPIC", "PARTITION", "OLD", "NEW", "DIFFERENCE", "NOTE"], rows
                )
            ),
        ]
    )
