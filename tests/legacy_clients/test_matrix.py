"""The table of clients agrees with tox.ini, docker-compose.yml and the image of its services."""

from __future__ import annotations

import configparser
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.legacy_clients.clients import ends_of_libraries, table
from tests.legacy_clients.pairs import can_work, chosen_pairs, is_short_form, members

ROOT = Path(__file__).parent.parent.parent
NAMES = tuple(table())
IMAGE = (Path(__file__).parent / "Dockerfile").read_text("utf-8")


@pytest.fixture
def services() -> dict[str, Any]:
    """Those of the profile or with its prefix; other profiles start gateways."""
    whole = yaml.safe_load((ROOT / "docker-compose.yml").read_text("utf-8"))["services"]
    return {
        name: service
        for name, service in whole.items()
        if name.startswith("legacy-") or "legacy" in service.get("profiles", ())
    }


def test_tox_has_an_environment_for_each_client() -> None:
    tox = configparser.ConfigParser()
    tox.read(ROOT / "tox.ini", "utf-8")
    assert f"testenv:legacy-{{{','.join(NAMES)}}}" in tox.sections()


def test_compose_has_a_service_for_each_client(services: dict[str, Any]) -> None:
    assert {name: service["command"] for name, service in services.items()} == {
        f"legacy-{name}": ["--client", name] for name in NAMES
    }


def test_service_of_a_client_is_valid_and_only_in_the_profile_legacy(
    services: dict[str, Any],
) -> None:
    """Checks keys and types of the Compose specification, for machines without Docker."""
    for name, service in services.items():
        assert re.fullmatch(r"[a-zA-Z0-9._-]+", name)
        assert service.keys() == {"profiles", "build", "image", "volumes", "command"}
        assert service["profiles"] == ["legacy"]
        assert service["build"] == {"context": ".", "dockerfile": "tests/legacy_clients/Dockerfile"}
        assert all(isinstance(word, str) for word in service["command"])


def test_image_has_every_python_of_the_table() -> None:
    (installed,) = re.findall(r"pyenv install (.*)", IMAGE)
    assert {version.rpartition(".")[0] for version in installed.split()} == {
        row.python for row in table().values()
    } - {"", "3"}


def test_image_has_all_commands_of_the_real_clients() -> None:
    """Compares with `.ci/run`. Python's image has a compiler, Go is copied from its image, and real
    clients do not need Chromium, a proxy or a KDC.
    """
    (needed,) = re.findall(
        r"^declare -A needed=\((.*?)^\)$",
        (ROOT / ".ci" / "run").read_text("utf-8"),
        re.MULTILINE | re.DOTALL,
    )
    packages = dict(re.findall(r"\[(\w+)\]=(\S+)", needed))
    elsewhere = {"go", "cc", "make", "chromium", "haproxy", "krb5kdc", "kinit"}
    assert {package for command, package in packages.items() if command not in elsewhere} <= set(
        IMAGE.split()
    )
    assert "COPY --from=go /usr/local/go /usr/local/go" in IMAGE


def test_every_member_leads_and_follows_in_a_chosen_pair() -> None:
    leading, following = (set(map(str, side)) for side in zip(*chosen_pairs(table()), strict=True))
    assert leading == following == set(map(str, members(table())))


def test_oldest_and_newest_member_of_each_library_are_in_a_pair_of_the_short_form() -> None:
    short = [pair for pair in chosen_pairs(table()) if is_short_form(pair, table())]
    ends = ends_of_libraries(members(table()))
    assert ends <= {client.name for pair in short for client in pair}


def test_chosen_pairs_can_share_a_group() -> None:
    assert [pair for pair in chosen_pairs(table()) if not can_work(*pair)] == []
