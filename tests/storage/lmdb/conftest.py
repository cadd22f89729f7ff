"""A store in a temporary directory, with settings chosen by the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from twisted.internet import reactor

from storage.files import Files
from storage.lmdb import LmdbSettings, LmdbStore
from tests.testkit.settle import settle

Opener = Callable[..., LmdbStore]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def open_store(directory: Path) -> Iterator[Opener]:
    """Opens the store in `directory` with the given settings; closes it after the test."""
    opened: list[LmdbStore] = []

    def open_one(files: Files | None = None, **settings: Any) -> LmdbStore:
        # Most tests need no room, and some measure it.
        limits = LmdbSettings(**({"held_bytes": 0} | settings))
        store = LmdbStore(directory, reactor=reactor, settings=limits, files=files)
        opened.append(store)
        return store

    yield open_one
    for store in opened:
        settle(store.close())
