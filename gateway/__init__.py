"""A Kafka broker as its clients see it.

`app` wires the parts and `server` runs them; a request passes `net`, `protocol` and `handlers`,
then a partition or a group, and the handler's return value is the reply. The modules here import
all folders; of these only `coarse_clock`, `coroutines`, `logs`, `memory` and `workers` may be
imported by any folder.
"""

from importlib import metadata
from importlib.util import find_spec

_compat = find_spec("compat")
#: Whether the package `compat` exists, see `gateway.partitions.stored_records`. A folder without
#: `__init__.py` is what remains of a deleted package: compiled files.
HAS_COMPAT = _compat is not None and _compat.origin is not None


def version() -> str:
    """The version of this package."""
    try:
        return metadata.version("kopgate")
    except metadata.PackageNotFoundError:  # run from a source tree that is not installed
        return "unknown"
