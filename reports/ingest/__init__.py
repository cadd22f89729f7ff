"""Ingests files of the traffic log into tables, each row exactly once. Imports no other folder."""
