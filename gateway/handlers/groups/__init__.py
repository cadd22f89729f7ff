"""Handlers of group requests: membership, committed offsets and descriptions.

`join_group.py` also serves SyncGroup, Heartbeat and LeaveGroup, `offset_commit.py` OffsetFetch and
OffsetDelete, `describe_groups.py` ListGroups and DeleteGroups.

May import `gateway.groups` and `gateway.protocol`.
"""
