"""`kopgate acls`: ACLs of any Kafka server, through the Kafka protocol."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Any

import click
from kafka.admin import ACLResourcePatternType, ResourceType
from kafka.protocol.admin import CreateAclsRequest, DeleteAclsRequest, DescribeAclsRequest

from gateway.cli.acl_options import AclChoice, AclRow, with_acl_options, with_principal_option
from gateway.cli.connect import with_client
from gateway.cli.kafka_client import AdminClient
from gateway.cli.output import error_reason, exit_if_errors, print_json, print_table

_HEAD = ["RESOURCE", "NAME", "PATTERN", "PERMISSION", "PRINCIPAL", "OPERATION", "HOST"]

#: First versions of the requests with pattern types (KIP-290) and with resources of type USER
#: (KIP-373).
_FIRST_WITH_PATTERNS, _FIRST_WITH_USERS = 1, 3


@click.group()
def acls() -> None:
    """List, add and remove ACLs.

    Works with the gateway (setting authorizer=acls) and any other Kafka server with an authorizer.

    \b
    kopgate acls add --allow User:app --consumer --topic orders --group app
    kopgate acls list --topic orders

    Exit codes: 0 success, 1 failed for at least one ACL, 2 usage error.
    """


@acls.command("list")
@with_principal_option
@with_acl_options
@with_client
def list_acls(client: AdminClient, as_json: bool, choice: AclChoice) -> None:
    """List ACLs, by default all.

    With --topic, --group or --transactional-id, list all that apply to this name, also those for a
    prefix of it and for *. With --prefix, list only those for exactly this prefix.
    """
    found = _describe(client, choice.filters(ACLResourcePatternType.MATCH))
    if as_json:
        print_json([_fields(one) for one in found])
    elif found:
        _print_acls(found)


def _with_complete_choice(act: Callable[..., None]) -> Callable[..., None]:
    """Decorate a command: wrong usage is refused before it prompts for a password or connects."""

    @wraps(act)
    def run(*, choice: AclChoice, **arguments: Any) -> None:
        choice.new_acls()
        act(choice=choice, **arguments)

    return run


@acls.command()
@with_acl_options
@_with_complete_choice
@with_client
def add(client: AdminClient, as_json: bool, choice: AclChoice) -> None:
    """Add ACLs: each principal, operation, resource and host that is given.

    Adding an ACL that exists already succeeds. Without --host it applies to clients on all hosts.

    \b
    kopgate acls add --allow User:app --producer --topic orders
    kopgate acls add --allow User:app --operation read,describe --topic orders. --prefix
    kopgate acls add --deny User:bob --operation all --topic '*' --host 192.0.2.7
    """
    wanted = choice.new_acls()
    request = CreateAclsRequest(
        min_version=_version_for(wanted),
        creations=[
            CreateAclsRequest.AclCreation(
                resource_type=one.resource,
                resource_name=one.name or "",
                resource_pattern_type=one.pattern,
                principal=one.principal or "",
                host=one.host or "",
                operation=one.operation,
                permission_type=one.permission,
            )
            for one in wanted
        ],
    )
    results = client.send(request).results
    outcomes = [
        (one, error_reason(row.error_code, row.error_message) if row.error_code else None)
        for one, row in zip(wanted, results, strict=True)
    ]
    if as_json:
        print_json([{**_fields(one), "error": error} for one, error in outcomes])
    else:
        for one, error in outcomes:
            if error is None:
                click.echo(f"{one} added")
    exit_if_errors(_grouped_errors(outcomes))


@acls.command()
@with_principal_option
@with_acl_options
@click.option("--if-exists", is_flag=True, help="Do not fail if there is no such ACL.")
@click.option("--yes", is_flag=True, help="Skip the prompt.")
@with_client
def remove(
    client: AdminClient, as_json: bool, choice: AclChoice, if_exists: bool, yes: bool
) -> None:
    """Remove ACLs: all that match the given options.

    An option that is not given matches everything. The options that were given to `add` remove what
    it added. Names are compared exactly: use --prefix for ACLs with a prefix.
    """
    if choice.is_empty:
        raise click.UsageError(
            "choose ACLs: give a principal, a resource, --operation or --host (kopgate acls list)"
        )
    filters = choice.filters(ACLResourcePatternType.LITERAL)
    found = _describe(client, filters)
    if not found and not if_exists:
        raise click.ClickException("no ACL matches (kopgate acls list)")
    if found and not yes:
        click.echo("\n".join(str(one) for one in found), err=True)
        click.confirm("Remove these ACLs?", abort=True, err=True)
    removed, problems = _delete(client, filters) if found else ([], [])
    if as_json:
        print_json([_fields(one) for one in removed])
    else:
        for one in removed:
            click.echo(f"{one} removed")
    exit_if_errors(problems)


def _describe(client: AdminClient, filters: Iterable[AclRow]) -> list[AclRow]:
    """Return the ACLs that match any filter, sorted. Raises ClickException."""
    found = set()
    for one in filters:
        response = client.send(
            DescribeAclsRequest(
                min_version=_version_for([one]),
                resource_type_filter=one.resource,
                resource_name_filter=one.name,
                pattern_type_filter=one.pattern,
                principal_filter=one.principal,
                host_filter=one.host,
                operation=one.operation,
                permission_type=one.permission,
            )
        )
        if response.error_code:
            raise click.ClickException(error_reason(response.error_code, response.error_message))
        found |= {
            _row_of(resource, resource.pattern_type, acl)
            for resource in response.resources
            for acl in resource.acls
        }
    return _in_order(found)


def _delete(client: AdminClient, filters: Sequence[AclRow]) -> tuple[list[AclRow], list[str]]:
    """Delete the ACLs that match any filter. Returns the deleted ones, and errors."""
    request = DeleteAclsRequest(
        min_version=_version_for(filters),
        filters=[
            DeleteAclsRequest.DeleteAclsFilter(
                resource_type_filter=one.resource,
                resource_name_filter=one.name,
                pattern_type_filter=one.pattern,
                principal_filter=one.principal,
                host_filter=one.host,
                operation=one.operation,
                permission_type=one.permission,
            )
            for one in filters
        ],
    )
    removed, problems = set(), {}
    for result in client.send(request).filter_results:
        if result.error_code:
            problems[error_reason(result.error_code, result.error_message)] = True
        for acl in result.matching_acls:
            row = _row_of(acl, acl.pattern_type, acl)
            if acl.error_code:
                problems[f"{row}: {error_reason(acl.error_code, acl.error_message)}"] = True
            else:
                removed.add(row)
    return _in_order(removed), list(problems)


def _version_for(rows: Iterable[AclRow]) -> int:
    """Return the first version of the requests that can express the ACLs or filters.

    Older servers know literal names only; a filter with MATCH then means the same.
    """
    rows = list(rows)
    if any(row.resource == ResourceType.USER for row in rows):
        return _FIRST_WITH_USERS
    if any(row.pattern == ACLResourcePatternType.PREFIXED for row in rows):
        return _FIRST_WITH_PATTERNS
    return 0


def _row_of(resource: Any, pattern: int, acl: Any) -> AclRow:
    return AclRow(
        resource.resource_type,
        resource.resource_name,
        pattern,
        acl.principal,
        acl.host,
        acl.operation,
        acl.permission_type,
    )


def _in_order(found: Iterable[AclRow]) -> list[AclRow]:
    return sorted(
        found,
        key=lambda one: (
            one.resource,
            one.name or "",
            one.pattern,
            one.principal or "",
            one.permission,
            one.operation,
            one.host or "",
        ),
    )


def _fields(one: AclRow) -> dict[str, Any]:
    return {
        "resource": one.resource_name,
        "name": one.name,
        "pattern": one.pattern_name,
        "permission": one.permission_name,
        "principal": one.principal,
        "operation": one.operation_name,
        "host": one.host,
    }


def _print_acls(found: Sequence[AclRow]) -> None:
    print_table(_HEAD, [list(_fields(one).values()) for one in found])


def _grouped_errors(outcomes: Sequence[tuple[AclRow, str | None]]) -> list[str]:
    """Return an error that all ACLs have once, else one line for each ACL that failed."""
    distinct = {error for _, error in outcomes}
    if len(distinct) == 1:
        return [error for error in distinct if error is not None]
    return [f"{one}: {error}" for one, error in outcomes if error is not None]
