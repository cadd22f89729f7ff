"""Options of `kopgate groups reset-offsets`: the target offsets and the partitions."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import wraps
from typing import Any

import click

from gateway.cli.groups.reset_plan import ResetScope, ResetTarget, TargetKind

_SCOPE = re.compile(r"(?P<topic>[^:]+(?:://[^:]+)?)(?::(?P<partitions>[0-9]+(?:,[0-9]+)*))?")
"""A topic by its Kafka or Pulsar name, with optional partitions after a colon."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _timestamp_ms(context: click.Context, option: click.Parameter, text: str | None) -> int | None:
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is not a time like 2026-11-21T10:00:00 or 2026-11-21T10:00:00+01:00"
        ) from None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    if moment < _EPOCH:
        raise click.BadParameter(f"{text!r} is before 1970")
    return (moment - _EPOCH) // timedelta(milliseconds=1)


def _scopes(
    context: click.Context, option: click.Parameter, texts: Sequence[str]
) -> list[ResetScope]:
    found = []
    for text in texts:
        match = _SCOPE.fullmatch(text)
        if not match:
            raise click.BadParameter(f"{text!r} is not TOPIC or TOPIC:PARTITION,...")
        found.append(
            ResetScope(
                match["topic"],
                tuple(int(number) for number in (match["partitions"] or "").split(",") if number),
            )
        )
    return found


_OPTIONS = [
    click.option("--to-earliest", is_flag=True, help="First available offset."),
    click.option(
        "--to-latest", is_flag=True, help="End of the partition: only new records are consumed."
    ),
    click.option(
        "--to-datetime",
        callback=_timestamp_ms,
        metavar="TIME",
        help="First record at or after TIME, otherwise the end. ISO 8601; UTC without a zone.",
    ),
    click.option(
        "--to-offset",
        type=click.IntRange(0),
        metavar="N",
        help="This offset in every partition.",
    ),
    click.option(
        "--shift-by",
        type=int,
        metavar="N",
        help="N offsets after the committed one; -N before it.",
    ),
    click.option(
        "--topic",
        "topics",
        multiple=True,
        callback=_scopes,
        metavar="TOPIC[:P,P...]",
        help="Topic, or partitions of it; can be repeated.",
    ),
    click.option("--all-topics", is_flag=True, help="All partitions with committed offsets."),
]


def with_reset_options(act: Callable[..., None]) -> Callable[..., None]:
    """Decorate a command: pass it `target` and `scopes`.

    `scopes` is None for all partitions with committed offsets.
    """

    @wraps(act)
    def run(
        *positional: Any,
        to_earliest: bool,
        to_latest: bool,
        to_datetime: int | None,
        to_offset: int | None,
        shift_by: int | None,
        topics: Sequence[ResetScope],
        all_topics: bool,
        **arguments: Any,
    ) -> None:
        named = [
            (TargetKind.EARLIEST, 0 if to_earliest else None),
            (TargetKind.LATEST, 0 if to_latest else None),
            (TargetKind.DATETIME, to_datetime),
            (TargetKind.OFFSET, to_offset),
            (TargetKind.SHIFT, shift_by),
        ]
        targets = [ResetTarget(kind, number) for kind, number in named if number is not None]
        if len(targets) != 1:
            raise click.UsageError(
                "give one of --to-earliest, --to-latest, --to-datetime, --to-offset and --shift-by"
            )
        if bool(topics) == all_topics:
            raise click.UsageError("give either --topic or --all-topics")
        act(*positional, target=targets[0], scopes=None if all_topics else topics, **arguments)

    decorated: Callable[..., None] = run
    for option in reversed(_OPTIONS):
        decorated = option(decorated)
    return decorated
