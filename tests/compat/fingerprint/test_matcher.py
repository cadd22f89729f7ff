"""Library and version identification with a small, hand-written table."""

from __future__ import annotations

import pytest

from compat.fingerprint.behaviour import Behaviour
from compat.fingerprint.matcher import MIN_SHARE, identify
from compat.fingerprint.table import ClientLibrary, LibraryTable, VersionProfile

PRODUCE, FETCH, METADATA, API_VERSIONS = 0, 1, 3, 18


def behaviour(
    produce=None,
    fetch=None,
    metadata=None,
    asks=None,
    openings=(),
    habits=None,
    client_id_library=None,
):
    sent = {PRODUCE: produce, FETCH: fetch, METADATA: metadata, API_VERSIONS: asks}
    requests = {
        key: frozenset([version] if isinstance(version, int) else version)
        for key, version in sent.items()
        if version is not None
    }
    return Behaviour(
        requests,
        frozenset(openings),
        {name: frozenset(values) for name, values in (habits or {}).items()},
        client_id_library,
    )


def library(name, by_version, protocol_config="never", configured=(), releases=()):
    profiles = tuple(VersionProfile(version, did) for version, did in by_version.items())
    all_ = tuple(dict.fromkeys([*releases, *by_version])) if not releases else tuple(releases)
    return ClientLibrary(
        name,
        protocol_config,
        (f"{name}-.*",),
        all_,
        profiles,
        tuple(VersionProfile(version, did) for version, did in configured),
    )


RELEASES = ("1.0", "1.1", "1.2", "2.0", "2.1", "3.0", "3.1")
PATIENT = {"fetch_max_wait_ms": ["5000"], "fetch_min_bytes": ["1"]}
HASTY = {"fetch_max_wait_ms": ["100"], "fetch_min_bytes": ["1"]}
ELK = library(
    "elk",
    {
        "1.0": behaviour(0, 0, 0, habits=PATIENT, openings=[(3, 1)]),
        "2.0": behaviour(3, 4, 2, 0, habits=PATIENT, openings=[(18, 3, 1)]),
        "3.0": behaviour(7, 10, 7, 2, habits=PATIENT, openings=[(18, 3, 1)]),
    },
    releases=RELEASES,
)
OWL = library(
    "owl",
    {
        "1.0": behaviour(0, 0, 0, habits=HASTY, openings=[(3, 10, 1)]),
        "2.0": behaviour(2, 3, (0, 1), 0, habits=HASTY, openings=[(18, 3, 10)]),
    },
    protocol_config="unasked",
    configured=[("2.0", behaviour(1, 1, 0, habits=HASTY, openings=[(3, 10, 1)]))],
    releases=("1.0", "1.5", "2.0", "2.5"),
)
TABLE = LibraryTable((ELK, OWL))


def versions(found):
    return found.library, found.version_low, found.version_high


def test_recorded_behaviour_matches_all_versions_between_its_neighbours():
    assert versions(identify(behaviour(3, 4, 2, 0, habits=PATIENT), TABLE)) == ("elk", "1.1", "2.1")


def test_behaviour_between_two_recorded_versions_gives_a_version_between_them():
    assert versions(identify(behaviour(5, 7, 5, 1, habits=PATIENT), TABLE)) == ("elk", "2.1", "2.1")


def test_older_or_newer_than_all_recordings_gives_open_range():
    assert versions(identify(behaviour(0, 0, 0, habits=PATIENT), TABLE)) == ("elk", "1.0", "1.2")
    assert versions(identify(behaviour(9, 12, 9, 3, habits=PATIENT), TABLE)) == ("elk", "3.1", None)


def test_version_below_highest_sent_is_no_contradiction():
    both = identify(behaviour(2, 3, 0, 0, habits=HASTY), TABLE)
    assert both.library == "owl"
    assert both.version_low <= "2.0" <= (both.version_high or "9")


def test_client_with_protocol_setting_may_be_newer():
    found = identify(behaviour(1, 1, 0, habits=HASTY), TABLE)
    assert versions(found) == ("owl", "1.5", None)


def test_api_versions_request_rules_out_protocol_setting():
    found = identify(behaviour(1, 2, 0, 0, habits=HASTY), TABLE)
    assert found.library == "owl"
    assert found.version_high == "1.5"


def test_habits_distinguish_libraries_with_equal_requests():
    assert identify(behaviour(0, 0, 0, habits=HASTY), TABLE).library == "owl"
    assert identify(behaviour(0, 0, 0, habits=PATIENT), TABLE).library == "elk"
    found = identify(behaviour(0, 0, 0), TABLE)
    assert (found.library, found.version_low, found.version_high, found.confidence) == (
        None,
        None,
        None,
        0.0,
    )
    assert set(found.candidates) == {"elk", "owl"}
    assert found.evidence == ("may be elk or owl",)


@pytest.mark.parametrize(("wait", "opening"), [("900", (18, 3)), ("5000", (3, 0)), ("900", (3, 0))])
def test_combination_in_one_version_outweighs_parts_of_several_versions(wait, opening):
    old, new = {"fetch_max_wait_ms": ["900"]}, {"fetch_max_wait_ms": ["5000"]}
    middle = behaviour(3, 4, 2, 0, habits=new, openings=[(18, 3)])
    latest = behaviour(7, 10, 7, 2, habits=new, openings=[(18, 3)])
    fox = library(
        "fox",
        {"1.0": behaviour(0, 0, 0, habits=old, openings=[(3, 0)]), "2.0": middle, "3.0": latest},
    )
    hare = library(
        "hare",
        {
            "3.0": behaviour(
                7,
                10,
                7,
                2,
                habits={"fetch_max_wait_ms": ["900", "5000"]},
                openings=[(3, 0), (18, 3)],
            )
        },
    )
    seen = {"fetch_max_wait_ms": [wait]}
    assert (
        identify(
            behaviour(7, 10, 7, 2, habits=seen, openings=[opening]), LibraryTable((fox, hare))
        ).library
        == "hare"
    )
    alike = identify(latest, LibraryTable((fox, hare)))
    assert (alike.library, alike.evidence) == (None, ("may be fox or hare",))


def test_default_client_id_outweighs_a_habit():
    assert (
        identify(behaviour(0, 0, 0, habits=HASTY, client_id_library="elk"), TABLE).library == "elk"
    )


@pytest.mark.parametrize(
    "found", [identify(behaviour(3, 0, 7, 2), TABLE), identify(behaviour(0, 12, 0, 0), TABLE)]
)
def test_unknown_behaviour_matches_no_library(found):
    assert (found.library, found.confidence) == (None, 0.0)


def test_confidence_is_lower_for_unseen_behaviour():
    sure = identify(behaviour(7, 10, 7, 2, habits=PATIENT, openings=[(18, 3, 1)]), TABLE)
    strange = {"fetch_max_wait_ms": ["250"], "fetch_min_bytes": ["9"], "acks": ["1"]}
    unsure = identify(behaviour(7, 10, 7, 2, habits=strange, openings=[(18, 3, 1)]), TABLE)
    assert MIN_SHARE <= unsure.confidence < sure.confidence < 1.0


def test_evidence_is_returned():
    found = identify(behaviour(3, 4, 2, 0, habits=PATIENT, client_id_library="elk"), TABLE)
    assert found.evidence[0] == "requests as elk 2.0"
    assert any("fetch_max_wait_ms 5000" in line for line in found.evidence)
    assert "default client id of the library" in found.evidence
