"""Authorization, credentials, quotas and the audit log; what the broker decides about clients.

May import `auth` and `storage`.
"""
