"""A terminal as tests need one: what a program wrote to it, as a person sees it in the end."""

from __future__ import annotations

import fcntl
import os
import struct
import termios
from collections.abc import Iterator


def terminal(columns: int) -> tuple[int, int]:
    """Both ends of one: ours, and that of the program. It neither echoes what is typed nor throws away at Ctrl-C what is written just then."""
    ours, theirs = os.openpty()
    modes = termios.tcgetattr(theirs)
    modes[3] = modes[3] & ~termios.ECHO | termios.NOFLSH
    termios.tcsetattr(theirs, termios.TCSANOW, modes)
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    return ours, theirs


def pieces_of(ours: int) -> Iterator[bytes]:
    """What is written, until the program's end was closed by the last who had it."""
    try:
        while piece := os.read(ours, 1 << 16):
            yield piece
    except OSError:  # Linux says so that nobody has the other end any more
        pass


def drained(ours: int) -> str:
    return b"".join(pieces_of(ours)).decode()


def lines_of(written: str, columns: int) -> list[str]:
    """What stands there: `\\r` goes back, `\\n` down, and what is longer than the terminal is wide goes on in the next line."""
    rows, row, column = [""], 0, 0
    for letter in written:
        if letter == "\r":
            column = 0
        elif letter == "\n":
            row += 1  # the terminal sends \r\n
        else:
            assert letter.isprintable(), f"{letter!r} is nothing that every terminal knows"
            if column == columns:
                row, column = row + 1, 0
            rows += [""] * (row + 1 - len(rows))
            rows[row] = rows[row][:column].ljust(column) + letter + rows[row][column + 1 :]
            column += 1
    return [text.rstrip() for text in rows]
