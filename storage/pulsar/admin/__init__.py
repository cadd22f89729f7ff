"""Pulsar's admin REST API and the cluster checks that use it."""
