"""Groups of the consumer protocol (KIP-848): ConsumerGroupHeartbeat and server-side assignment.

May import `gateway.groups.classic` for members that use the classic protocol and for migration.
"""
