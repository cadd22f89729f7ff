"""The user of tests that need just one, and the gateway's file of users."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from auth.users import PasswordHash, edit_users

# A colon, because drivers get `NAME:PASSWORD`, and characters common in LDAP passwords.
PASSWORD = "pass:word with=signs, and;more"
USER = ("alice", PASSWORD)
#: scrypt's ln: passwords of tests need no protection.
LOG_COST = 4


def users_file(folder: Path, names: Iterable[str] = (USER[0],)) -> Path:
    """Write a file with these users, all with PASSWORD."""
    file = folder / "users"
    with edit_users(file) as stored:
        stored.update({name: PasswordHash.of(PASSWORD, LOG_COST) for name in names})
    return file
