"""Reads a password from the first line of a file or from the terminal, never from an argument."""

from __future__ import annotations

import sys
from typing import BinaryIO

import click


def read(file: BinaryIO | None, confirm: bool = False, owner: str | None = None) -> str:
    """Return the password from `file`, or prompt for it (twice with `confirm`).

    The prompt names `owner`, the user whose password is asked for.

    Raises ClickException if there is no valid password.
    """
    if file is not None:
        text = _first_line(file.read())
    elif sys.stdin.isatty():
        prompt = "Password" if owner is None else f"Password of {owner}"
        text = str(click.prompt(prompt, hide_input=True, confirmation_prompt=confirm, err=True))
    else:
        raise click.ClickException(
            "no terminal to prompt for the password; give it in a file (--help)"
        )
    if not text or "\0" in text:
        raise click.ClickException("the password is empty or contains a zero byte")
    return text


def _first_line(raw: bytes) -> str:
    try:
        return raw.split(b"\n", 1)[0].removesuffix(b"\r").decode("utf-8")
    except UnicodeDecodeError:
        raise click.ClickException("the password is not UTF-8") from None
