"""SASL mechanisms, authorization, credentials, quotas and the audit log.

May import `gateway.traffic`, `gateway.settings`, `auth` and `storage`.
"""
