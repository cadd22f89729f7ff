"""What is said of a problem, and whom a token is for."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage.pulsar.admin.cluster_problems import ClusterProblem, Remedies, role_of
from storage.pulsar.settings import PulsarSettings
from tests.storage.pulsar.secured_pulsar import token


def settings(file: Path | None = None) -> PulsarSettings:
    return PulsarSettings("pulsar://h:1", "http://h:1", token_file=file)


def test_a_problem_is_said_with_what_to_do() -> None:
    assert str(ClusterProblem(True, "it is broken", "mend it")) == "it is broken. To do: mend it"


def test_a_problem_is_one_line_whatever_a_broker_has_said() -> None:
    assert (
        str(ClusterProblem(True, "refused: an error\n\tat some.place", "mend it"))
        == "refused: an error at some.place. To do: mend it"
    )


@pytest.mark.parametrize("role", ["gateway", "an odd one/ü?"])
def test_the_role_of_a_token_is_seen(tmp_path: Path, role: str) -> None:
    (tmp_path / "token").write_text(token(role))
    assert role_of(settings(tmp_path / "token")) == role


@pytest.mark.parametrize(
    "written", ["", "opaque", "a.b.c", "a.e30.c", "a.W10.c", "a.eyJzdWIiOjF9.c"]
)
def test_a_token_that_tells_no_role_is_no_problem_here(tmp_path: Path, written: str) -> None:
    (tmp_path / "token").write_text(written)
    assert role_of(settings(tmp_path / "token")) == "ROLE"


def test_without_a_token_there_is_no_role_to_see(tmp_path: Path) -> None:
    assert role_of(settings()) == role_of(settings(tmp_path / "none")) == "ROLE"


def test_the_gateway_offers_to_set_up_its_own_namespaces_and_no_others() -> None:
    remedies = Remedies(settings())
    assert "--pulsar-setup" in remedies.retain("public/__kafka")
    assert "--pulsar-setup" not in remedies.retain("other/one")
