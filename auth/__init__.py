"""Authentication: SASL mechanisms, password storage and TLS. Independent of requests and of
Twisted.
"""
