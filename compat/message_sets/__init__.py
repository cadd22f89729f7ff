"""Message sets (magic 0 and 1), and conversion between them and record batches (magic 2).

Message sets are checked, stamped with offsets, converted and read. Pure functions over buffers,
with the rules of `records`, which they may import. The gateway imports these names in
`gateway.partitions.stored_records` and `gateway.handlers.old`.
"""

from compat.message_sets.down_conversion import down_convert, down_convert_all
from compat.message_sets.legacy_lz4 import fix_lz4_checksums, has_legacy_lz4
from compat.message_sets.message_filter import filter_records, newest_timestamp, record_keys
from compat.message_sets.message_reader import cut, first_at_or_after, read_records
from compat.message_sets.message_set import MessageSet, check_message_set
from compat.message_sets.up_conversion import up_convert

__all__ = [
    "MessageSet",
    "check_message_set",
    "cut",
    "down_convert",
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
