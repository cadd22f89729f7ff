"""The embedded store: topics, partition logs and tables in one LMDB file.

A single thread writes; it syncs before anything is acknowledged.
"""

from storage.lmdb.settings import LmdbSettings
from storage.lmdb.store import LmdbStore

__all__ = ["LmdbSettings", "LmdbStore"]
