"""Groups of the classic protocol: JoinGroup, SyncGroup, Heartbeat and LeaveGroup.

`classic_group` is the state machine; the other modules hold its members, timer and stored form.

May import `gateway.groups.group_effects`, but not the coordinator or `gateway.groups.consumer`.
"""
