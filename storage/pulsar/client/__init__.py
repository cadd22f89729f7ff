"""pulsar-client: the client and its threads, producers and readers.

May import the token file of `admin`, and the messages and positions of `log`. The other folders use
the library through this one.
"""
