"""`make picture`: writes docs/report.png, the upper part of a page on made-up applications."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from reports.page.report_page import page
from tests.reports.page import sample_report
from tests.reports.page.browser import Browser, browser, find

PICTURE = Path(__file__).parents[3] / "docs" / "report.png"
WIDTH, HEIGHT, SCALE = 1000, 1250, 0.7
DAYS = 30


def main() -> int:
    binary = find()
    if binary is None:
        sys.stderr.write("Error: there is no Chromium; on Debian: apt-get install chromium\n")
        return 1
    with tempfile.TemporaryDirectory() as name, browser(binary, Path(name)) as running:
        take(running, Path(name), PICTURE)
    return 0


def take(running: Browser, folder: Path, picture: Path) -> None:
    shown = sample_report.figures(days=DAYS)
    summary = sample_report.summary(shown)
    html = page(summary, shown, sample_report.TARGET, sample_report.NAMES)
    file = folder / "report.html"
    file.write_text(html, "utf-8")
    running.open(file, WIDTH)
    running.picture(picture, HEIGHT, SCALE)


if __name__ == "__main__":
    sys.exit(main())
