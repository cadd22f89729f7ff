"""Commits of a group's offsets at its coordinator (GroupCoordinator.commitOffsets of Kafka)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec

from gateway.coroutines import SLICE_ROWS, TimeSlices
from gateway.groups.coordinator import GroupCoordinator
from gateway.groups.offsets.committed_offsets import CommittedOffsets
from gateway.groups.offsets.offset_rows import CommittedOffset
from gateway.protocol.errors import ErrorCode
from gateway.topics.registry import Topics


class GroupCommit(msgspec.Struct, frozen=True, array_like=True):
    """A commit of offsets. `api_version` is that of the request.

    `rows` has the name of a topic, a partition and its offset; each partition once. Member and
    generation are those of the request.
    """

    group_id: str
    member_id: str
    generation: int
    group_instance_id: str | None
    api_version: int
    rows: Sequence[tuple[str, int, CommittedOffset]]


async def commit_group(
    commit: GroupCommit,
    groups: GroupCoordinator,
    offsets: CommittedOffsets,
    topics: Topics,
    max_metadata_bytes: int,
    slices: TimeSlices,
) -> list[ErrorCode]:
    """Commit offsets of a group that this gateway coordinates; return an error code for each row.

    Raises KafkaError.
    """
    fence = groups.validate_offset_commit(
        commit.group_id,
        commit.member_id,
        commit.generation,
        commit.group_instance_id,
        commit.api_version,
        has_offsets=offsets.has(commit.group_id),
    )
    codes, rows = [], {}
    for name, index, row in commit.rows:
        code = (
            ErrorCode.NONE if fence is None else fence(topics.require(name).topic.topic_id, index)
        )
        if len(row.metadata) > max_metadata_bytes:
            code = ErrorCode.OFFSET_METADATA_TOO_LARGE
        codes.append(code)
        if code is ErrorCode.NONE:
            rows[name, index] = row
        await slices.take()
    await offsets.commit(
        commit.group_id,
        rows,
        partial(slices.take, SLICE_ROWS) if len(rows) > SLICE_ROWS else None,
    )
    return codes
