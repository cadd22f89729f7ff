from __future__ import annotations

import io
import os
import pty
import subprocess
import sys

import click
import pytest

from auth import users
from gateway.cli import passwords


@pytest.mark.parametrize("raw", [b"s3cret", b"s3cret\n", b"s3cret\r\nnot this\n"])
def test_first_line_of_file_is_password(raw):
    assert passwords.read(io.BytesIO(raw)) == "s3cret"


def test_spaces_are_part_of_password():
    assert passwords.read(io.BytesIO(b" a b \n")) == " a b "


@pytest.mark.parametrize("raw", [b"", b"\n", b"a\0b", b"\xff"])
def test_invalid_password_is_rejected(raw):
    with pytest.raises(click.ClickException):
        passwords.read(io.BytesIO(raw))


def test_without_terminal_there_is_no_prompt(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("s3cret\n"))
    with pytest.raises(click.ClickException, match="give it in a file"):
        passwords.read(None)


def test_terminal_prompts_twice_without_echo(tmp_path):
    terminal, end = pty.openpty()
    command = [
        sys.executable,
        "-m",
        "gateway",
        "users",
        "add",
        "alice",
        "--file",
        str(tmp_path / "users"),
    ]
    process = subprocess.Popen(command, stdin=end, stdout=end, stderr=end, start_new_session=True)
    os.close(end)
    seen = b""
    try:
        for prompt in (b"Password: ", b"confirmation: "):
            while not seen.endswith(prompt):
                seen += os.read(terminal, 1000)
            os.write(terminal, b"s3cret\n")
        assert process.wait(120) == 0
    finally:
        process.kill()
        process.wait()
        os.close(terminal)
    assert b"s3cret" not in seen
    assert users.read_users(tmp_path / "users")["alice"].matches("s3cret")
