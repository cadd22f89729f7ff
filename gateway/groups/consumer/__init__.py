"""Groups of the consumer protocol (KIP-848): ConsumerGroupHeartbeat and server-side assignment."""
