"""Support for old clients only: record formats, request versions and library identification.

It can be deleted once those clients are gone: `gateway.partitions.stored_records` says what the
gateway does without it. May import `records`.
"""
