"""The tables of facts, compared manually with the schemas in Kafka's releases."""

from __future__ import annotations

import json

import pytest

from compat.fingerprint.table import build_table, protocol_settings, read_runs, version_numbers
from reports.analysis import facts
from tests.compat.fingerprint.evaluation import UNSEEN

KAFKA_4 = ("kafka-4.0", "kafka-4.x")
RUNS = [*read_runs(), *read_runs(UNSEEN)]


def verdicts():
    """By client and scenario, whether a real Kafka 4 served it."""
    rows = [
        json.loads(line)
        for line in (UNSEEN.parent / "kafka-4.jsonl").read_text("utf-8").splitlines()
    ]
    return {(row["client"], row["scenario"]): row["works"] for row in rows}


def refused(run, target):
    minimums = facts.load_target(target).minimums
    return {
        key: min(versions)
        for key, versions in run.behaviour.requests.items()
        if min(versions) < minimums.get(key, 0)
    }


def test_every_target_loads_and_names_its_sources():
    assert facts.target_names() == ["kafka-4.0", "kafka-4.x", "kop"]
    assert all(facts.load_target(name).sources for name in facts.target_names())
    assert facts.DEFAULT_TARGET in facts.target_names()


def test_minimums_of_kafka_4_are_those_of_kip_896():
    minimums = facts.load_target("kafka-4.0").minimums
    assert {key: minimums[key] for key in (0, 1, 2, 8, 9, 11, 19, 20, 23, 32)} == {
        0: 3,
        1: 4,
        2: 1,
        8: 2,
        9: 1,
        11: 2,
        19: 2,
        20: 1,
        23: 2,
        32: 1,
    }
    assert not {3, 10, 12, 13, 14, 17, 18, 42} & minimums.keys()


def test_kafka_4_0_1_serves_join_group_0_again():
    strict, later = (facts.load_target(name).minimums for name in ("kafka-4.0", "kafka-4.x"))
    assert strict.keys() - later.keys() == {11}
    assert later.items() <= strict.items()


def test_kop_closes_on_newer_api_versions_request():
    assert (facts.load_target("kop").minimums, facts.load_target("kop").maximums) == ({}, {18: 3})
    assert facts.load_target("kafka-4.0").maximums == {}


def test_broker_only_requests_are_not_served_in_any_version():
    assert facts.load_target("kafka-4.0").minimums[6] == facts.NO_VERSION


def test_baseline_is_that_of_kip_896():
    libraries = facts.load_target("kafka-4.0").libraries
    assert {name: row.supported for name, row in libraries.items() if row.supported} == {
        "java": "2.1.0",
        "librdkafka": "1.8.2",
        "kafkajs": "1.15.0",
        "sarama": "1.29.1",
        "kafka-python": "2.0.2",
    }


@pytest.mark.parametrize("target", KAFKA_4)
def test_every_recorded_library_has_advice(target):
    libraries = facts.load_target(target).libraries
    assert set(libraries) == {run.library for run in RUNS}
    assert [
        name for name, row in libraries.items() if row.instead and not libraries[row.instead].lowest
    ] == []


@pytest.mark.parametrize("target", KAFKA_4)
def test_advised_versions_and_later_work_with_kafka_4_and_are_not_refused(
    target,
):
    """Not all recorded versions were tried with Kafka 4, but the requests of all are known."""
    libraries, works = facts.load_target(target).libraries, verdicts()
    judged, wrong = set(), []
    for run in RUNS:
        lowest = libraries[run.library].lowest
        if (
            lowest
            and not run.is_configured
            and version_numbers(run.version) >= version_numbers(lowest)
        ):
            if (run.client, run.scenario) in works:
                judged.add(run.library)
            if refused(run, target) or not works.get((run.client, run.scenario), True):
                wrong.append((run.client, run.scenario))
    assert wrong == []
    assert judged == {name for name, row in libraries.items() if row.lowest}


def test_wire_version_is_lowest_tried_or_follows_a_failed_one():
    works = verdicts()
    wrong = {}
    for name, row in facts.load_target("kafka-4.x").libraries.items():
        runs = [
            run
            for run in RUNS
            if run.library == name and not run.is_configured and (run.client, run.scenario) in works
        ]
        failing = {
            version_numbers(run.version) for run in runs if not works[run.client, run.scenario]
        }
        working = {version_numbers(run.version) for run in runs} - failing
        first = row.wire or row.supported
        if first and not max(failing, default=(0,)) < version_numbers(first) <= min(working):
            wrong[name] = first
    assert wrong == {}


def test_replaced_library_failed_with_its_last_release():
    works = verdicts()
    for name, row in facts.load_target("kafka-4.x").libraries.items():
        if row.instead:
            runs = [run for run in RUNS if run.library == name]
            (library,) = build_table(runs).libraries
            assert library.releases[-1] in {run.version for run in runs}
            assert [
                run.client
                for run in runs
                if works.get((run.client, run.scenario), not refused(run, "kafka-4.x"))
            ] == []


def test_library_with_protocol_setting_names_it():
    assert protocol_settings().keys() == {
        library.name
        for library in build_table(RUNS).libraries
        if library.protocol_config != "never"
    }


def test_target_can_be_a_user_file(tmp_path):
    path = tmp_path / "ours.toml"
    path.write_text('title = "Ours"\nsources = ["us"]\n[minimums]\n0 = 7\n')
    target = facts.load_target(str(path))
    assert (target.name, target.minimums, target.serves_bare_gssapi, target.libraries) == (
        "ours",
        {0: 7},
        True,
        {},
    )


def test_target_inherits_missing_values_from_like(tmp_path):
    path = tmp_path / "ours.toml"
    path.write_text(
        'title = "Ours"\nlike = "kafka-4.x"\nsources = ["us"]\n[minimums]\n3 = '
        '1\n[libraries.java]\nsupported = "3.0.0"\n'
    )
    target, other = facts.load_target(str(path)), facts.load_target("kafka-4.x")
    assert (target.title, target.sources) == ("Ours", ("us", *other.sources))
    assert target.minimums == {**other.minimums, 3: 1}
    assert target.libraries == {**other.libraries, "java": facts.Baseline(supported="3.0.0")}
    assert (target.maximums, target.serves_bare_gssapi) == ({}, False)


@pytest.mark.parametrize("name", ["kafka-5", "../targets/kafka-4.0", "", "/etc/passwd"])
def test_unknown_target_error_lists_targets(name):
    with pytest.raises(ValueError, match=r"use kafka-4\.0, kafka-4\.x, kop"):
        facts.load_target(name)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "title = 1",
        'title = "x"\nsources = []\n[minimums]\n[libraries.java]\n',
        'title = "x"\nsources = []\n[minimums]\nProduce = 3\n',
        'title = "x"\nsources = "us"\n[minimums]\n',
        'title = "x"\nsources = []\n[minimums]\n0 = "3"\n',
        'title = "x"\nsources = []\n[minimums]\n[libraries.java]\nsupported = 2.1\n',
        'title = "x"\nsources = []\n[minimums]\n[libraries.java]\nsupported = "2.x"\n',
        'title = "x"\nlike = "bad"\nsources = []\n[minimums]\n',
        "[[[",
    ],
)
def test_invalid_target_file_is_rejected(tmp_path, text):
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match="invalid target"):
        facts.load_target(str(path))


@pytest.mark.parametrize(
    "misspelt",
    ["minimum = 3", "[maximum]", "[library.java]", '[libraries.java]\nsupport = "2.1.0"'],
)
def test_unknown_key_in_target_is_named(tmp_path, misspelt):
    path = tmp_path / "bad.toml"
    path.write_text(f'title = "x"\nsources = []\nminimums = {{ 0 = 3 }}\n{misspelt}\n')
    with pytest.raises(
        ValueError, match=r"invalid target .*: .*(minimum|maximum|library|support)`"
    ):
        facts.load_target(str(path))


def test_generation_is_first_release_whose_client_sends_the_version():
    first = {(key, version): release for key, version, _, release in facts.generations()}
    assert (first[0, 2], first[0, 4], first[1, 17], first[8, 0], first[36, 0]) == (
        "0.10.0",
        "1.0",
        "3.9",
        "0.8.2",
        "1.0",
    )


def test_every_request_of_targets_and_generations_has_a_name():
    names = facts.api_names()
    assert (
        set(facts.load_target("kafka-4.0").minimums) | {key for key, *_ in facts.generations()}
        <= names.keys()
    )
    assert (names[0], names[18]) == ("Produce", "ApiVersions")
