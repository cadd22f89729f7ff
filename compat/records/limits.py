"""The limit that holds where a caller names none."""

MAX_DECOMPRESSED_BYTES = 100 * 1024 * 1024
"""Of one stored unit. What Kafka lets a whole request have (socket.request.max.bytes): no honest batch decompresses to more."""
