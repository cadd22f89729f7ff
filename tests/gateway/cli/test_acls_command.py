"""`kopgate acls` with a fake server; tests/peers/tools runs the same commands against Kafka."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from gateway.cli.main import main
from tests.fakes.credential_admin import FakeCredentialAdmin

HEAD = "RESOURCE  NAME"


@pytest.fixture
def server(connect_to):
    return connect_to(FakeCredentialAdmin())


def kopgate(*arguments, answer=None):
    return CliRunner().invoke(main, ["acls", *arguments], input=answer)


def add(*arguments):
    result = kopgate("add", *arguments)
    assert result.exit_code == 0, result.output
    return result


def test_added_acls_are_listed_as_a_table(server):
    added = add("--allow", "User:alice", "--operation", "read,Describe", "--topic", "orders")
    assert added.stdout == (
        "ALLOW User:alice from * READ TOPIC:orders (LITERAL) added\n"
        "ALLOW User:alice from * DESCRIBE TOPIC:orders (LITERAL) added\n"
    )
    assert kopgate("list").stdout == (
        "RESOURCE  NAME    PATTERN  PERMISSION  PRINCIPAL   OPERATION  HOST\n"
        "TOPIC     orders  LITERAL  ALLOW       User:alice  READ       *\n"
        "TOPIC     orders  LITERAL  ALLOW       User:alice  DESCRIBE   *\n"
    )


def test_json_has_one_object_for_each_acl(server):
    arguments = ("--deny", "User:bob", "--operation", "all", "--group", "g", "--host", "192.0.2.7")
    shown = {
        "resource": "GROUP",
        "name": "g",
        "pattern": "PREFIXED",
        "permission": "DENY",
        "principal": "User:bob",
        "operation": "ALL",
        "host": "192.0.2.7",
    }
    added = add(*arguments, "--prefix", "--json")
    assert json.loads(added.stdout) == [{**shown, "error": None}]
    assert json.loads(kopgate("list", "--json").stdout) == [shown]
    assert json.loads(kopgate("remove", *arguments, "--prefix", "--yes", "--json").stdout) == [
        shown
    ]
    assert json.loads(kopgate("list", "--json").stdout) == []


def test_no_acls_print_nothing(server):
    assert (kopgate("list").stdout, kopgate("list").exit_code) == ("", 0)


def test_list_of_a_name_has_all_acls_that_apply_to_it(server):
    allow = ("--allow", "User:a", "--operation", "read")
    add(*allow, "--topic", "orders", "--topic", "*", "--topic", "other")
    add(*allow, "--topic", "ord", "--topic", "orders.eu", "--prefix")

    def names(*arguments):
        return [
            (row["name"], row["pattern"])
            for row in json.loads(kopgate("list", *arguments, "--json").stdout)
        ]

    assert names("--topic", "orders") == [
        ("*", "LITERAL"),
        ("ord", "PREFIXED"),
        ("orders", "LITERAL"),
    ]
    assert names("--topic", "ord", "--prefix") == [("ord", "PREFIXED")]
    assert len(names("--principal", "User:a")) == 5
    assert names("--deny", "User:a") == []


def test_remove_compares_names_exactly(server):
    allow = ("--allow", "User:a", "--operation", "read", "--topic", "orders")
    add(*allow, "--topic", "*")
    add(*allow, "--prefix")
    assert kopgate("remove", "--topic", "orders", "--yes").stdout == (
        "ALLOW User:a from * READ TOPIC:orders (LITERAL) removed\n"
    )
    assert len(server.acls) == 2


def test_prefix_without_a_name_selects_all_prefixes(server):
    allow = ("--allow", "User:a", "--operation", "read", "--topic", "orders")
    add(*allow)
    add(*allow, "--prefix")
    assert kopgate("remove", "--principal", "User:a", "--prefix", "--yes").stdout == (
        "ALLOW User:a from * READ TOPIC:orders (PREFIXED) removed\n"
    )
    assert len(server.acls) == 1


def test_remove_asks_and_shows_what_would_be_removed(server):
    add("--allow", "User:a", "--operation", "read", "--topic", "orders")
    refused = kopgate("remove", "--principal", "User:a", answer="n\n")
    assert refused.exit_code == 1
    assert "ALLOW User:a from * READ TOPIC:orders (LITERAL)\n" in refused.stderr
    assert len(server.acls) == 1
    assert kopgate("remove", "--principal", "User:a", answer="y\n").exit_code == 0
    assert not server.acls


def test_removing_unknown_acl_fails_unless_if_exists(server):
    result = kopgate("remove", "--topic", "orders", "--yes")
    assert (result.exit_code, result.stderr) == (
        1,
        "Error: no ACL matches (kopgate acls list)\n",
    )
    assert kopgate("remove", "--topic", "orders", "--yes", "--if-exists").exit_code == 0


@pytest.mark.parametrize("command", [("list",), ("add",), ("remove", "--yes")], ids=lambda c: c[0])
@pytest.mark.parametrize(
    ("state", "remedy"),
    [
        ("has_authorizer", "start the gateway with authorizer=acls"),
        ("is_allowed", "log in (--user)"),
    ],
)
def test_refusal_of_the_server_says_once_what_to_do(server, command, state, remedy):
    setattr(server, state, False)
    result = kopgate(*command, "--allow", "User:a", "--operation", "read,write", "--topic", "t")
    assert result.exit_code == 1
    assert remedy in result.stderr
    assert result.stderr.count("\n") == 1


def test_error_of_one_acl_names_it(server):
    result = kopgate(
        *("add", "--allow", "User:a", "--operation", "read", "--topic", "t"),
        *("--host", "192.0.2.1", "--host", "bad host"),
    )
    assert result.stdout == "ALLOW User:a from 192.0.2.1 READ TOPIC:t (LITERAL) added\n"
    assert result.stderr == (
        "Error: ALLOW User:a from bad host READ TOPIC:t (LITERAL): Invalid host\n"
    )
    assert result.exit_code == 1


def test_codes_of_newer_servers_are_shown_as_numbers(server):
    server.acls.add((5, "tx", 3, "User:a", "*", 15, 3))
    assert kopgate("list").stdout.splitlines()[1].split() == [
        *("TRANSACTIONAL_ID", "tx", "LITERAL", "ALLOW", "User:a", "15", "*")
    ]


def test_add_refuses_wrong_usage_before_it_connects():
    nowhere = ("--bootstrap-server", "127.0.0.1:1", "--user", "admin")
    result = kopgate("add", "--allow", "User:a", "--topic", "t", *nowhere)
    assert result.exit_code == 2
    assert "give --operation, --producer or --consumer" in result.stderr


def test_remove_without_a_choice_is_usage_error(server):
    result = kopgate("remove", "--yes")
    assert result.exit_code == 2
    assert "choose ACLs" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "version"),
    [(("--topic", "t"), 0), (("--topic", "t", "--prefix"), 1)],
    ids=["literal", "prefixed"],
)
def test_acl_with_a_prefix_is_not_sent_to_servers_without_patterns(server, arguments, version):
    sent = []
    send = server.send
    server.send = lambda request: sent.append(request._min_version or 0) or send(request)
    add("--allow", "User:a", "--operation", "read", *arguments)
    kopgate("remove", "--allow", "User:a", *arguments, "--yes")
    assert sent == [version, version, version]
