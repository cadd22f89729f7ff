"""Handlers of group requests: membership, committed offsets and descriptions.

May import `gateway.groups` and `gateway.protocol`.
"""
