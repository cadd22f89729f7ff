"""The embedded store: records in a journal, their index, topics and tables in one LMDB file.

A single thread writes; it syncs before anything is acknowledged. May import the modules of
`storage`; only this folder imports lmdb.
"""

from storage.lmdb.settings import LmdbSettings
from storage.lmdb.store import LmdbStore

__all__ = ["LmdbSettings", "LmdbStore"]
