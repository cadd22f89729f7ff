"""Where records and small tables are kept. `storage.log` is the interface; every folder beside it is one store."""
