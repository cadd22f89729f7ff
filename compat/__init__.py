"""Support for old clients only: record formats, request versions and library identification.

`message_sets/` has the formats 0 and 1, `fingerprint/` identifies libraries.

It can be deleted once those clients are gone: `gateway.partitions.stored_records` says what the
gateway does without it. May import `records`.
"""
