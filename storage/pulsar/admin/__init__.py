"""Pulsar's admin REST API and the cluster checks that use it.

The other folders import `admin_api`; the checks may import `client`, `log` and `topics`.
"""
