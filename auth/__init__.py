"""Authentication: SASL mechanisms, password storage, TLS and reload of changed files.

Imports no other folder; independent of requests and of Twisted.
"""
