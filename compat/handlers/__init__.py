"""Versions of a request that behave differently from today's. Plain functions over values: the gateway routes to them from one module."""
