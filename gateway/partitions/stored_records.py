"""Functions for stored records of any format, with or without the package `compat`.

`compat` has what exists for old clients alone, and may be deleted. Without it the gateway serves
only the request versions that do not need it: Produce from v3, Fetch from v4, ListOffsets,
Metadata and OffsetFetch from v1, OffsetCommit from v2. Message sets (formats 0 and 1) that are
already stored are then returned to consumers as they are, and are not compacted.
"""

from __future__ import annotations

from typing import Any

from gateway import HAS_COMPAT

if HAS_COMPAT:
    from compat.message_sets import (
        MessageSet,
        check_message_set,
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
else:
    from records import (
        InvalidRecords,
        cut,
        filter_records,
        first_at_or_after,
        newest_timestamp,
        read_records,
        record_keys,
    )

    def _unsupported(*_: Any, **__: Any) -> Any:
        raise InvalidRecords("message sets are not supported without the package compat")

    check_message_set = down_convert_all = fix_lz4_checksums = has_legacy_lz4 = up_convert = (
        _unsupported
    )

__all__ = [
    "MessageSet",
    "check_message_set",
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
