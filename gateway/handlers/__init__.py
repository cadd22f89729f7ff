"""One module per family of requests. Importing this package routes them all."""

from gateway.handlers import fetch, greeting, metadata, offsets, old, produce

__all__ = ["fetch", "greeting", "metadata", "offsets", "old", "produce"]
