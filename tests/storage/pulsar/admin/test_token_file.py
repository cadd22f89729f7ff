"""The token file: reloaded on change, never logged, no exceptions in the library's thread."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage.log import StorageFailed
from storage.pulsar.admin.token_file import TokenFile


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "token"


def test_token_is_reloaded_when_file_changes(file: Path) -> None:
    file.write_text("first\n")
    token = TokenFile(file)
    assert token() == token.read() == "first"
    file.write_text("the-second\n")
    assert token() == token.read() == "the-second"


def test_library_gets_previous_token_if_file_is_missing(
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
def test_library_gets_previous_token_if_file_is_invalid(file: Path, written: bytes) -> None:
    file.write_text("good\n")
    token = TokenFile(file)
    assert token.read() == "good"
    file.write_bytes(written)
    with pytest.raises(StorageFailed, match="holds no token") as failure:
        token.read()
    assert "secret" not in str(failure.value)
    assert token() == "good"


def test_library_gets_empty_token_if_none_was_read(file: Path) -> None:
    assert TokenFile(file)() == ""


def test_repr_omits_token(file: Path) -> None:
    file.write_text("secret\n")
    token = TokenFile(file)
    token.read()
    assert "secret" not in repr(token)
