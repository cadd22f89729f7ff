"""Measurements of servers, compared in pairs row by row, as Markdown tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from types import MappingProxyType

import msgspec


class Measurement(msgspec.Struct, frozen=True):
    """One step on one server.

    `cpu_per_gib` is CPU seconds per GiB of record values, `rate` is MiB/s. `p50` and `p99` are
    latencies in ms, if the step measures them.
    """

    row: str
    codec: str
    server: str
    cpu_per_gib: float
    rate: float
    p50: float | None = None
    p99: float | None = None

    def __str__(self) -> str:
        latency = "" if self.p99 is None else f", p50 {self.p50:.1f} ms, p99 {self.p99:.1f} ms"
        return (
            f"{self.row}, {self.codec}, {self.server}: {self.cpu_per_gib:.2f} CPU s/GiB, "
            f"{self.rate:.0f} MiB/s{latency}"
        )


class Comparison(msgspec.Struct, frozen=True):
    """One row of the table: the measurements of both servers, in the order of the rounds."""

    row: str
    codec: str
    ours: list[Measurement]
    theirs: list[Measurement]

    @property
    def ratios(self) -> list[float]:
        """Our CPU time divided by theirs, one ratio per round, sorted."""
        return sorted(
            a.cpu_per_gib / b.cpu_per_gib for a, b in zip(self.ours, self.theirs, strict=True)
        )

    @property
    def ratio(self) -> float:
        return median(self.ratios)


def compare(figures: Sequence[Measurement], ours: str, theirs: str) -> list[Comparison]:
    """Group measurements by step and codec, in the order in which they were first measured.

    `ours` and `theirs` are the names of the servers.
    """
    rows = dict.fromkeys((figure.row, figure.codec) for figure in figures)

    def of(row: str, codec: str, server: str) -> list[Measurement]:
        return [
            figure
            for figure in figures
            if (figure.row, figure.codec, figure.server) == (row, codec, server)
        ]

    return [
        Comparison(row, codec, of(row, codec, ours), of(row, codec, theirs)) for row, codec in rows
    ]


def tables(
    figures: Sequence[Measurement], servers: Sequence[str], peer: str, beside: str | None = None
) -> str:
    """The first server compared with the second, which the head calls `peer`; then a table for
    each other server, also compared with the second.

    The first table has a column for the ratio to the server `beside`, unless that is the second.
    """
    ours, theirs, *others = servers
    more = {} if beside in (None, theirs) else {beside: compare(figures, ours, beside)}
    return "\n\n".join(
        [
            table(compare(figures, ours, theirs), peer, more),
            *(f"{other}:\n\n{table(compare(figures, other, theirs), peer)}" for other in others),
        ]
    )


def _heads(peer: str, others: Sequence[str]) -> Sequence[str]:
    sides = ("kopgate", peer)
    figures = ("CPU s/GiB", "MiB/s", "p50 / p99 ms")
    costs, rates, latencies = ([f"{side} {figure}" for side in sides] for figure in figures)
    ratios = [f"ratio to {name} (min-max)" for name in (peer, *others)]
    return [
        "step",
        "codec",
        *costs,
        *(ratios if others else ["ratio (min-max)"]),
        *rates,
        *latencies,
    ]


def table(
    comparisons: Sequence[Comparison],
    peer: str = "Kafka",
    more: Mapping[str, Sequence[Comparison]] = MappingProxyType({}),
) -> str:
    """Markdown with medians over the rounds. The ratio is the median of the rounds' ratios.

    `more` has comparisons with other servers by their names; of these the table has the ratios.
    """
    heads = _heads(peer, [*more])
    rows = (_cells(*row) for row in zip(comparisons, *more.values(), strict=True))
    return "\n".join(_line(cells) for cells in (heads, ["---"] * len(heads), *rows))


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cells(one: Comparison, *others: Comparison) -> list[str]:
    sides = (one.ours, one.theirs)
    return [
        one.row,
        one.codec,
        *(f"{median(figure.cpu_per_gib for figure in side):.2f}" for side in sides),
        *(
            f"**{pair.ratio:.2f}** ({pair.ratios[0]:.2f}-{pair.ratios[-1]:.2f})"
            for pair in (one, *others)
        ),
        *(f"{median(figure.rate for figure in side):.0f}" for side in sides),
        *(_latency(side) for side in sides),
    ]


def _latency(side: Sequence[Measurement]) -> str:
    p50 = [figure.p50 for figure in side if figure.p50 is not None]
    p99 = [figure.p99 for figure in side if figure.p99 is not None]
    return f"{median(p50):.1f} / {median(p99):.1f}" if p50 and p99 else "-"
