"""The SVG chart: well-formed, complete, and proportional."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from bench.chart import LESS, MORE, svg
from bench.measurements import Comparison, Measurement

SVG = "{http://www.w3.org/2000/svg}"


def comparison(*ratios: float, row: str = "produce") -> Comparison:
    return Comparison(
        row,
        "none",
        [Measurement(row, "none", "a", ratio * 8, 1) for ratio in ratios],
        [Measurement(row, "none", "b", 8, 1)] * len(ratios),
    )


def bars(picture: str) -> list[ElementTree.Element]:
    return [one for one in ElementTree.fromstring(picture).iter(f"{SVG}rect") if one.get("x")]


def test_bar_length_is_proportional_to_ratio() -> None:
    half, two = bars(svg([comparison(0.5), comparison(2)], "CPU"))
    assert float(two.get("width", "")) == pytest.approx(4 * float(half.get("width", "")), abs=0.5)


def test_bar_above_one_has_another_color() -> None:
    assert [
        one.get("fill")
        for one in bars(svg([comparison(0.99), comparison(1), comparison(1.01)], "CPU"))
    ] == [LESS, LESS, MORE]


def test_whiskers_span_smallest_to_largest_ratio() -> None:
    picture = svg([comparison(0.5, 1, 1.5)], "CPU")
    (bar,) = bars(picture)
    zero, middle = float(bar.get("x", "")), float(bar.get("width", ""))
    (whisker,) = (
        line
        for line in ElementTree.fromstring(picture).iter(f"{SVG}line")
        if line.get("y1") == line.get("y2")
    )
    assert float(whisker.get("x1", "")) - zero == pytest.approx(middle / 2, abs=0.5)
    assert float(whisker.get("x2", "")) - zero == pytest.approx(middle * 1.5, abs=0.5)


@pytest.mark.parametrize("ratios", [(0.01,), (0.9, 1.1), (3.9, 4.0), (9.9,), (42.0,)])
def test_all_elements_are_inside_the_view_box(ratios: tuple[float, ...]) -> None:
    picture = ElementTree.fromstring(svg([comparison(*ratios)], "CPU"))
    _, _, width, height = map(float, picture.get("viewBox", "").split())
    for one in picture.iter():
        assert all(0 <= float(one.get(name, 0)) <= width for name in ("x", "x1", "x2"))
        assert all(0 <= float(one.get(name, 0)) <= height for name in ("y", "y1", "y2"))


def test_labels_are_escaped() -> None:
    picture = ElementTree.fromstring(svg([comparison(1, row="a <b> & c")], "Kafka's & <ours>"))
    words = [one.text for one in picture.iter(f"{SVG}text")]
    assert "a <b> & c, none" in words
    assert "Kafka's & <ours>" in words
