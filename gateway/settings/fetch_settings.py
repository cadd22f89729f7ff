"""Settings: fetch responses and the conversion of record formats."""

from __future__ import annotations

from pydantic import BaseModel, Field

from gateway.settings.field_types import INT32_MAX, KIB, MIB, SECTION_CONFIG


class FetchSettings(BaseModel):
    """Fetch responses and the conversion of record formats."""

    model_config = SECTION_CONFIG

    fetch_max_bytes: int = Field(
        55 * MIB,
        ge=1 * KIB,
        le=INT32_MAX,
        description=(
            "Maximum record bytes in a Fetch response. Kafka's default; Java clients request 50 "
            "MiB."
        ),
    )
    max_incremental_fetch_session_cache_slots: int = Field(
        1_000,
        ge=0,
        le=1_000_000,
        description=(
            "Maximum number of incremental fetch sessions (KIP-227). Consumers without one send "
            "full requests. Kafka's default."
        ),
    )
    conversion_threads: int = Field(
        2,
        ge=1,
        le=256,
        description="Threads that convert records for old consumers. They run without the GIL.",
    )
    conversion_cache_bytes: int = Field(
        64 * MIB,
        ge=0,
        description=(
            "Size of the cache of converted compressed batches, so that several old consumers of "
            "the same records cost one conversion. 64 batches of 1 MiB by default. A fetch of 16 "
            "or more batches, some in gzip, lz4 or snappy, by a consumer that is behind is cached "
            "as one result; others that fetch as much from the same offset use it. Up to 16 KiB in "
            "lz4 or snappy, or 4 KiB in gzip, are not cached: their conversion takes less time."
        ),
    )
    max_decompressed_bytes: int = Field(
        100 * MIB,
        ge=1 * MIB,
        le=INT32_MAX,
        description=(
            "Maximum size to which a batch may decompress; protects against decompression bombs. "
            "As large as an uncompressed request may be."
        ),
    )
