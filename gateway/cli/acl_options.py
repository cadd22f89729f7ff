"""Options of `kopgate acls` that choose ACLs, and the ACLs that they stand for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import wraps
from itertools import product
from typing import Any

import click
from kafka.admin import ACLOperation, ACLPermissionType, ACLResourcePatternType, ResourceType

from gateway.cli.output import printable

_Operation, _Resource, _Pattern = ACLOperation, ResourceType, ACLResourcePatternType

#: The only resource of type CLUSTER.
CLUSTER_NAME = "kafka-cluster"
ANY_HOST = "*"

#: What applies to each resource type besides ALL (Kafka's AclEntry.supportedOperations).
OPERATIONS = {
    _Resource.TOPIC: (
        _Operation.READ, _Operation.WRITE, _Operation.CREATE, _Operation.DELETE, _Operation.ALTER,
        _Operation.DESCRIBE, _Operation.DESCRIBE_CONFIGS, _Operation.ALTER_CONFIGS,
    ),
    _Resource.GROUP: (
        _Operation.READ, _Operation.DELETE, _Operation.DESCRIBE, _Operation.DESCRIBE_CONFIGS,
        _Operation.ALTER_CONFIGS,
    ),
    _Resource.CLUSTER: (
        _Operation.CREATE, _Operation.ALTER, _Operation.DESCRIBE, _Operation.CLUSTER_ACTION,
        _Operation.DESCRIBE_CONFIGS, _Operation.ALTER_CONFIGS, _Operation.IDEMPOTENT_WRITE,
    ),
    _Resource.TRANSACTIONAL_ID: (_Operation.WRITE, _Operation.DESCRIBE),
}  # fmt: skip

#: What producers and consumers need, as in kafka-acls.sh.
PRODUCER = {
    _Resource.TOPIC: (_Operation.WRITE, _Operation.DESCRIBE, _Operation.CREATE),
    _Resource.TRANSACTIONAL_ID: (_Operation.WRITE, _Operation.DESCRIBE),
}
CONSUMER = {
    _Resource.TOPIC: (_Operation.READ, _Operation.DESCRIBE),
    _Resource.GROUP: (_Operation.READ,),
}


@dataclass(frozen=True, slots=True)
class AclRow:
    """An ACL, or a filter of ACLs: None and the code of ANY then match everything.

    Codes are Kafka's; a server may have some that this version does not know.
    """

    resource: int
    name: str | None
    pattern: int
    principal: str | None
    host: str | None
    operation: int
    permission: int

    def __str__(self) -> str:
        return printable(
            f"{self.permission_name} {self.principal} from {self.host} {self.operation_name} "
            f"{self.resource_name}:{self.name} ({self.pattern_name})"
        )

    @property
    def resource_name(self) -> str:
        return _name(ResourceType, self.resource)

    @property
    def pattern_name(self) -> str:
        return _name(ACLResourcePatternType, self.pattern)

    @property
    def operation_name(self) -> str:
        return _name(ACLOperation, self.operation)

    @property
    def permission_name(self) -> str:
        return _name(ACLPermissionType, self.permission)


@dataclass(frozen=True, slots=True)
class AclChoice:
    """The options of a command. Empty sequences are options that were not given."""

    principals: Sequence[tuple[int, str | None]]
    operations: Sequence[int]
    resources: Sequence[tuple[int, str]]
    is_prefix: bool
    hosts: Sequence[str]
    is_producer: bool
    is_consumer: bool

    @property
    def is_empty(self) -> bool:
        return not (self.principals or self.operations or self.resources or self.hosts)

    def new_acls(self) -> list[AclRow]:
        """Return the chosen ACLs, to add them. Raises UsageError if something is missing."""
        if not self.principals:
            raise click.UsageError("give --allow or --deny with a principal, such as User:alice")
        if not self.resources:
            raise click.UsageError("give --topic, --group, --transactional-id or --cluster")
        if not (self.operations or self.is_producer or self.is_consumer):
            raise click.UsageError("give --operation, --producer or --consumer")
        pattern = _Pattern.PREFIXED if self.is_prefix else _Pattern.LITERAL
        return self._rows(pattern, self.hosts or [ANY_HOST])

    def filters(self, pattern: int) -> list[AclRow]:
        """Return filters of the chosen ACLs; `pattern` applies to names without --prefix."""
        return self._rows(_Pattern.PREFIXED if self.is_prefix else pattern, self.hosts or [None])

    def _rows(self, pattern: int, hosts: Sequence[str | None]) -> list[AclRow]:
        principals = self.principals or [(ACLPermissionType.ANY, None)]
        return [
            AclRow(
                resource,
                name,
                self._pattern_of(resource, name, pattern),
                principal,
                host,
                operation,
                permission,
            )
            for (resource, name, operation), (permission, principal), host in product(
                self._targets(), principals, hosts
            )
        ]

    def _pattern_of(self, resource: int, name: str | None, pattern: int) -> int:
        if resource == _Resource.CLUSTER:
            return _Pattern.LITERAL
        # Without a name there is nothing to match, and --prefix selects all prefixes.
        return _Pattern.ANY if name is None and not self.is_prefix else pattern

    def _targets(self) -> list[tuple[int, str | None, int]]:
        """Return (resource type, name, operation) for each resource and operation."""
        if self.is_producer or self.is_consumer:
            return self._role_targets()
        operations = self.operations or [_Operation.ANY]
        if not self.resources:
            return [(_Resource.ANY, None, operation) for operation in operations]
        for (resource, _), operation in product(self.resources, operations):
            _check_applies(resource, operation)
        return [
            (resource, name, operation)
            for (resource, name), operation in product(self.resources, operations)
        ]

    def _role_targets(self) -> list[tuple[int, str | None, int]]:
        if self.operations:
            raise click.UsageError(
                "--producer and --consumer choose the operations; leave out --operation"
            )
        roles = [
            *([("--producer", PRODUCER)] if self.is_producer else []),
            *([("--consumer", CONSUMER)] if self.is_consumer else []),
        ]
        given = {resource for resource, _ in self.resources}
        if _Resource.TOPIC not in given or (self.is_consumer and _Resource.GROUP not in given):
            raise click.UsageError("--producer needs --topic, --consumer needs --topic and --group")
        used = {resource for _, role in roles for resource in role}
        if given - used:
            flags = " and ".join(flag for flag, _ in roles)
            raise click.UsageError(f"{flags} cannot be combined with {_names(given - used)}")
        return list(
            dict.fromkeys(
                (resource, name, operation)
                for resource, name in self.resources
                for _, role in roles
                for operation in role.get(_Resource(resource), ())
            )
        )


def with_acl_options(act: Callable[..., None]) -> Callable[..., None]:
    """Decorate a command: pass it `choice`, an AclChoice."""

    @wraps(act)
    def run(
        *positional: Any,
        allowed: Sequence[str],
        denied: Sequence[str],
        operations: Sequence[Sequence[int]],
        topics: Sequence[str],
        groups: Sequence[str],
        transactional_ids: Sequence[str],
        is_cluster: bool,
        is_prefix: bool,
        hosts: Sequence[str],
        is_producer: bool,
        is_consumer: bool,
        principals: Sequence[str] = (),
        **arguments: Any,
    ) -> None:
        choice = AclChoice(
            [
                *((ACLPermissionType.ALLOW, name) for name in allowed),
                *((ACLPermissionType.DENY, name) for name in denied),
                *((ACLPermissionType.ANY, name) for name in principals),
            ],
            list(dict.fromkeys(one for listed in operations for one in listed)),
            [
                *((_Resource.TOPIC, name) for name in topics),
                *((_Resource.GROUP, name) for name in groups),
                *((_Resource.TRANSACTIONAL_ID, name) for name in transactional_ids),
                *([(_Resource.CLUSTER, CLUSTER_NAME)] if is_cluster else []),
            ],
            is_prefix,
            hosts,
            is_producer,
            is_consumer,
        )
        act(*positional, choice=choice, **arguments)

    decorated: Callable[..., None] = run
    for option in reversed(_OPTIONS):
        decorated = option(decorated)
    return decorated


def _principals(
    context: click.Context, option: click.Parameter, texts: Sequence[str]
) -> Sequence[str]:
    for text in texts:
        kind, _, name = text.partition(":")
        if not kind or not name:
            raise click.BadParameter(f"{text!r} is not TYPE:NAME, for example User:alice")
    return texts


def _operations(
    context: click.Context, option: click.Parameter, texts: Sequence[str]
) -> list[list[int]]:
    return [[_operation(word) for word in text.split(",")] for text in texts]


def _operation(word: str) -> int:
    """Read an operation; capitals and hyphens do not matter: DescribeConfigs, describe-configs."""
    known = {
        operation.name.replace("_", ""): operation
        for operation in ACLOperation
        if operation > _Operation.ANY
    }
    key = word.strip().upper().replace("-", "").replace("_", "")
    if key not in known:
        raise click.BadParameter(f"{word!r} is not one of {_names(known.values())}")
    return known[key]


_OPTIONS = [
    click.option(
        "--allow",
        "allowed",
        multiple=True,
        callback=_principals,
        metavar="PRINCIPAL",
        help="Permission of this principal, such as User:alice or User:* (all); can be repeated.",
    ),
    click.option(
        "--deny",
        "denied",
        multiple=True,
        callback=_principals,
        metavar="PRINCIPAL",
        help="Denial for this principal, which wins over any permission; can be repeated.",
    ),
    click.option(
        "--operation",
        "operations",
        multiple=True,
        callback=_operations,
        metavar="NAME[,...]",
        help="Operations, such as read,describe or all; can be repeated.",
    ),
    click.option(
        "--producer",
        "is_producer",
        is_flag=True,
        help="The operations that a producer needs on its topics.",
    ),
    click.option(
        "--consumer",
        "is_consumer",
        is_flag=True,
        help="The operations that a consumer needs on its topics and groups.",
    ),
    click.option(
        "--topic", "topics", multiple=True, metavar="NAME", help="Topic, * for all; repeatable."
    ),
    click.option(
        "--group", "groups", multiple=True, metavar="NAME", help="Group, * for all; repeatable."
    ),
    click.option(
        "--transactional-id",
        "transactional_ids",
        multiple=True,
        metavar="ID",
        help="Transactional id, * for all; repeatable.",
    ),
    click.option("--cluster", "is_cluster", is_flag=True, help="The cluster itself."),
    click.option(
        "--prefix",
        "is_prefix",
        is_flag=True,
        help="The names are prefixes: the ACL applies to all names that begin with them.",
    ),
    click.option(
        "--host",
        "hosts",
        multiple=True,
        metavar="ADDRESS",
        help="Address of the client, * for all; repeatable.",
    ),
]


#: For commands that look for ACLs.
with_principal_option = click.option(
    "--principal",
    "principals",
    multiple=True,
    callback=_principals,
    metavar="PRINCIPAL",
    help="Permissions and denials of this principal; can be repeated.",
)


def _check_applies(resource: int, operation: int) -> None:
    if operation in (_Operation.ANY, _Operation.ALL):
        return
    usable = OPERATIONS[_Resource(resource)]
    if operation not in usable:
        raise click.UsageError(
            f"{_name(ACLOperation, operation)} does not apply to {_name(ResourceType, resource)}, "
            f"only {_names(usable)} and ALL do"
        )


def _names(values: Any) -> str:
    return ", ".join(value.name for value in sorted(values))


def _name(codes: type[IntEnum], code: int) -> str:
    """Return the name of a code, or its number if a newer server added it."""
    return codes(code).name if code in codes._value2member_map_ else str(code)
