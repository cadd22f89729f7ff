"""Groups of the consumer protocol (KIP-848): ConsumerGroupHeartbeat and server-side assignment.

`consumer_group` is the state machine. Beside it are its members (`consumer_member` has their
states), timers, subscribed topics, target assignment, reconciliation and stored form.

May import `gateway.groups.classic` for members that use the classic protocol and for migration.
"""
