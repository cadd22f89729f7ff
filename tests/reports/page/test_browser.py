"""The page in Chromium, from disk and without a network, at the widths of a phone, a screen and
paper.
"""

from __future__ import annotations

import re
import struct

import pytest

from reports.page.report_page import page
from tests.reports.page import sample_report
from tests.reports.page.browser import CUT, MEDIA, TELEPHONE

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


@pytest.mark.parametrize("medium", MEDIA)
def test_page_is_complete_and_readable_in_each_medium(chromium, made, tmp_path, medium):
    """All in one test, because opening a page takes most of the time."""
    chromium.open(made, MEDIA[medium], medium=medium)
    assert (chromium.requested, chromium.said) == ([made.as_uri()], [])
    assert (
        chromium.evaluate("document.scrollingElement.scrollWidth <= innerWidth && innerWidth")
        == MEDIA[medium]
    ), "something is cut off on the right"
    assert chromium.evaluate(CUT) == []
    if medium != "print":
        assert chromium.evaluate(SMALLEST) >= 12
        assert chromium.evaluate(COVERED) == []
    if medium == "telephone":
        check_screenshot(chromium, tmp_path / "telephone.png")
    if medium == "screen":
        sheets = chromium.printed()
        assert sheets.startswith(b"%PDF")
        assert len(re.findall(rb"/Type\s*/Page\b", sheets)) >= 2


def check_screenshot(chromium, file):
    """It is as wide as the window."""
    chromium.picture(file)
    head = file.read_bytes()[:24]
    assert (head[:8], struct.unpack(">I", head[16:20])) == (b"\x89PNG\r\n\x1a\n", (TELEPHONE,))


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
