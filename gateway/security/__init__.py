"""Authorization, credentials, quotas and the audit log; what the broker decides about clients.

May import `gateway.traffic`, `auth` and `storage`.
"""
