"""Storage of records and small tables. `storage.log` is the interface; each folder is one store."""
