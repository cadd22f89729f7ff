"""Texts of cluster problems, and the role of a token."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage.pulsar.admin.cluster_problems import ClusterProblem, Remedies, role_of
from storage.pulsar.settings import PulsarSettings
from tests.storage.pulsar.secured_pulsar import token


def settings(file: Path | None = None) -> PulsarSettings:
    return PulsarSettings("pulsar://h:1", "http://h:1", token_file=file)


def test_problem_text_includes_remedy() -> None:
    assert str(ClusterProblem(True, "it is broken", "mend it")) == "it is broken. To do: mend it"


def test_reason_that_ends_with_a_full_stop_is_followed_by_no_other() -> None:
    assert str(ClusterProblem(True, "it is refused.", "mend it")) == "it is refused. To do: mend it"


def test_problem_text_is_one_line() -> None:
    assert (
        str(ClusterProblem(True, "refused: an error\n\tat some.place", "mend it"))
        == "refused: an error at some.place. To do: mend it"
    )


@pytest.mark.parametrize("role", ["gateway", "an odd one/ü?"])
def test_role_is_read_from_token(tmp_path: Path, role: str) -> None:
    (tmp_path / "token").write_text(token(role))
    assert role_of(settings(tmp_path / "token")) == role


@pytest.mark.parametrize(
    "written", ["", "opaque", "a.b.c", "a.e30.c", "a.W10.c", "a.eyJzdWIiOjF9.c"]
)
def test_role_missing_in_token_is_a_placeholder(tmp_path: Path, written: str) -> None:
    (tmp_path / "token").write_text(written)
    assert role_of(settings(tmp_path / "token")) == "ROLE"


def test_role_without_token_is_a_placeholder(tmp_path: Path) -> None:
    assert role_of(settings()) == role_of(settings(tmp_path / "none")) == "ROLE"


def test_setup_is_offered_for_own_namespaces_only() -> None:
    remedies = Remedies(settings())
    assert "--pulsar-setup" in remedies.retain("public/__kafka")
    assert "--pulsar-setup" not in remedies.retain("other/one")
