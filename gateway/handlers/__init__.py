"""One module per Kafka API or family of APIs. Importing this package registers all routes.

A module has the name of its first API: `groups/join_group.py` also serves SyncGroup, Heartbeat and
LeaveGroup, `list_offsets.py` OffsetForLeaderEpoch, `admin/create_topics.py` DeleteTopics and
CreatePartitions. `grep -r "@serves(ApiKey.LIST_GROUPS"` finds a handler.

May import `gateway.protocol` and the folders with topics, partitions, groups, fetches and configs,
but not `gateway.net`.
"""

from importlib import import_module
from pkgutil import walk_packages

from gateway import HAS_COMPAT

#: Without `compat`, their request versions are not served.
_NEED_COMPAT = {f"{__name__}.old.old_versions", f"{__name__}.old.produce_message_sets"}

# A new module needs no entry anywhere: `@serves` registers its handlers.
for _module in walk_packages(__path__, f"{__name__}."):
    if HAS_COMPAT or _module.name not in _NEED_COMPAT:
        import_module(_module.name)
