"""Topics, partition logs and tables in an Apache Pulsar cluster.

Uses pulsar-client and the admin REST API; nothing is installed in the brokers. `store` assembles
the folders. May import the modules of `storage` and `auth.watched_files`; only this folder imports
pulsar.
"""
