"""Which library a client is, and which versions of it: told from what it sent, where it does not say so itself.

What each library does is data (`observed.jsonl`), recorded from the libraries themselves by `make fingerprints`; nothing here names one.
"""
