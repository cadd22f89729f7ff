"""One module per Kafka API or family of APIs. Importing this package registers all routes.

May import `gateway.protocol` and the folders with topics, partitions, groups, fetches and configs,
but not `gateway.net`.
"""

from importlib import import_module
from pkgutil import walk_packages

# A new module needs no entry anywhere: `@serves` registers its handlers.
for _module in walk_packages(__path__, f"{__name__}."):
    import_module(_module.name)
