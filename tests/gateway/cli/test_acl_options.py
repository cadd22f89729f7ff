"""Which ACLs the options of `kopgate acls` stand for. The roles are those of kafka-acls.sh."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from gateway.cli.acl_options import AclRow, with_acl_options

ALICE = ("--allow", "User:alice")


def chosen(*arguments):
    """The chosen ACLs as text, or the complaint."""
    found = []

    @click.command()
    @with_acl_options
    def command(choice):
        found.extend(str(one) for one in choice.new_acls())

    result = CliRunner().invoke(command, arguments)
    assert result.exit_code == (0 if found else 2), result.output
    return found or result.stderr


def test_every_combination_is_an_acl():
    assert chosen(
        *(*ALICE, "--deny", "User:bob", "--operation", "read", "--operation", "delete"),
        *("--topic", "t", "--group", "g", "--host", "192.0.2.1", "--host", "192.0.2.2"),
    ) == [
        f"{who} from 192.0.2.{host} {operation} {resource} (LITERAL)"
        for resource in ("TOPIC:t", "GROUP:g")
        for operation in ("READ", "DELETE")
        for who in ("ALLOW User:alice", "DENY User:bob")
        for host in (1, 2)
    ]


def test_producer_may_write_describe_and_create():
    assert chosen(*ALICE, "--producer", "--topic", "t", "--transactional-id", "x") == [
        f"ALLOW User:alice from * {operation} {resource} (LITERAL)"
        for operation, resource in [
            ("WRITE", "TOPIC:t"),
            ("DESCRIBE", "TOPIC:t"),
            ("CREATE", "TOPIC:t"),
            ("WRITE", "TRANSACTIONAL_ID:x"),
            ("DESCRIBE", "TRANSACTIONAL_ID:x"),
        ]
    ]


def test_consumer_may_read_topic_and_group():
    assert chosen(*ALICE, "--consumer", "--topic", "t", "--group", "g", "--prefix") == [
        f"ALLOW User:alice from * {operation} {resource} (PREFIXED)"
        for operation, resource in [
            ("READ", "TOPIC:t"),
            ("DESCRIBE", "TOPIC:t"),
            ("READ", "GROUP:g"),
        ]
    ]


def test_producer_and_consumer_together_have_no_acl_twice():
    acls = chosen(*ALICE, "--producer", "--consumer", "--topic", "t", "--group", "g")
    assert len(acls) == len(set(acls)) == 5


def test_cluster_is_literal_even_with_prefix():
    assert chosen(*ALICE, "--operation", "alter", "--cluster", "--prefix") == [
        "ALLOW User:alice from * ALTER CLUSTER:kafka-cluster (LITERAL)"
    ]


@pytest.mark.parametrize("word", ["DescribeConfigs", "describe-configs", "DESCRIBE_CONFIGS"])
def test_operation_is_known_in_every_spelling(word):
    (acl,) = chosen(*ALICE, "--operation", word, "--topic", "t")
    assert "DESCRIBE_CONFIGS" in acl


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--operation", "read", "--topic", "t"), "--allow or --deny"),
        ((*ALICE, "--operation", "read"), "--topic, --group"),
        ((*ALICE, "--topic", "t"), "--operation, --producer or --consumer"),
        (("--allow", "alice", "--operation", "read", "--topic", "t"), "TYPE:NAME"),
        ((*ALICE, "--operation", "look", "--topic", "t"), "'look' is not one of ALL, READ"),
        ((*ALICE, "--operation", "any", "--topic", "t"), "'any' is not one of"),
        ((*ALICE, "--operation", "write", "--group", "g"), "WRITE does not apply to GROUP"),
        ((*ALICE, "--producer", "--group", "g"), "--producer needs --topic"),
        ((*ALICE, "--producer", "--topic", "t", "--group", "g"), "combined with GROUP"),
        ((*ALICE, "--consumer", "--topic", "t"), "--topic and --group"),
        ((*ALICE, "--producer", "--operation", "read", "--topic", "t"), "leave out --operation"),
    ],
)
def test_incomplete_or_contradicting_options_are_usage_errors(arguments, complaint):
    assert complaint in chosen(*arguments)


def test_unknown_codes_have_numbers_as_names():
    assert str(AclRow(99, "n", 9, "User:a", "*", 77, 8)) == "8 User:a from * 77 99:n (9)"
