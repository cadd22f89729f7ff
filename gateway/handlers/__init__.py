"""One module per family of requests. Importing this package routes them all."""

from gateway.handlers import coordinators, fetch, greeting, metadata, offsets, old, produce

__all__ = ["coordinators", "fetch", "greeting", "metadata", "offsets", "old", "produce"]
