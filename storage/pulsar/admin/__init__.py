"""Pulsar's admin REST API, and the cluster checks and the permissions of roles that use it.

The other folders import `admin_api`; the checks and the permissions may import `client`, `log` and
`topics`.
"""
