"""Groups of the classic protocol: JoinGroup, SyncGroup, Heartbeat and LeaveGroup.

May import `gateway.groups.group_effects`, but not the coordinator or `gateway.groups.consumer`.
"""
