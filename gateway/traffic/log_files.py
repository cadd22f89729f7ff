"""The folder of the traffic log: what its files are called, how old ones are compressed, which are deleted when.

    DIR/date=YYYY-MM-DD/hour=HH/<node>-<start>-<number>.jsonl      being written, and locked by its writer
    DIR/date=YYYY-MM-DD/hour=HH/<node>-<start>-<number>.jsonl.gz   finished

Date and hour (UTC) are those at which a file was begun. Several gateways may share a folder: a file that is locked is let alone.
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
from collections.abc import Callable, Iterator, Set
from contextlib import suppress
from datetime import UTC, datetime
from io import FileIO
from pathlib import Path
from typing import IO, Any, Protocol, cast

import msgspec
from isal import igzip

from gateway import logs

_log = logs.get_logger(__name__)

UNCOMPRESSED = ".jsonl"
_HOUR_MS = 3_600_000
_CHUNK_BYTES = 256 << 10
#: For the gateway's user and its group: principals and addresses are data of persons.
_FILE_MODE, _FOLDER_MODE = 0o640, 0o750
_FILE_NAME = re.compile(
    r"date=(\d{4}-\d\d-\d\d)/hour=(\d\d)/(\d+)-([0-9a-z]+)-(\d+)(\.jsonl(?:\.gz(?:\.part)?)?)\Z"
)


class AppendableFile(Protocol):
    """A file that is appended to, as `FileIO` is one."""

    def fileno(self) -> int: ...
    def write(self, chunk: memoryview, /) -> int | None: ...
    def truncate(self, size: int, /) -> int: ...
    def close(self) -> None: ...


class RetentionLimits(msgspec.Struct, frozen=True):
    """How long files are kept, in ms, and how many bytes of them; None is no limit. `level` is that of isal's gzip, 0 to 3."""

    keep_ms: int | None
    keep_bytes: int | None
    level: int


class TrafficFile(msgspec.Struct, frozen=True, order=True):
    """A file of the log. The oldest is the least."""

    hour_ms: int
    start: int
    number: int
    path: Path
    suffix: str


class TrafficFolder:
    """`node` and `start` (ms since 1970, of this process) are in the names of its own files."""

    def __init__(self, root: Path, node: int, start: int) -> None:
        self._root = root
        self._prefix = f"{node}-{base36(start)}"

    def path_of(self, now_ms: int, number: int) -> Path:
        """Where the file begins that is the `number`th of this process."""
        at = datetime.fromtimestamp(now_ms / 1000, UTC)
        return (
            self._root
            / f"date={at:%Y-%m-%d}"
            / f"hour={at:%H}"
            / f"{self._prefix}-{number}{UNCOMPRESSED}"
        )

    def files(self) -> list[TrafficFile]:
        """All files of the log, the oldest first."""
        return sorted(_traffic_files(self._root))

    def unfinished_files(self) -> Iterator[Path]:
        """What others left unfinished. What they are writing is locked by them."""
        return (
            one.path
            for one in self.files()
            if one.suffix == UNCOMPRESSED and not one.path.name.startswith(f"{self._prefix}-")
        )

    def delete_old(
        self, now_ms: int, limits: RetentionLimits, stuck: Set[Path] = frozenset()
    ) -> int:
        """Delete what is too old, and of what is too much the oldest: first compressed, so of what is not only the `stuck`, which could not be. How
        many files that were. Raises the OSError of the first that cannot be deleted."""
        files = [(one, size) for one in self.files() if (size := _size(one.path)) is not None]
        excess = sum(size for _, size in files) - (
            limits.keep_bytes if limits.keep_bytes is not None else 1 << 62
        )
        deleted = 0
        failed: OSError | None = None
        for one, size in files:
            # Its last line may be as young as the end of the hour, and a rotation later.
            is_old = limits.keep_ms is not None and now_ms - one.hour_ms - _HOUR_MS > limits.keep_ms
            is_excess = excess > 0 and (one.suffix != UNCOMPRESSED or one.path in stuck)
            try:
                if (is_old or is_excess) and _delete_if_unused(one):
                    excess -= size
                    deleted += 1
                    self._remove_empty_folders(one.path)
            except FileNotFoundError:
                # Another gateway was first.
                continue
            except OSError as failure:
                failed = failed or failure
        if failed is not None:
            raise failed
        return deleted

    def _remove_empty_folders(self, path: Path) -> None:
        for folder in (path.parent, path.parent.parent):
            # Not empty: somebody else's file is in it.
            with suppress(OSError):
                folder.rmdir()


def base36(number: int) -> str:
    """Of a time before 1970 it is that of 1970: a clock may say anything."""
    digits, number = "", max(number, 0)
    while number:
        number, digit = divmod(number, 36)
        digits = "0123456789abcdefghijklmnopqrstuvwxyz"[digit] + digits
    return digits or "0"


def create_locked(path: Path) -> AppendableFile | None:
    """A new file, locked. None where there is such a file, or somebody took it for a leftover before it was locked. Raises OSError."""
    for _ in range(2):
        for folder in (path.parent.parent, path.parent):
            folder.mkdir(_FOLDER_MODE, parents=True, exist_ok=True)
        with suppress(FileNotFoundError):  # the folder was empty, and has just been tidied away
            return _locked(path)
    return _locked(path)


def _locked(path: Path) -> FileIO | None:
    try:
        file = FileIO(
            os.open(
                path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, _FILE_MODE
            ),
            "a",
        )
    except FileExistsError:
        return None
    if _lock(file, fcntl.LOCK_EX) and not is_unlinked(file):
        return file
    file.close()
    return None


def is_unlinked(file: AppendableFile) -> bool:
    """Whether it has no name any more: what is written into it is lost."""
    return os.fstat(file.fileno()).st_nlink == 0


def _lock(file: IO[bytes] | FileIO, kind: int) -> bool:
    """Whether nobody else has it locked. Where there are no locks, nobody has."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as failure:
        _log.debug("no locks on this file system", reason=str(failure.strerror))
    return True


def _delete_if_unused(one: TrafficFile) -> bool:
    """Delete it unless somebody writes it, or compresses it. Raises OSError."""
    uncompressed = one.path.with_name(one.path.name.split(".")[0] + UNCOMPRESSED)
    if one.suffix == f"{UNCOMPRESSED}.gz" or not uncompressed.is_file():
        one.path.unlink(missing_ok=True)
        return True
    with uncompressed.open("rb") as file:
        # The lock is kept until it is deleted, so nobody begins to write meanwhile.
        if not _lock(file, fcntl.LOCK_EX):
            return False
        one.path.unlink(missing_ok=True)
    return True


def compress(path: Path, level: int) -> None:
    """Put `path.gz` in the place of `path`, whole or not at all; an empty file only goes. Raises BlockingIOError where somebody else writes or
    compresses it, and OSError; then `path` is what it was."""
    finished = path.with_name(path.name + ".gz")
    unfinished = path.with_name(path.name + ".gz.part")
    with path.open("rb") as source:
        if not _lock(source, fcntl.LOCK_EX):
            raise BlockingIOError(f"{path} is being written")
        if os.fstat(source.fileno()).st_size and not finished.is_file():
            try:
                _gzip(source, unfinished, level)
                unfinished.replace(finished)
                _fsync_folder(finished.parent)
            except OSError:
                unfinished.unlink(missing_ok=True)
                raise
        path.unlink()


def _gzip(source: IO[bytes], target: Path, level: int) -> None:
    # A new file: what lies there may be a link to another, or a pipe that nobody reads.
    with suppress(FileNotFoundError):
        os.unlink(target)
    with os.fdopen(
        os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb"
    ) as file:
        os.fchmod(file.fileno(), stat.S_IMODE(os.fstat(source.fileno()).st_mode))
        with cast(Any, igzip).IGzipFile(fileobj=file, mode="wb", compresslevel=level) as packed:
            while piece := source.read(_CHUNK_BYTES):
                packed.write(piece)
        file.flush()
        os.fsync(file.fileno())


def _fsync_folder(folder: Path) -> None:
    """What was renamed is so after a power cut, too, before what it replaces is deleted."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def compress_and_expire(
    folder: TrafficFolder, pending: set[Path], limits: RetentionLimits, now: Callable[[], int]
) -> None:
    """Compress what is finished, and then delete what is not to be kept. What fails stays in `pending`, for the next time."""
    for path in sorted(pending):
        try:
            compress(path, limits.level)
        except (FileNotFoundError, BlockingIOError):
            # It is gone, or is somebody else's.
            pass
        except OSError as failure:
            _log.warning(
                "traffic file not compressed", file=str(path), reason=str(failure.strerror)
            )
            continue
        pending.discard(path)
    try:
        deleted = folder.delete_old(now(), limits, pending)
    except OSError as failure:
        _log.warning(
            "old traffic files not deleted",
            file=str(failure.filename),
            reason=str(failure.strerror),
        )
        return
    if deleted:
        _log.debug("old traffic files deleted", files=deleted)


def _traffic_files(root: Path) -> Iterator[TrafficFile]:
    hours = (
        f"{date}/{hour}" for date in _names(root, "date=") for hour in _names(root / date, "hour=")
    )
    for place in (
        f"{folder}/{name}" for folder in hours for name in _names(root / folder, are_files=True)
    ):
        match = _FILE_NAME.match(place)
        if match is None:
            continue
        try:
            hour = datetime.strptime(f"{match[1]} {match[2]}", "%Y-%m-%d %H").replace(tzinfo=UTC)
        except ValueError:
            continue
        yield TrafficFile(
            int(hour.timestamp() * 1000), int(match[4], 36), int(match[5]), root / place, match[6]
        )


def _names(folder: Path, beginning: str = "", *, are_files: bool = False) -> list[str]:
    """What is in it; of files those that are some: a pipe would hold up its reader for ever, and a link leads elsewhere. One that cannot be read keeps
    nobody from the others, and one that has just been deleted has nothing in it: another gateway deletes those that it has emptied."""
    try:
        with os.scandir(folder) as entries:
            return [
                entry.name
                for entry in entries
                if entry.name.startswith(beginning)
                and (not are_files or entry.is_file(follow_symlinks=False))
            ]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as failure:
        _log.warning("traffic folder not read", folder=str(folder), reason=str(failure.strerror))
        return []


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None
