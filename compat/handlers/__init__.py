"""Request versions that behave differently from the current ones, as plain functions over values.

The gateway calls them from one module.
"""
