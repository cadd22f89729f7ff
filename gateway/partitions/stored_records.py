"""Functions for stored records of any format, and the switch for the package `compat`.

`compat` has what exists for old clients alone, and may be deleted. Without it the gateway serves
only the request versions that do not need it: Produce from v3, Fetch from v4, ListOffsets,
Metadata and OffsetFetch from v1, OffsetCommit from v2. Message sets (formats 0 and 1) that are
already stored are then returned to consumers as they are, and are not compacted.
"""

from __future__ import annotations

from typing import Any

try:
    from compat.message_sets import (
        MessageSet,
        cut,
        down_convert_all,
        filter_records,
        first_at_or_after,
        fix_lz4_checksums,
        has_legacy_lz4,
        newest_timestamp,
        read_records,
        record_keys,
        up_convert,
    )
except ModuleNotFoundError as missing:
    if str(missing.name).split(".", 1)[0] != "compat":
        raise
    from records import (
        InvalidRecords,
        cut,
        filter_records,
        first_at_or_after,
        newest_timestamp,
        read_records,
        record_keys,
    )

    HAS_COMPAT = False

    def _unsupported(*_: Any, **__: Any) -> Any:
        raise InvalidRecords("message sets are not supported without the package compat")

    down_convert_all = fix_lz4_checksums = has_legacy_lz4 = up_convert = _unsupported
else:
    HAS_COMPAT = True

__all__ = [
    "HAS_COMPAT",
    "MessageSet",
    "cut",
    "down_convert_all",
    "filter_records",
    "first_at_or_after",
    "fix_lz4_checksums",
    "has_legacy_lz4",
    "newest_timestamp",
    "read_records",
    "record_keys",
    "up_convert",
]
