"""`kopgate settings`: lists the settings from the model.

docs/settings.md is its output with `--markdown`.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

import click

from gateway.settings.model import SECTIONS

_MARKDOWN_HEAD = """\
# Settings

Generated from the settings themselves (`kopgate settings --markdown > docs/settings.md`). Where
they are set and which source takes precedence: [operations.md](operations.md#settings). Times are
in milliseconds, sizes in bytes; -1 means no limit where it is allowed."""


@click.command()
@click.option("--markdown", is_flag=True, help="Print docs/settings.md.")
def settings(markdown: bool) -> None:
    """List every setting with its default and description.

    In a file: `num_partitions = 3`. In the environment: KOPGATE_NUM_PARTITIONS=3. As a flag: --set
    num_partitions=3. Outside TOML, lists are `a,b` and tables `name:value,name:value`.
    """
    click.echo(as_markdown() if markdown else as_text())


def as_text() -> str:
    """Return one paragraph per setting."""
    return "\n\n".join(
        f"{name} = {default}\n{_indented(meaning)}"
        for title in SECTIONS
        for name, default, meaning in _rows(title)
    )


def as_markdown() -> str:
    """Return docs/settings.md: a table for each section, with one row per setting."""
    parts = [_MARKDOWN_HEAD]
    for title in SECTIONS:
        rows = [
            f"| `{name}` | `{default}` | {meaning.replace('|', chr(92) + '|')} |"
            for name, default, meaning in _rows(title)
        ]
        head = ["| setting | default | what it is for |", "|---|---|---|"]
        parts.append("\n".join([f"## {title}", "", *head, *rows]))
    return "\n\n".join(parts)


def _indented(text: str) -> str:
    return textwrap.fill(
        text, 110, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False
    )


def _rows(title: str) -> list[tuple[str, str, str]]:
    return [
        (name, _format_value(field.default), field.description or "")
        for name, field in SECTIONS[title].model_fields.items()
    ]


def _format_value(value: Any) -> str:
    match value:
        case None:
            return "none"
        case bool():
            return str(value).lower()
        case tuple() | list():
            return ",".join(_format_value(item) for item in value) or "none"
        case Mapping():
            return (
                ",".join(f"{name}:{_format_value(item)}" for name, item in value.items()) or "none"
            )
    return str(value)
