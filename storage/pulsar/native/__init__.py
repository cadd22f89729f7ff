"""The entry format `pulsar`: topics that are shared with native Pulsar clients (decision 017).

May import `admin`, `client` and `log`; `log` opens these topics.
"""
