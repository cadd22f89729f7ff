"""Checks the English of sources, tests and documents: words to avoid, and the width of lines.

    python -m tests.prose            everything in CHECKED (`make lint`)
    python -m tests.prose PATH...    these files and folders

Prints `file:line: word: what to write instead` and exits with 1 if there is anything to print.
A line that must quote one of the words ends with a comment `prose: quoted`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
MAX_COLUMNS = 100
QUOTED = re.compile(r"(?:#|//|<!--) prose: quoted(?: -->)?$")

#: Files and folders that are checked.
CHECKED = (
    "gateway", "auth", "compat", "records", "storage", "reports", "tests", "bench", "docs",
    "README.md", "CHANGELOG.md", "Makefile", "Dockerfile", "docker-compose.yml", "tox.ini",
    "pyproject.toml", "setup.py", ".ci/run",
)  # fmt: skip

#: These define or test the list.
EXEMPT = ("tests/prose.py", "tests/test_prose.py")

SUFFIXES = {
    ".py", ".pyi", ".pyx", ".pxi", ".c", ".h", ".java", ".go", ".js", ".css",
    ".md", ".toml", ".ini", ".yml", ".yaml", ".properties",
}  # fmt: skip

#: A word or phrase (a regular expression), and what to write instead.
AVOID = {
    "amid": "in the middle of, or a literal description",
    "anew": "again",
    "anybody": "name the client, user or process",
    "believes?": "describe the state: considers, assumes, or drop it",
    "by hand": "manually, or hand-written",
    "by whom": "name the subject and use the active voice",
    "came of": "a literal description of the outcome",
    "comes? to": "is, results in, totals, or name the value",
    "doors?": "connection limit, listener or entry point",
    "fellows?": "members",
    "for it is": "because it is",
    "gone without a word": "disconnected without closing, or timed out",
    "hang(?:s|ing)? up": "close the connection",
    "(?:was|is|are|were|be|been) told": "is notified, receives, or name what is reported",
    "heard of": "seen, or known",
    "helps nobody": "has no effect, or is not useful",
    "hung up(?: on)?": "closed the connection",
    "in the house": "in memory, or in flight",
    "knows of": "has, or refers to",
    "leaves? nothing behind": "cleans up",
    "lest": "so that ... not",
    "lets? go": "releases",
    "lets? in": "accepts",
    "looks at": "checks, reads or examines",
    "make sense of": "parse, or decode",
    "makes no sense": "is malformed",
    "minds": "checks, or is affected by",
    "no news": "ignored",
    "nobody": "no client, no process, or rephrase",
    "of its own": "separate, or drop it",
    "of which": "split the sentence",
    "of whom": "split the sentence",
    # `road` is a field of the traffic log.
    "(?<![`\"'.])roads?(?![`\"']|\\s*[=:])": "path",
    "somebody": "name the client, user or process",
    "so many": "give the number, or the limit",
    "stands? still": "hangs, is paused, or is blocked",
    "stood still": "hung, was paused, or was blocked",
    "such as these": "name them",
    "those who": "name them: clients that, members that",
    "took with it": "a literal description",
    "wants": "needs, requests or expects",
    "what became of": "the outcome of",
    "who asks?": "the caller, or the client",
    "whoever": "name the client, user or process",
    "whom": "split the sentence",
}

#: What may stand between two words of a phrase: a line break may be followed by a comment sign.
_BETWEEN = r"(?:_|-|[ \t]+|[ \t]*\n[ \t]*(?:(?:#:|#|//|\*|>)[ \t]+)?)"


def _pattern(phrase: str) -> re.Pattern[str]:
    phrase = phrase.replace(" ", _BETWEEN)
    return re.compile(rf"(?<![A-Za-z])(?:{phrase})(?![A-Za-z])", re.IGNORECASE)


_PATTERNS = {_pattern(phrase): advice for phrase, advice in AVOID.items()}
#: One search for all: most files have none of them.
_ANY = _pattern("|".join(AVOID))


def words_to_avoid(text: str) -> Iterator[tuple[int, str, str]]:
    """Line number, word and advice for each word to avoid. An underscore separates words, too."""
    if not _ANY.search(text):
        return iter(())
    lines = text.splitlines()
    found = []
    for pattern, advice in _PATTERNS.items():
        for match in pattern.finditer(text):
            number = text.count("\n", 0, match.start()) + 1
            if not QUOTED.search(lines[number - 1]):
                found.append((number, re.sub(r"\s*\n\s*", " ", match[0]), advice))
    return iter(sorted(found))


def wide_lines(text: str) -> Iterator[tuple[int, int]]:
    """Number and width of each line of a source that is too wide.

    Lines without a space (as for ruff), with a URL, and section headers of tox.ini do not count.
    """
    for number, line in enumerate(text.splitlines(), 1):
        width = len(line.expandtabs(4))
        is_exempt = " " not in line.strip() or "://" in line or line.startswith("[testenv:")
        if width > MAX_COLUMNS and not is_exempt:
            yield number, width


def wide_markdown_lines(text: str) -> Iterator[tuple[int, int]]:
    """Number and width of each Markdown line that is too wide.

    Tables, code blocks, HTML comments and the targets of links do not count.
    """
    is_code = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            is_code = not is_code
        if is_code or line.lstrip().startswith(("|", "<!--")):
            continue
        width = len(re.sub(r"\]\([^)]*\)|https?://\S+", "]", line))
        if width > MAX_COLUMNS:
            yield number, width


def complaints(path: str, text: str) -> list[str]:
    """What to change in the file `path`, one line each."""
    found = [f"{path}:{line}: {word}: {advice}" for line, word, advice in words_to_avoid(text)]
    found += [
        f"{path}:{line}: {width} columns: wrap at {MAX_COLUMNS}"
        for line, width in (wide_markdown_lines if path.endswith(".md") else wide_lines)(text)
    ]
    return found


def files(tops: tuple[str, ...] = CHECKED) -> Iterator[str]:
    """Paths of the text files in `tops`, relative to the root of the repository."""
    for top in tops:
        place = ROOT / top
        found = [place] if place.is_file() else sorted(place.rglob("*"))
        for path in found:
            name = str(path.relative_to(ROOT))
            is_text = path == place or path.suffix in SUFFIXES or path.name == "Dockerfile"
            # Cython writes a .c file beside each .pyx file.
            is_generated = path.suffix == ".c" and path.with_suffix(".pyx").exists()
            if path.is_file() and is_text and not is_generated and name not in EXEMPT:
                yield name


def main(arguments: list[str]) -> int:
    given = tuple(str(Path(argument).resolve().relative_to(ROOT)) for argument in arguments)
    found = [
        complaint
        for path in files(given or CHECKED)
        for complaint in complaints(path, (ROOT / path).read_text("utf-8"))
    ]
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
