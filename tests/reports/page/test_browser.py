"""The page in Chromium, from disk and without a network, at the widths of a phone, a screen and
paper.
"""

from __future__ import annotations

import re
import struct

import pytest

from reports.page.report_page import page
from tests.reports.page import sample_report
from tests.reports.page.browser import CUT, MEDIA, SCREEN, TELEPHONE

pytestmark = pytest.mark.peer

LONG = "a-very-long-name-" * 30 + "{}"
REPORTS = {
    "usual": {"applications": 16, "days": 10},
    "one": {"applications": 1, "days": 1, "refused": 1},
    "ready": {"applications": 12, "days": 9, "refused": 0},
    "large": {"applications": 1000, "days": 400, "refused": 300, "name": LONG},
}
SMALLEST = """Math.min(...[...document.querySelectorAll('body *')]
    .filter(one => [...one.childNodes].some(node => node.nodeType == 3 && node.data.trim()))
    .map(one => parseFloat(getComputedStyle(one).fontSize)))"""
#: Overlapping texts of one plot.
COVERED = """[...document.querySelectorAll('svg')].flatMap(plot => {
    const words = [...plot.querySelectorAll('text')];
    const boxes = words.map(one => one.getBoundingClientRect());
    return words.filter((_, here) => boxes.some((box, there) => there > here
        && box.left < boxes[here].right && boxes[here].left < box.right
        && box.top < boxes[here].bottom && boxes[here].top < box.bottom))
        .map(one => one.textContent)
})"""


@pytest.fixture(params=REPORTS)
def made(request, tmp_path):
    """The file of a page."""
    said = REPORTS[request.param]
    shown = sample_report.figures(**said)
    zero = "2026-01-25" if request.param == "usual" else None
    summary = sample_report.summary(shown, said["applications"], said.get("refused"), zero)
    file = tmp_path / "report.html"
    file.write_text(page(summary, shown, sample_report.TARGET, sample_report.NAMES), "utf-8")
    return file


def test_page_requests_nothing_and_logs_no_errors(chromium, made):
    chromium.open(made, SCREEN)
    assert (chromium.requested, chromium.said) == ([made.as_uri()], [])


@pytest.mark.parametrize("medium", MEDIA)
def test_nothing_is_cut_off_on_the_right(chromium, made, medium):
    chromium.open(made, MEDIA[medium], medium=medium)
    assert (
        chromium.evaluate("document.scrollingElement.scrollWidth <= innerWidth && innerWidth")
        == MEDIA[medium]
    )
    assert chromium.evaluate(CUT) == []


@pytest.mark.parametrize("medium", ["telephone", "screen"])
def test_all_text_is_readable(chromium, made, medium):
    chromium.open(made, MEDIA[medium], medium=medium)
    assert chromium.evaluate(SMALLEST) >= 12
    assert chromium.evaluate(COVERED) == []


def test_screenshot_is_as_wide_as_the_window(chromium, made, tmp_path):
    chromium.open(made, TELEPHONE, medium="telephone")
    chromium.picture(tmp_path / "telephone.png")
    head = (tmp_path / "telephone.png").read_bytes()[:24]
    assert (head[:8], struct.unpack(">I", head[16:20])) == (b"\x89PNG\r\n\x1a\n", (TELEPHONE,))


def test_page_can_be_printed(chromium, made):
    chromium.open(made, SCREEN)
    sheets = chromium.printed()
    assert sheets.startswith(b"%PDF")
    assert len(re.findall(rb"/Type\s*/Page\b", sheets)) >= 2


def test_browser_fixture_detects_and_blocks_requests(chromium, tmp_path):
    """Shows that the tests above can fail."""
    file = tmp_path / "bad.html"
    file.write_text(
        "<img src='http://example.com/x.png'><script>nothing()</script><p style='width: "
        "2000px'>wide</p>"
    )
    chromium.open(file, TELEPHONE, medium="telephone")
    assert "http://example.com/x.png" in chromium.requested
    assert any("ERR_NAME_NOT_RESOLVED" in words for words in chromium.said)
    assert any("nothing is not defined" in words for words in chromium.said)
    assert len(chromium.evaluate(CUT)) == 1
