"""Versions of requests that only old clients send and that behave differently."""
