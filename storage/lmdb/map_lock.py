"""A shared/exclusive lock: LMDB's map is resized or closed only while no read is running."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class MapLock:
    """Shared by any number of readers, or held exclusively."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._shared_holders = 0
        self._is_exclusive = False

    @contextmanager
    def shared(self) -> Iterator[None]:
        with self._changed:
            while self._is_exclusive:
                self._changed.wait()
            self._shared_holders += 1
        try:
            yield
        finally:
            with self._changed:
                self._shared_holders -= 1
                if self._shared_holders == 0:
                    self._changed.notify_all()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        with self._changed:
            while self._is_exclusive:
                self._changed.wait()
            self._is_exclusive = True
            while self._shared_holders:
                self._changed.wait()
        try:
            yield
        finally:
            with self._changed:
                self._is_exclusive = False
                self._changed.notify_all()
