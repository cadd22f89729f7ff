"""Identifies a client's library and version from its requests, for clients that do not send a name.

The behaviour of each library is data (`observed.jsonl`), recorded from the libraries by `make
fingerprints`; no code here names a library. Imports no other folder; reports use it.
"""
