from __future__ import annotations

import json
import stat

import pytest
from click.testing import CliRunner

from auth import users as users_file
from gateway.cli.main import main


@pytest.fixture
def path(tmp_path):
    return tmp_path / "users"


@pytest.fixture
def kopgate(path):
    def run(command, *arguments, password="s3cret\n"):
        return CliRunner().invoke(
            main, ["users", command, *arguments, "--file", str(path)], input=password
        )

    return run


def add(kopgate, name, *arguments, password="s3cret\n"):
    return kopgate("add", name, "--password-file", "-", *arguments, password=password)


def test_added_user_is_stored_hashed(kopgate, path):
    assert add(kopgate, "alice").exit_code == 0
    assert users_file.read_users(path)["alice"].matches("s3cret")
    assert "s3cret" not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_existing_password_is_kept_without_replace(kopgate, path):
    add(kopgate, "alice")
    refused = add(kopgate, "alice", password="new\n")
    assert refused.exit_code == 1
    assert "--replace" in refused.stderr
    assert users_file.read_users(path)["alice"].matches("s3cret")
    assert add(kopgate, "alice", "--replace", password="new\n").exit_code == 0
    assert users_file.read_users(path)["alice"].matches("new")


def test_removed_user_is_deleted_from_file(kopgate, path):
    add(kopgate, "alice")
    add(kopgate, "bob")
    assert kopgate("remove", "alice").exit_code == 0
    assert list(users_file.read_users(path)) == ["bob"]


def test_removing_unknown_user_fails(kopgate):
    add(kopgate, "alice")
    result = kopgate("remove", "bob")
    assert (result.exit_code, result.stderr) == (1, "Error: bob does not exist\n")


def test_users_are_listed_in_order(kopgate):
    for name in ("bob", "alice"):
        add(kopgate, name)
    assert kopgate("list").stdout == "alice\nbob\n"
    assert json.loads(kopgate("list", "--json").stdout) == ["alice", "bob"]


def test_list_warns_if_users_file_is_readable_by_others(kopgate, path):
    add(kopgate, "alice")
    path.chmod(0o644)
    result = kopgate("list")
    assert (result.stdout, result.exit_code) == ("alice\n", 0)
    assert "chmod 600" in result.stderr


@pytest.mark.parametrize("name", ["", "a:b", "#a", " a", "a\nb"])
def test_invalid_user_name_is_rejected(kopgate, path, name):
    assert add(kopgate, name).exit_code == 2
    assert not path.exists()


@pytest.mark.parametrize("command", ["list", "remove"])
def test_missing_file_is_named(kopgate, path, command):
    result = kopgate(command, *(["alice"] if command == "remove" else []))
    assert result.exit_code == 1
    assert str(path) in result.stderr


def test_broken_file_is_named_and_not_changed(kopgate, path):
    path.write_text("alice:s3cret\n")
    result = add(kopgate, "bob")
    assert result.exit_code == 1
    assert f"{path}, line 1" in result.stderr
    assert path.read_text() == "alice:s3cret\n"


def test_no_option_takes_a_password(kopgate):
    assert kopgate("add", "alice", "--password", "s3cret").exit_code == 2
