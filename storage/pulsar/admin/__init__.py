"""Pulsar's admin REST API, and the checks of a cluster that use it."""
