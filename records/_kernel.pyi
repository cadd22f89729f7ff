from collections.abc import Sequence

from records.layout import Buffer, Converted, Scan

INTERFACE: int

def tally(payloads: Sequence[Buffer]) -> tuple[list[int], int, int]: ...
def conversions(payloads: Sequence[Buffer], magic: int) -> list[int]: ...
def scan(messages: Buffer, magic: int, is_inner: bool) -> Scan: ...
def plain_run(messages: Buffer, start: int) -> int: ...
def cut(messages: Buffer, offset: int, max_bytes: int) -> tuple[int, int]: ...
def stamp(messages: bytearray | memoryview, base_offset: int, append_time: int | None) -> int: ...
def down_batch(
    records: Buffer,
    count: int,
    base_offset: int,
    last_delta: int,
    base_timestamp: int,
    append_time: int | None,
    magic: int,
    is_relative: bool,
) -> Converted: ...
def use_lz4(unpack: int, pack: int, state_bytes: int) -> None: ...
def use_gzip(
    unpack_init: int,
    unpack: int,
    unpack_bytes: int,
    pack_init: int,
    pack: int,
    pack_bytes: int,
) -> None: ...
def use_snappy(length: int, unpack: int, pack: int, block_bytes: int) -> None: ...
def down_all(payloads: Sequence[Buffer], magic: int, limit: int) -> list[bytes | None]: ...
def down_run(
    payloads: Sequence[Buffer],
    batches: int,
    magic: int,
    offset: int,
    max_bytes: int,
    at_least_one: bool,
    most_records: int,
    limit: int,
    codecs: int = -1,
) -> tuple[bytes, tuple[int, int, int], bool] | None: ...
def down_messages(messages: Buffer, shift: int) -> Converted: ...
def up_messages(
    messages: Buffer,
    magic: int,
    shift: int,
    base_offset: int,
    base_timestamp: int,
    append_time: int | None,
) -> Converted: ...
