"""`kopgate topics` with a fake server; tests/peers runs the same commands against Kafka."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from kafka.errors import IncompatibleBrokerVersion

from gateway.cli.main import main

UNKNOWN, INVALID, EXISTS, INVALID_PARTITIONS = 3, 17, 36, 37


class FakeAdmin:
    """The used part of KafkaAdminClient, with results shaped like those of Kafka 3.9.2."""

    def __init__(self):
        self.topics = {}

    def describe_topics(self, names=None):
        # Kafka returns topics unordered.
        return [
            self._described(name)
            for name in reversed(list(self.topics) if names is None else names)
        ]

    def _described(self, name):
        if name not in self.topics:
            return {
                "error_code": UNKNOWN,
                "name": name,
                "topic_id": None,
                "is_internal": False,
                "partitions": [],
            }
        partitions = [
            {
                "error_code": 0,
                "partition_index": i,
                "leader_id": 1,
                "replica_nodes": [1, 2],
                "isr_nodes": [1],
            }
            for i in range(self.topics[name]["partitions"])
        ]
        topic_id = "00000000-0000-0000-0000-000000000001"
        return {
            "error_code": 0,
            "name": name,
            "topic_id": topic_id,
            "is_internal": name.startswith("__"),
            "partitions": partitions[::-1],
        }

    def create_topics(self, wanted, raise_errors, validate_only):
        assert raise_errors is False
        return {"topics": [self._created(name, how, validate_only) for name, how in wanted.items()]}

    def _created(self, name, how, validate_only):
        if " " in name:
            return {"name": name, "error_code": INVALID, "error_message": "Topic name is invalid"}
        if name in self.topics:
            return {
                "name": name,
                "error_code": EXISTS,
                "error_message": f"Topic '{name}' already exists.",
            }
        if not validate_only:
            self.topics[name] = {
                "partitions": max(how["num_partitions"], 1),
                "configs": dict(how["configs"]),
                "replicas": how["replication_factor"],
            }
        return {"name": name, "error_code": 0, "error_message": None}

    def describe_configs(self, resources):
        return {"topic": {resource.name: self._configs(resource.name) for resource in resources}}

    def _configs(self, name):
        sources = {
            **dict.fromkeys(self.topics[name]["configs"], "DYNAMIC_TOPIC_CONFIG"),
            "segment.bytes": "STATIC_BROKER_CONFIG",
        }
        return {
            key: {"value": self.topics[name]["configs"].get(key, "1"), "config_source": source}
            for key, source in sources.items()
        }

    def alter_configs(self, resources, raise_on_unknown):
        (resource,) = resources
        for key, (op, value) in resource.configs.items():
            if key == "nope":
                return {
                    "topic": {
                        resource.name: "[Error 40] InvalidConfigurationError: "
                        "Unknown topic config name: nope"
                    }
                }
            if op.name == "DELETE":
                self.topics[resource.name]["configs"].pop(key, None)
            else:
                self.topics[resource.name]["configs"][key] = value
        return {"topic": {resource.name: "OK"}}

    def create_partitions(self, wanted, raise_errors):
        ((name, count),) = wanted.items()
        if count <= self.topics[name]["partitions"]:
            return SimpleNamespace(
                results=[
                    SimpleNamespace(
                        name=name, error_code=INVALID_PARTITIONS, error_message="not an increase"
                    )
                ]
            )
        self.topics[name]["partitions"] = count
        return SimpleNamespace(
            results=[SimpleNamespace(name=name, error_code=0, error_message=None)]
        )

    def delete_topics(self, names, raise_errors):
        codes = {name: 0 if self.topics.pop(name, None) else UNKNOWN for name in names}
        return {
            "topics": [
                {"name": name, "error_code": code, "error_message": None}
                for name, code in codes.items()
            ]
        }


@pytest.fixture
def server(connect_to):
    return connect_to(FakeAdmin())


def kopgate(*arguments, answer=None):
    return CliRunner().invoke(main, ["topics", *arguments], input=answer)


def test_create_sends_requested_options(server):
    result = kopgate(
        "create",
        "b",
        "a",
        "--partitions",
        "3",
        "--replication-factor",
        "2",
        "--config",
        "retention.ms=5",
        "--config",
        "k=a=b",
    )
    assert (result.stdout, result.exit_code) == ("a created\nb created\n", 0)
    assert server.topics["a"] == {
        "partitions": 3,
        "configs": {"retention.ms": "5", "k": "a=b"},
        "replicas": 2,
    }


def test_omitted_options_use_server_defaults(server):
    kopgate("create", "a")
    assert server.topics["a"] == {"partitions": 1, "configs": {}, "replicas": -1}


def test_failed_topic_is_reported_and_others_are_created(server):
    result = kopgate("create", "a", "not good")
    assert (result.stdout, result.stderr, result.exit_code) == (
        "a created\n",
        "Error: not good: Topic name is invalid\n",
        1,
    )


def test_existing_topic_fails_unless_if_not_exists(server):
    kopgate("create", "a")
    assert kopgate("create", "a").exit_code == 1
    assert kopgate("create", "a", "--if-not-exists").exit_code == 0
    assert kopgate("create", "not good", "--if-not-exists").exit_code == 1


def test_validate_only_creates_nothing(server):
    assert kopgate("create", "a", "--validate-only").stdout == "a could be created\n"
    assert server.topics == {}


def test_topics_are_listed_in_order_without_internal_ones(server):
    kopgate("create", "b", "__offsets", "a", "--partitions", "2")
    assert kopgate("list").stdout == "TOPIC  PARTITIONS\na      2\nb      2\n"
    assert [row["name"] for row in json.loads(kopgate("list", "--internal", "--json").stdout)] == [
        "__offsets",
        "a",
        "b",
    ]


def test_no_topics_print_empty_list(server):
    assert kopgate("list").stdout == ""
    assert json.loads(kopgate("list", "--json").stdout) == []


def test_description_has_sorted_partitions_and_changed_configs(server):
    kopgate("create", "a", "--partitions", "2", "--config", "retention.ms=5")
    assert kopgate("describe", "a").stdout == (
        "a: 2 partitions, id 00000000-0000-0000-0000-000000000001\n"
        "  retention.ms=5\n"
        "  PARTITION  LEADER  REPLICAS  IN SYNC\n"
        "  0          1       1,2       1\n"
        "  1          1       1,2       1\n"
    )
    (row,) = json.loads(kopgate("describe", "--json").stdout)
    assert row["partitions"][0] == {"partition": 0, "leader": 1, "replicas": [1, 2], "isr": [1]}
    assert row["configs"] == {"retention.ms": "5"}


def test_server_without_describe_configs_is_described_without_configs(server, monkeypatch):
    def describe_configs(resources):
        raise IncompatibleBrokerVersion("no DescribeConfigs")

    monkeypatch.setattr(server, "describe_configs", describe_configs)
    kopgate("create", "a", "--config", "retention.ms=5")
    result = kopgate("describe", "a")
    assert result.stdout.startswith("a: 1 partitions")
    assert result.exit_code == 0


def test_unknown_topic_is_reported_and_others_are_described(server):
    kopgate("create", "a")
    result = kopgate("describe", "a", "b")
    assert result.stdout.startswith("a: 1 partitions")
    assert result.stderr.startswith("Error: b: ")
    assert result.exit_code == 1


def test_alter_sets_unsets_and_adds_partitions(server):
    kopgate("create", "a", "--config", "retention.ms=5")
    result = kopgate(
        "alter",
        "a",
        "--config",
        "cleanup.policy=compact",
        "--unset",
        "retention.ms",
        "--partitions",
        "4",
    )
    assert (result.stdout, result.exit_code) == ("a changed\n", 0)
    assert (server.topics["a"]["partitions"], server.topics["a"]["configs"]) == (
        4,
        {"cleanup.policy": "compact"},
    )


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["a", "--config", "nope=1"], "Error: a: Unknown topic config name: nope\n"),
        (["a", "--partitions", "1"], "Error: a: not an increase\n"),
        (["b", "--partitions", "1"], "Error: b: "),
    ],
    ids=["config", "partitions", "unknown"],
)
def test_alter_error_is_reported(server, arguments, complaint):
    kopgate("create", "a")
    result = kopgate("alter", *arguments)
    assert result.exit_code == 1
    assert result.stderr.startswith(complaint)


@pytest.mark.parametrize(
    "arguments",
    [
        ["a"],
        ["a", "--config", "k"],
        ["a", "--config", "k=1", "--config", "k=2"],
        ["a", "--config", "k=1", "--unset", "k"],
        ["a", "--partitions", "0"],
    ],
)
def test_contradicting_alter_options_are_usage_errors(server, arguments):
    assert kopgate("alter", *arguments).exit_code == 2


def test_topics_are_deleted_after_confirmation(server):
    kopgate("create", "a", "b")
    assert kopgate("delete", "a", answer="n\n").exit_code == 1
    assert kopgate("delete", "b", "--yes").stdout == "b deleted\n"
    assert list(server.topics) == ["a"]


def test_deleting_unknown_topic_fails_unless_if_exists(server):
    assert kopgate("delete", "a", "--yes").exit_code == 1
    assert kopgate("delete", "a", "--yes", "--if-exists").exit_code == 0


def test_json_has_outcome_of_each_topic(server):
    kopgate("create", "a")
    result = kopgate("create", "a", "b", "--json")
    assert json.loads(result.stdout) == [
        {"name": "a", "error_code": EXISTS, "error": "Topic 'a' already exists."},
        {"name": "b", "error_code": 0, "error": None},
    ]
    assert result.exit_code == 1
