"""A pseudo-terminal, and how output looks on it."""

from __future__ import annotations

import fcntl
import os
import struct
import termios
from collections.abc import Iterator


def terminal(columns: int) -> tuple[int, int]:
    """Return both ends of a pseudo-terminal: the test's and the program's.

    It does not echo input and does not discard output at Ctrl-C.
    """
    ours, theirs = os.openpty()
    modes = termios.tcgetattr(theirs)
    modes[3] = modes[3] & ~termios.ECHO | termios.NOFLSH
    termios.tcsetattr(theirs, termios.TCSANOW, modes)
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    return ours, theirs


def pieces_of(ours: int) -> Iterator[bytes]:
    """Yield output until the last process closes the program's end."""
    try:
        while piece := os.read(ours, 1 << 16):
            yield piece
    except OSError:  # Linux raises this once no process has the other end open
        pass


def drained(ours: int) -> str:
    return b"".join(pieces_of(ours)).decode()


def lines_of(written: str, columns: int) -> list[str]:
    """Return the lines on the screen after `\\r`, `\\n` and wrapping at the terminal width."""
    rows, row, column = [""], 0, 0
    for letter in written:
        if letter == "\r":
            column = 0
        elif letter == "\n":
            row += 1  # the terminal sends \r\n
        else:
            assert letter.isprintable(), f"{letter!r} is not printable on every terminal"
            if column == columns:
                row, column = row + 1, 0
            rows += [""] * (row + 1 - len(rows))
            rows[row] = rows[row][:column].ljust(column) + letter + rows[row][column + 1 :]
            column += 1
    return [text.rstrip() for text in rows]
