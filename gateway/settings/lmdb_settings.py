"""Settings: The embedded store (LMDB and a journal)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field
from pydantic_settings import NoDecode

from gateway.settings.addresses import StoreAddress, parse_store
from gateway.settings.field_types import GIB, MIB, SECTION_CONFIG, from_text


class EmbeddedStoreSettings(BaseModel):
    """The embedded store (LMDB)."""

    model_config = SECTION_CONFIG

    store: Annotated[StoreAddress, from_text(parse_store), NoDecode] = Field(
        parse_store("lmdb:./data"),
        description="The store that holds the topics: `lmdb:DIRECTORY`, `pulsar://HOST:PORT` or "
        "`pulsar+ssl://HOST:PORT` (several brokers separated by commas).",
    )
    lmdb_initial_map_bytes: int = Field(
        1 * GIB,
        ge=1 * MIB,
        description=(
            "Initial address space (not disk space) of the embedded store. It grows automatically."
        ),
    )
    lmdb_resident_bytes: int = Field(
        64 * MIB,
        ge=0,
        description=(
            "Size of the in-memory cache of the newest batches, so that consumers at the end of "
            "the log need no disk reads."
        ),
    )
    log_flush: Literal["fsync", "os"] = Field(
        "fsync",
        description=(
            "When records of the embedded store are acknowledged: `fsync` when they are on disk, "
            "`os` when the operating system has them, as Kafka does by default. With `os`, a power "
            "failure or a crash of the operating system loses up to about a second of acknowledged "
            "records; the end of the gateway alone loses nothing. Topics, offsets and groups are "
            "on disk in both cases. The configs `flush.messages` and `flush.ms` of a topic do not "
            "change this."
        ),
    )
