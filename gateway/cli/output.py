"""Output of commands: tables and JSON on stdout, errors on stderr with exit code 1."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click
from kafka import errors

#: What to do about an error, by its code.
_REMEDIES = {
    errors.SecurityDisabledError.errno: (
        "start the gateway with authorizer=acls, or Kafka with authorizer.class.name"
    ),
    errors.ClusterAuthorizationFailedError.errno: (
        "log in (--user) as a super user or with this permission on the cluster"
    ),
}


def print_table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    click.echo("\n".join(format_table(head, rows)))


def print_json(value: Any) -> None:
    click.echo(printable(json.dumps(value, ensure_ascii=False)))


def printable(text: str) -> str:
    """Return text of clients with control characters as JSON's escapes.

    Group and client ids may contain any characters, also those that forge lines or control the
    terminal.
    """
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else _escape(letter) for letter in text)


def _escape(letter: str) -> str:
    units = letter.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def format_table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    """Return lines with aligned columns; None is shown as a dash."""
    cells = [
        list(head),
        *(["-" if cell is None else printable(str(cell)) for cell in row] for row in rows),
    ]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]


def count_of(number: int, noun: str) -> str:
    return f"{number or 'no'} {noun}{'' if number == 1 else 's'}"


def print_results(
    rows: Iterable[Mapping[str, Any]], done: str, as_json: bool, allowed: Iterable[int] = ()
) -> None:
    """Print the outcome of each `name`.

    Exits with 1 if there is an `error_code` that is not in `allowed`.
    """
    found = sorted(rows, key=lambda row: str(row["name"]))
    if as_json:
        print_json(
            [
                {
                    "name": row["name"],
                    "error_code": row["error_code"],
                    "error": _reason(row) if row["error_code"] else None,
                }
                for row in found
            ]
        )
    else:
        for row in found:
            if row["error_code"] == 0:
                click.echo(printable(f"{row['name']} {done}"))
    exit_if_errors(error_lines(row for row in found if row["error_code"] not in allowed))


def error_lines(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return one line for each row with an `error_code`."""
    return [printable(f"{row['name']}: {_reason(row)}") for row in rows if row["error_code"]]


def exit_if_errors(reasons: Sequence[str]) -> None:
    """Print the errors and exit with 1, if there are any."""
    for reason in reasons:
        click.echo(f"Error: {reason}", err=True)
    if reasons:
        sys.exit(1)


def error_reason(code: int, message: str | None) -> str:
    """Return the text of an error of a server, with what to do about it."""
    error = errors.for_code(code)
    text = str(message or error.description or error.__name__)
    return f"{text.rstrip('.')}; {_REMEDIES[code]}" if code in _REMEDIES else text


def _reason(row: Mapping[str, Any]) -> str:
    return error_reason(row["error_code"], row.get("error_message"))
