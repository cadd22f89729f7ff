"""Old request versions with different behaviour. May import other handlers.

`gateway.handlers` imports all modules except `old_group_versions` only if `compat` is installed.
"""
