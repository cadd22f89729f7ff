"""The command `kopgate cluster`: describe a cluster.

May import the other modules of `gateway.cli`, except `main`.
"""
