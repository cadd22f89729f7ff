"""Old request versions with different behaviour. May import other handlers.

`gateway.handlers` imports `old_versions` and `produce_message_sets` only if `compat` is installed.
"""
