"""Old request versions with different behaviour.

May import other handlers and `compat.handlers`.
"""
