"""The folder of the traffic log: file names, compression and retention.

  DIR/date=YYYY-MM-DD/hour=HH/<node>-<start>-<number>.jsonl     being written, locked by the writer
  DIR/date=YYYY-MM-DD/hour=HH/<node>-<start>-<number>.jsonl.gz  finished

Date and hour (UTC) are those at which the file was opened. Several gateways may share a folder:
locked files are not touched.
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
#: Readable by the gateway's user and group only: principals and addresses are personal data.
_FILE_MODE, _FOLDER_MODE = 0o640, 0o750
_FILE_NAME = re.compile(
    r"date=(\d{4}-\d\d-\d\d)/hour=(\d\d)/(\d+)-([0-9a-z]+)-(\d+)(\.jsonl(?:\.gz(?:\.part)?)?)\Z"
)


class AppendableFile(Protocol):
    """A file opened for appending, like `FileIO`."""

    def fileno(self) -> int: ...
    def write(self, chunk: memoryview, /) -> int | None: ...
    def truncate(self, size: int, /) -> int: ...
    def close(self) -> None: ...


class RetentionLimits(msgspec.Struct, frozen=True):
    """Maximum age in ms and maximum total bytes of files; None means no limit.

    `level` is the gzip level of isal, 0 to 3.
    """

    keep_ms: int | None
    keep_bytes: int | None
    level: int


class TrafficFile(msgspec.Struct, frozen=True, order=True):
    """A file of the log. Files sort by age, the oldest first."""

    hour_ms: int
    start: int
    number: int
    path: Path
    suffix: str


class TrafficFolder:
    """The folder. File names contain `node` and `start`, the process's start in ms since 1970."""

    def __init__(self, root: Path, node: int, start: int) -> None:
        self._root = root
        self._prefix = f"{node}-{base36(start)}"

    def path_of(self, now_ms: int, number: int) -> Path:
        """Return the path of this process's file `number`, opened at `now_ms`."""
        at = datetime.fromtimestamp(now_ms / 1000, UTC)
        return (
            self._root
            / f"date={at:%Y-%m-%d}"
            / f"hour={at:%H}"
            / f"{self._prefix}-{number}{UNCOMPRESSED}"
        )

    def files(self) -> list[TrafficFile]:
        """Return all files of the log, the oldest first."""
        return sorted(_traffic_files(self._root))

    def unfinished_files(self) -> Iterator[Path]:
        """Return uncompressed files of other processes; those still being written are locked."""
        return (
            one.path
            for one in self.files()
            if one.suffix == UNCOMPRESSED and not one.path.name.startswith(f"{self._prefix}-")
        )

    def delete_old(
        self, now_ms: int, limits: RetentionLimits, stuck: Set[Path] = frozenset()
    ) -> int:
        """Delete files that are too old, then the oldest ones until the total size fits.

        Files are compressed before they are deleted for their size, except for those in `stuck`,
        whose compression failed. Returns the number of deleted files. Raises the OSError of the
        first file that could not be deleted.
        """
        files = [(one, size) for one in self.files() if (size := _size(one.path)) is not None]
        excess = sum(size for _, size in files) - (
            limits.keep_bytes if limits.keep_bytes is not None else 1 << 62
        )
        deleted = 0
        failed: OSError | None = None
        for one, size in files:
            # The last line may have been written at the end of the hour plus one rotation.
            is_old = limits.keep_ms is not None and now_ms - one.hour_ms - _HOUR_MS > limits.keep_ms
            is_excess = excess > 0 and (one.suffix != UNCOMPRESSED or one.path in stuck)
            try:
                if (is_old or is_excess) and _delete_if_unused(one):
                    excess -= size
                    deleted += 1
                    self._remove_empty_folders(one.path)
            except FileNotFoundError:
                # Another gateway deleted it.
                continue
            except OSError as failure:
                failed = failed or failure
        if failed is not None:
            raise failed
        return deleted

    def _remove_empty_folders(self, path: Path) -> None:
        for folder in (path.parent, path.parent.parent):
            # The folder still contains other files.
            with suppress(OSError):
                folder.rmdir()


def base36(number: int) -> str:
    """Return a number in base 36; negative ones, from clocks before 1970, as 0."""
    digits, number = "", max(number, 0)
    while number:
        number, digit = divmod(number, 36)
        digits = "0123456789abcdefghijklmnopqrstuvwxyz"[digit] + digits
    return digits or "0"


def create_locked(path: Path) -> AppendableFile | None:
    """Create a file and lock it. Raises OSError.

    Returns None if the file exists, or if another process compressed it before it was locked.
    """
    for _ in range(2):
        for folder in (path.parent.parent, path.parent):
            folder.mkdir(_FOLDER_MODE, parents=True, exist_ok=True)
        with suppress(FileNotFoundError):  # another gateway has just deleted the empty folder
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
    """Whether the file has been deleted, so that writes to it are lost."""
    return os.fstat(file.fileno()).st_nlink == 0


def _lock(file: IO[bytes] | FileIO, kind: int) -> bool:
    """Lock a file; False if another process has locked it. Without lock support, returns True."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as failure:
        _log.debug("file locks not supported", reason=str(failure.strerror))
    return True


def _delete_if_unused(one: TrafficFile) -> bool:
    """Delete a file unless it is being written or compressed. Raises OSError."""
    uncompressed = one.path.with_name(one.path.name.split(".")[0] + UNCOMPRESSED)
    if one.suffix == f"{UNCOMPRESSED}.gz" or not uncompressed.is_file():
        one.path.unlink(missing_ok=True)
        return True
    with uncompressed.open("rb") as file:
        # Holding the lock until the file is deleted prevents other processes from using it.
        if not _lock(file, fcntl.LOCK_EX):
            return False
        one.path.unlink(missing_ok=True)
    return True


def compress(path: Path, level: int) -> None:
    """Replace `path` by `path.gz`, atomically; delete an empty file.

    Raises BlockingIOError if another process writes or compresses the file, and OSError. In both
    cases `path` is unchanged.
    """
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
    # Always a new file: an existing one may be a link to another file or a pipe without a reader.
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
    """Make a rename durable before the file that it replaces is deleted."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def compress_and_expire(
    folder: TrafficFolder, pending: set[Path], limits: RetentionLimits, now: Callable[[], int]
) -> None:
    """Compress finished files, then delete expired ones.

    Paths that failed stay in `pending` for the next call.
    """
    for path in sorted(pending):
        try:
            compress(path, limits.level)
        except (FileNotFoundError, BlockingIOError):
            # Deleted, or in use by another process.
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
    """Return the entries of a folder, with `are_files` only regular files.

    Pipes would block their reader, and links lead out of the folder. An unreadable folder is logged
    and skipped. A missing folder counts as empty: another gateway may have deleted it.
    """
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
