"""The Fetch path: reading, fetch sessions (KIP-227) and conversion of record formats.

May import `gateway.partitions`, the codec and `records`; only `fetch_reader` also
`gateway.protocol` and `gateway.security`. Handlers and `gateway.broker` import it.
"""
