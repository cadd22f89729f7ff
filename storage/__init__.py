"""Storage of records and small tables. `log` is the interface; `lmdb/` and `pulsar/` are stores.

The other modules are shared by the stores; they import no other folder. The gateway imports `log`
and these, and creates the stores in `gateway.stores`.
"""
