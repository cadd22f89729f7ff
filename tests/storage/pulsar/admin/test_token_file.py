"""The file with the token: read when it changes, never told of, and never the cause of an exception in the client library's thread."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage.log import StorageFailed
from storage.pulsar.admin.token_file import TokenFile


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "token"


def test_a_token_is_read_again_when_its_file_has_changed(file: Path) -> None:
    file.write_text("first\n")
    token = TokenFile(file)
    assert token() == token.read() == "first"
    file.write_text("the-second\n")
    assert token() == token.read() == "the-second"


def test_where_there_is_none_now_the_client_library_gets_the_one_before(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file.write_text("secret\n")
    token = TokenFile(file)
    assert token() == "secret"
    file.unlink()
    assert token() == "secret"
    assert str(file) in caplog.text
    assert "secret" not in caplog.text.replace(str(file), "")


@pytest.mark.parametrize(
    "written", [b"", b"\n", b"secret and more\n", b"secret\nlines\n", b"secret\xff\n"]
)
def test_a_file_without_a_token_is_no_token_and_the_client_library_gets_the_one_before(
    file: Path, written: bytes
) -> None:
    file.write_text("good\n")
    token = TokenFile(file)
    assert token.read() == "good"
    file.write_bytes(written)
    with pytest.raises(StorageFailed, match="holds no token") as failure:
        token.read()
    assert "secret" not in str(failure.value)
    assert token() == "good"


def test_a_library_that_asks_before_there_was_one_gets_none(file: Path) -> None:
    assert TokenFile(file)() == ""


def test_a_token_is_not_shown(file: Path) -> None:
    file.write_text("secret\n")
    token = TokenFile(file)
    token.read()
    assert "secret" not in repr(token)
