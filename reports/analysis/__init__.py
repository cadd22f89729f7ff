"""Analyses of the tables: activity, client identity, readiness for a target, costs and trend."""
