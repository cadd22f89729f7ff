"""Support for old clients only: record formats, request versions and library identification.

It can be deleted once those clients are gone; other packages use only its public functions.
"""
