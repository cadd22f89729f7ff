"""Plots show their data, are well-formed, and escape names from clients."""

from __future__ import annotations

import re
from datetime import date, timedelta
from xml.etree import ElementTree

import pytest

from reports.page import plots
from reports.page.plots import HEIGHT, Bar

SVG = "{http://www.w3.org/2000/svg}"
DAYS = [date(2026, 11, 1) + timedelta(days=place) for place in range(10)]
NAME = '<script>alert(1)</script> & "co"'


def drawn(figure, kind):
    """Elements of the picture, without namespace."""
    return [
        one for one in ElementTree.fromstring(figure).iter() if one.tag.removeprefix(SVG) == kind
    ]


def words(figure):
    return [one.text for one in drawn(figure, "text")]


def numbers(points):
    return [tuple(map(float, pair.split(","))) for pair in points.split()]


def boxes(path):
    """x, y, width and height of each column of a path."""
    return [
        tuple(map(float, found))
        for found in re.findall(r"M([\d.]+) ([\d.-]+)h([\d.]+)v([\d.]+)", path.get("d"))
    ]


def line(values, days=DAYS, today=date(2026, 11, 11), zero=None):
    return plots.line("t", "unit", days, values, today, zero)


def test_longest_bar_fills_the_plot_and_others_are_proportional():
    figure = plots.bars(
        "t", [Bar("a", [(3, "refused"), (1, "fine")], "4"), Bar("b", [(2, "fine")], "2")]
    )
    assert [
        (bar.get("x"), bar.get("width"), bar.get("class")) for bar in drawn(figure, "rect")
    ] == [
        ("0.00%", "75.00%", "refused"),
        ("75.00%", "25.00%", "fine"),
        ("0.00%", "50.00%", "fine"),
    ]


@pytest.mark.parametrize("rows", [[], [Bar("a", [(0, "fine")], "0")]])
def test_plot_without_data_is_empty(rows):
    assert drawn(plots.bars("t", rows), "rect") == []


def test_columns_are_stacked_in_legend_order():
    figure = plots.columns("t", "unit", DAYS[:1], [("a", [1]), ("b", [3])])
    ((_, low, _, size_low),), ((_, high, _, size_high),) = map(boxes, drawn(figure, "path"))
    assert (low + size_low, high + size_high) == (HEIGHT, low)
    assert size_high == pytest.approx(3 * size_low)
    assert re.findall(r"</svg> (\w) <b>(\d)</b>", figure) == [("b", "3"), ("a", "1")]


def test_day_without_traffic_is_a_gap():
    figure = plots.columns("t", "unit", [DAYS[0], DAYS[9]], [("a", [2, 2])])
    assert [int(x) for x, *_ in boxes(*drawn(figure, "path"))] == [0, 9]


def test_single_day_does_not_fill_the_plot():
    (column,) = boxes(*drawn(plots.columns("t", "unit", DAYS[:1], [("a", [5])]), "path"))
    assert column[2] < 1
    assert 'viewBox="0 0 7 150"' in plots.columns("t", "unit", DAYS[:1], [("a", [5])])


@pytest.mark.parametrize(
    ("most", "ticks"),
    [
        (0, ["0", "1"]),
        (1, ["0", "1"]),
        (3, ["0", "1", "2", "3"]),
        (7, ["0", "2", "4", "6", "8"]),
        (1300, ["0", "500", "1,000", "1,500"]),
    ],
)
def test_axis_starts_at_zero_with_round_integer_ticks(most, ticks):
    assert words(line([most] * 10))[: len(ticks)] == ticks


def test_forecast_line_reaches_zero_on_its_day():
    figure = line(list(range(20, 0, -2)), zero=date(2026, 11, 12))
    known, ahead = (numbers(one.get("points")) for one in drawn(figure, "polyline"))
    assert known[-1] == ahead[0]
    assert ahead[-1] == (100.0, HEIGHT)
    assert {"today", "2026-11-01", "2026-11-12"} <= set(words(figure))


def test_distant_forecast_does_not_squeeze_known_days():
    known, ahead = (
        numbers(one.get("points"))
        for one in drawn(line([5] * 10, zero=date(2030, 1, 1)), "polyline")
    )
    assert known[-1][0] == pytest.approx(50)
    assert ahead[-1][0] == pytest.approx(100)
    assert ahead[-1][1] > known[-1][1]


@pytest.mark.parametrize("days", [DAYS[:1], DAYS])
def test_line_at_zero_is_drawn(days):
    (known,) = drawn(line([0] * len(days), days), "polyline")
    assert {y for _, y in numbers(known.get("points"))} == {HEIGHT}


def test_single_day_has_one_date_label():
    assert [word for word in words(line([3], DAYS[:1])) if word.startswith("2026")] == [
        "2026-11-01"
    ]


def test_plot_has_a_text_description():
    (said,) = drawn(line(list(range(20, 0, -2))), "desc")
    assert said.text == "t: from 20 on 2026-11-01 to 2 on 2026-11-10."


def test_names_are_escaped():
    for figure in (
        plots.bars(NAME, [Bar(NAME, [(1, "fine")], NAME)]),
        plots.columns(NAME, NAME, DAYS, [(NAME, [1] * 10)]),
        plots.line(NAME, NAME, DAYS, [1] * 10, DAYS[-1], None),
    ):
        assert drawn(figure, "figcaption")[0].text == NAME
        assert "<script" not in figure
