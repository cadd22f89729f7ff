"""`kopgate users`: the file of users that may authenticate.

Passwords are prompted for or read from a file, because arguments are visible in process lists.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import BinaryIO

import click

from auth import users as users_file
from auth.users import PasswordHash, UsersFileError
from gateway.cli import passwords

_FILE = click.option(
    "--file",
    "path",
    required=True,
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Users file (setting users_file).",
)


@click.group()
def users() -> None:
    """Manage users for SASL/PLAIN. A running gateway picks up changes within a second."""


@users.command()
@click.argument("name")
@_FILE
@click.option(
    "--password-file",
    type=click.File("rb"),
    metavar="FILE",
    help="File whose first line is the password; - reads stdin. Default: prompt.",
)
@click.option("--replace", is_flag=True, help="Replace the password of an existing user.")
def add(name: str, path: Path, password_file: BinaryIO | None, replace: bool) -> None:
    """Add the user NAME. A missing file is created, readable by its owner only."""
    try:
        users_file.check_name(name)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    if not replace and name in (_read(path) if path.exists() else {}):
        raise click.ClickException(f"{name} already exists; use --replace to change the password")
    stored = PasswordHash.of(passwords.read(password_file, confirm=True))
    try:
        with users_file.edit_users(path) as found:
            found[name] = stored
    except UsersFileError as error:
        raise click.ClickException(str(error)) from None
    click.echo(f"{name} added")


@users.command()
@click.argument("name")
@_FILE
def remove(name: str, path: Path) -> None:
    """Remove the user NAME. Open connections stay open."""
    _read(path)
    try:
        with users_file.edit_users(path) as found:
            was_there = found.pop(name, None) is not None
    except UsersFileError as error:
        raise click.ClickException(str(error)) from None
    if not was_there:
        raise click.ClickException(f"{name} does not exist")
    click.echo(f"{name} removed")


@users.command("list")
@_FILE
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
def list_users(path: Path, as_json: bool) -> None:
    """List the user names, one per line."""
    names = sorted(_read(path))
    if warning := users_file.permission_warning(path):
        click.echo(f"kopgate: {warning}", err=True)
    if as_json:
        click.echo(json.dumps(names, ensure_ascii=False))
        return
    for name in names:
        click.echo(name)


def _read(path: Path) -> dict[str, PasswordHash]:
    try:
        return users_file.read_users(path)
    except UsersFileError as error:
        raise click.ClickException(str(error)) from None
