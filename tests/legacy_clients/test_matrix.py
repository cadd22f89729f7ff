"""The one table of clients, and those who repeat its names: tox.ini, docker-compose.yml and the image that its services run in."""

from __future__ import annotations

import configparser
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.legacy_clients.clients import table
from tests.legacy_clients.pairs import can_work, chosen_pairs, members

ROOT = Path(__file__).parent.parent.parent
NAMES = tuple(table())
IMAGE = (Path(__file__).parent / "Dockerfile").read_text("utf-8")


@pytest.fixture
def services() -> dict[str, Any]:
    whole = yaml.safe_load((ROOT / "docker-compose.yml").read_text("utf-8"))["services"]
    return {name: service for name, service in whole.items() if "profiles" in service}


def test_tox_has_an_environment_for_each_client() -> None:
    tox = configparser.ConfigParser()
    tox.read(ROOT / "tox.ini", "utf-8")
    assert f"testenv:legacy-{{{','.join(NAMES)}}}" in tox.sections()


def test_compose_has_a_service_for_each_client(services: dict[str, Any]) -> None:
    assert {name: service["command"] for name, service in services.items()} == {
        f"legacy-{name}": ["--client", name] for name in NAMES
    }


def test_a_clients_service_is_one_that_compose_takes_and_comes_up_only_when_asked_for(
    services: dict[str, Any],
) -> None:
    """The keys and the shapes of the Compose specification, for machines without Docker."""
    for name, service in services.items():
        assert re.fullmatch(r"[a-zA-Z0-9._-]+", name)
        assert service.keys() == {"profiles", "build", "image", "volumes", "command"}
        assert service["profiles"] == ["legacy"]
        assert service["build"] == {"context": ".", "dockerfile": "tests/legacy_clients/Dockerfile"}
        assert all(isinstance(word, str) for word in service["command"])


def test_the_image_has_every_python_that_the_table_names() -> None:
    (installed,) = re.findall(r"pyenv install (.*)", IMAGE)
    assert {version.rpartition(".")[0] for version in installed.split()} == {
        row.python for row in table().values()
    } - {"", "3"}


def test_the_image_has_all_commands_that_the_real_clients_need() -> None:
    """As `.ci/run` names them; Python's own image has a compiler, Go comes from its own, and no real client is looked at with Chromium."""
    (needed,) = re.findall(
        r"^declare -A needed=\((.*)\)$", (ROOT / ".ci" / "run").read_text("utf-8"), re.MULTILINE
    )
    packages = dict(re.findall(r"\[(\w+)\]=(\S+)", needed))
    elsewhere = {"go", "cc", "make", "chromium"}
    assert {package for command, package in packages.items() if command not in elsewhere} <= set(
        IMAGE.split()
    )
    assert "COPY --from=go /usr/local/go /usr/local/go" in IMAGE


def test_every_member_leads_another_and_follows_another() -> None:
    leading, following = (set(map(str, side)) for side in zip(*chosen_pairs(table()), strict=True))
    assert leading == following == set(map(str, members(table())))


def test_who_is_put_together_can_work_together() -> None:
    assert [pair for pair in chosen_pairs(table()) if not can_work(*pair)] == []
