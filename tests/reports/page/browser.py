"""Headless Chromium (Debian's package `chromium`), controlled over a pair of pipes.

Opens a page from disk as on a phone, a screen or a printer. It resolves no host names and records
all requests. The protocol is Chromium's DevTools protocol: JSON messages that end with a zero byte.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-gpu",
    "--disable-extensions",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    # No network access.
    "--host-resolver-rules=MAP * ~NOTFOUND",
)
TELEPHONE, SCREEN = 390, 1200
#: Width of A4 without the style's margins, at 96 pixels per inch.
PAPER = 703
MEDIA = {"telephone": TELEPHONE, "screen": SCREEN, "print": PAPER}
#: Elements beyond the right edge, except inside horizontally scrollable tables on a screen.
CUT = """[...document.querySelectorAll('body *')]
    .filter(one => one.getBoundingClientRect().right > innerWidth + 1
        && (matchMedia('print').matches || !one.closest('.wide')))
    .map(one => one.outerHTML.slice(0, 200))"""
PIECE = 1 << 16
TALLEST = 8000
"""Maximum height of a screenshot in pixels."""
PLACED = """
import fcntl, os, sys
read, write = (fcntl.fcntl(int(number), fcntl.F_DUPFD_CLOEXEC, 10) for number in sys.argv[1:3])
os.dup2(read, 3)
os.dup2(write, 4)
os.execvp(sys.argv[3], sys.argv[3:])
"""
"""Chromium reads from descriptor 3 and writes to 4."""
A4_INCHES = (8.27, 11.69)


def find() -> str | None:
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """`requested` are the addresses that pages requested, `said` their console output."""

    def __init__(self, into: int, out: int) -> None:
        self._into, self._out = into, out
        self._numbers = itertools.count(1)
        self._read = b""
        self._tab = ""
        self._session = ""
        self._loaded: set[str] = set()
        self.requested: list[str] = []
        self.said: list[str] = []

    def open(self, page: Path, width: int, height: int = 800, medium: str = "screen") -> None:
        """Open a page in a new tab. `width` and `height` are CSS pixels; `medium` is screen,
        telephone or print.
        """
        if self._tab:
            self._ask("Target.closeTarget", targetId=self._tab)
        self._tab = self._ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._ask("Target.attachToTarget", targetId=self._tab, flatten=True)[
            "sessionId"
        ]
        self.requested, self.said = [], []
        for domain in ("Page", "Network", "Log", "Runtime"):
            self._ask(f"{domain}.enable")
        self._ask("Page.setLifecycleEventsEnabled", enabled=True)
        self._ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=medium == "telephone",
        )
        # Emulating the print medium would also change the screen size.
        self._ask("Emulation.setEmulatedMedia", media="print" if medium == "print" else "")
        navigated = self._ask("Page.navigate", url=page.resolve().as_uri())
        # The empty page's load event can arrive late, and this page's before the reply.
        while navigated["loaderId"] not in self._loaded:
            self._next()

    def evaluate(self, expression: str) -> Any:
        """Return the result of a script, which the page's policy does not restrict."""
        answer = self._ask("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in answer:
            raise BrowserFailed(str(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def picture(self, file: Path, tallest: int = TALLEST, scale: float = 1) -> None:
        """A screenshot as PNG."""
        size = self._ask("Page.getLayoutMetrics")["cssContentSize"]
        clip = {**size, "height": min(size["height"], tallest), "scale": scale}
        file.write_bytes(
            base64.b64decode(
                self._ask("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)["data"]
            )
        )

    def printed(self) -> bytes:
        """The page as PDF, with its print style."""
        width, height = A4_INCHES
        return base64.b64decode(
            self._ask("Page.printToPDF", paperWidth=width, paperHeight=height)["data"]
        )

    def _ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        if self._session and not method.startswith("Target."):
            message["sessionId"] = self._session
        os.write(self._into, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == number:
                if "error" in answer:
                    raise BrowserFailed(f"{method}: {answer['error']['message']}")
                return dict(answer["result"])

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._read:
            piece = os.read(self._out, PIECE)
            if not piece:
                raise BrowserFailed("it has ended")
            self._read += piece
        line, _, self._read = self._read.partition(b"\0")
        message = json.loads(line)
        # Events of a closed tab may still arrive.
        if message.get("sessionId") == self._session:
            self._note(message.get("method", ""), message.get("params", {}))
        return {"method": "", **message}

    def _note(self, method: str, of: dict[str, Any]) -> None:
        if method == "Page.lifecycleEvent" and of["name"] == "load":
            self._loaded.add(of["loaderId"])
        elif method == "Network.requestWillBeSent":
            self.requested.append(of["request"]["url"])
        elif method == "Log.entryAdded":
            self.said.append(of["entry"]["text"])
        elif method in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown"):
            self.said.append(json.dumps(of))


class BrowserFailed(Exception):
    """The browser ended or returned an error."""


@contextmanager
def browser(binary: str, folder: Path) -> Iterator[Browser]:
    """`folder` is for its files. The browser is killed and reaped at the end."""
    ours, theirs = os.pipe(), os.pipe()
    root = ["--no-sandbox"] if os.geteuid() == 0 else []
    argv = [
        sys.executable,
        "-c",
        PLACED,
        str(ours[0]),
        str(theirs[1]),
        binary,
        *FLAGS,
        *root,
        f"--user-data-dir={folder}",
    ]
    with (
        (folder / "chromium.log").open("w") as errors,
        subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=errors,
            stderr=errors,
            pass_fds=(ours[0], theirs[1]),
        ) as process,
    ):
        os.close(ours[0])
        os.close(theirs[1])
        try:
            yield Browser(ours[1], theirs[0])
        finally:
            process.kill()
            os.close(ours[1])
            os.close(theirs[0])
