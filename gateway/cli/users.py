"""`kopgate users`: users that may log in, in the users file (PLAIN) or in a server (SCRAM).

Passwords are prompted for or read from a file, because arguments are visible in process lists.
"""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

import click

from auth import users as users_file
from auth.scram import MAX_ITERATIONS, MIN_ITERATIONS
from auth.users import PasswordHash, UsersFileError
from gateway.cli import passwords
from gateway.cli.connect import ConnectOptions, connected, with_optional_server
from gateway.cli.output import print_json, print_results, print_table
from gateway.cli.scram_users import CODES, add_scram_user, remove_scram_user, scram_users

_FILE = click.option(
    "--file",
    "path",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Users file (setting users_file) with the users of PLAIN.",
)


@click.group()
def users() -> None:
    """Manage the users of SASL: those of PLAIN in a file, those of SCRAM in a server.

    \b
    kopgate users add alice --file users
    kopgate users add alice --bootstrap-server HOST:PORT --mechanism SCRAM-SHA-256

    A running gateway picks up changes of its users file within a second. SCRAM credentials are
    kept by the server: the gateway, or any other Kafka server from 2.7 on.
    """


@users.command()
@click.argument("name")
@_FILE
@click.option(
    "--mechanism",
    type=click.Choice(list(CODES)),
    help="Mechanism of the credential; required with --bootstrap-server.",
)
@click.option(
    "--iterations",
    type=click.IntRange(MIN_ITERATIONS, MAX_ITERATIONS),
    metavar="N",
    help=f"Cost of guessing the password of a SCRAM credential.  [default: {MIN_ITERATIONS}]",
)
@click.option(
    "--password-file",
    type=click.File("rb"),
    metavar="FILE",
    help="File whose first line is the password of NAME; - reads stdin. Default: prompt.",
)
@click.option("--replace", is_flag=True, help="Replace the password of an existing user.")
@with_optional_server
def add(
    server: ConnectOptions | None,
    as_json: bool,
    name: str,
    path: Path | None,
    mechanism: str | None,
    iterations: int | None,
    password_file: BinaryIO | None,
    replace: bool,
) -> None:
    """Add the user NAME.

    A missing users file is created, readable by its owner only. In a server, a user has one SCRAM
    credential for each mechanism.
    """
    if server is None:
        if mechanism or iterations:
            raise click.UsageError("--mechanism and --iterations need --bootstrap-server")
        _add_to_file(_required(path), name, password_file, replace)
    else:
        _refuse_file(path)
        if mechanism is None:
            raise click.UsageError(f"give --mechanism: {' or '.join(CODES)}")
        _add_to_server(
            server, name, mechanism, iterations or MIN_ITERATIONS, password_file, replace
        )
    print_results([{"name": name, "error_code": 0}], "added", as_json)


@users.command()
@click.argument("name")
@_FILE
@click.option(
    "--mechanism",
    type=click.Choice(list(CODES)),
    help="Remove only this SCRAM credential.  [default: all of the user]",
)
@with_optional_server
def remove(
    server: ConnectOptions | None,
    as_json: bool,
    name: str,
    path: Path | None,
    mechanism: str | None,
) -> None:
    """Remove the user NAME. Open connections stay open."""
    if server is None:
        if mechanism:
            raise click.UsageError("--mechanism needs --bootstrap-server")
        _remove_from_file(_required(path), name)
    else:
        _refuse_file(path)
        _remove_from_server(server, name, mechanism)
    print_results([{"name": name, "error_code": 0}], "removed", as_json)


@users.command("list")
@_FILE
@with_optional_server
def list_users(server: ConnectOptions | None, as_json: bool, path: Path | None) -> None:
    """List the users: the names in a file, or the SCRAM credentials of a server."""
    if server is None:
        _list_file(_required(path), as_json)
        return
    _refuse_file(path)
    with connected(server) as client:
        found = scram_users(client)
    if as_json:
        print_json(
            [
                {"name": one.name, "mechanism": one.mechanism, "iterations": one.iterations}
                for one in found
            ]
        )
    elif found:
        print_table(
            ["USER", "MECHANISM", "ITERATIONS"],
            [[one.name, one.mechanism, one.iterations] for one in found],
        )


def _required(path: Path | None) -> Path:
    if path is None:
        raise click.UsageError("give --file (PLAIN) or --bootstrap-server (SCRAM)")
    return path


def _refuse_file(path: Path | None) -> None:
    if path is not None:
        raise click.UsageError("give either --file (PLAIN) or --bootstrap-server (SCRAM)")


def _add_to_file(path: Path, name: str, password_file: BinaryIO | None, replace: bool) -> None:
    try:
        users_file.check_name(name)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    if not replace and name in (_read(path) if path.exists() else {}):
        raise _exists(name)
    stored = PasswordHash.of(passwords.read(password_file, confirm=True))
    try:
        with users_file.edit_users(path) as found:
            found[name] = stored
    except UsersFileError as error:
        raise click.ClickException(str(error)) from None


def _remove_from_file(path: Path, name: str) -> None:
    _read(path)
    try:
        with users_file.edit_users(path) as found:
            was_there = found.pop(name, None) is not None
    except UsersFileError as error:
        raise click.ClickException(str(error)) from None
    if not was_there:
        raise click.ClickException(f"{name} does not exist")


def _list_file(path: Path, as_json: bool) -> None:
    names = sorted(_read(path))
    if warning := users_file.permission_warning(path):
        click.echo(f"kopgate: {warning}", err=True)
    if as_json:
        print_json(names)
        return
    for name in names:
        click.echo(name)


def _add_to_server(
    server: ConnectOptions,
    name: str,
    mechanism: str,
    iterations: int,
    password_file: BinaryIO | None,
    replace: bool,
) -> None:
    with connected(server) as client:
        if not replace and mechanism in {one.mechanism for one in scram_users(client, name)}:
            raise _exists(f"{name} ({mechanism})")
        password = passwords.read(password_file, confirm=True, owner=name)
        add_scram_user(client, name, mechanism, iterations, password)


def _remove_from_server(server: ConnectOptions, name: str, mechanism: str | None) -> None:
    with connected(server) as client:
        found = {one.mechanism for one in scram_users(client, name)}
        chosen = sorted(found if mechanism is None else found & {mechanism})
        if not chosen:
            what = name if mechanism is None else f"{name} ({mechanism})"
            raise click.ClickException(f"{what} does not exist")
        remove_scram_user(client, name, chosen)


def _exists(what: str) -> click.ClickException:
    return click.ClickException(f"{what} already exists; use --replace to change the password")


def _read(path: Path) -> dict[str, PasswordHash]:
    try:
        return users_file.read_users(path)
    except UsersFileError as error:
        raise click.ClickException(str(error)) from None
