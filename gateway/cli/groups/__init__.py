"""The command `kopgate groups`: list, describe and delete groups, reset and delete offsets.

May import the other modules of `gateway.cli`, except `main`.
"""
