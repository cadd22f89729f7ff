"""Imports point one way, and each library is used only in its part of the project.

The tables are the rule; changing them changes the design.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("gateway", "auth", "compat", "records", "storage", "reports")

#: Modules of `gateway` that are below their folder: a place of their own.
BASICS = "gateway: basics"
FLOW_CONTROL = "gateway/net: flow control"
ERRORS = "gateway/protocol: errors"
SPECIAL_PLACES = {
    "gateway/__init__.py": BASICS,
    "gateway/coarse_clock.py": BASICS,
    "gateway/coroutines.py": BASICS,
    "gateway/logs.py": BASICS,
    "gateway/memory.py": BASICS,
    "gateway/_reactor.pyx": BASICS,
    "gateway/reactor.py": BASICS,
    "gateway/workers.py": BASICS,
    "gateway/net/flow_control.py": FLOW_CONTROL,
    "gateway/protocol/errors.py": ERRORS,
    "gateway/protocol/wire/api_keys.py": ERRORS,
}

#: The places that each place may import, from top to bottom. A folder without an entry belongs to
#: the folder above it. There are no cycles between places, but `gateway/groups`,
#: `gateway/handlers` and `storage/pulsar` are one place each because their folders import each
#: other.
MAY_IMPORT = {
    "gateway/__main__.py": {"gateway/cli"},
    "gateway/cli": {
        "gateway", "gateway/settings", "gateway/protocol/wire", BASICS,
        "auth", "reports", "reports/page", "reports/analysis", "reports/ingest",
    },
    "gateway": {
        "gateway/net", "gateway/protocol", "gateway/handlers", "gateway/broker.py",
        "gateway/security", "gateway/traffic", "gateway/fetch",
        "gateway/groups", "gateway/topics", "gateway/partitions", "gateway/configs",
        "gateway/cluster", "gateway/settings", "gateway/protocol/wire", FLOW_CONTROL, ERRORS,
        BASICS, "auth", "records", "storage", "storage/lmdb", "storage/pulsar",
    },
    "gateway/net": {
        "gateway/protocol", "gateway/broker.py", "gateway/traffic", "gateway/settings",
        "gateway/protocol/wire", FLOW_CONTROL, BASICS, "auth", "storage",
    },
    "gateway/handlers": {
        "gateway/protocol", "gateway/security", "gateway/fetch", "gateway/groups", "gateway/topics",
        "gateway/partitions", "gateway/configs", "gateway/cluster", "gateway/settings",
        "gateway/protocol/wire", ERRORS, BASICS, "auth", "compat", "records", "storage",
    },
    "gateway/protocol": {
        "gateway/broker.py", "gateway/traffic", "gateway/security", "gateway/topics",
        "gateway/protocol/wire", "gateway/cluster", FLOW_CONTROL, ERRORS, BASICS, "auth", "storage",
    },
    "gateway/broker.py": {
        "gateway/security", "gateway/traffic", "gateway/fetch", "gateway/groups", "gateway/topics",
        "gateway/partitions", "gateway/configs", "gateway/cluster", "gateway/settings",
        FLOW_CONTROL, ERRORS, BASICS, "storage",
    },
    "gateway/security": {
        "gateway/traffic", "gateway/topics", "gateway/settings", "gateway/cluster", ERRORS, BASICS,
        "auth", "storage",
    },
    "gateway/traffic": {
        "gateway/topics", "gateway/partitions", "gateway/cluster", "gateway/protocol/wire", ERRORS,
        BASICS, "auth", "records", "storage",
    },
    "gateway/fetch": {
        "gateway/partitions", "gateway/protocol/wire", ERRORS, BASICS, "records", "storage",
    },
    "gateway/groups": {
        "gateway/topics", "gateway/cluster", "gateway/settings", ERRORS, BASICS, "storage",
    },
    "gateway/topics": {
        "gateway/partitions", "gateway/configs", "gateway/cluster", "gateway/settings", ERRORS,
        BASICS, "records", "storage",
    },
    "gateway/partitions": {
        "gateway/configs", "gateway/cluster", "gateway/protocol/wire", ERRORS, BASICS, "compat",
        "records", "storage",
    },
    "gateway/cluster": {ERRORS, BASICS, "storage"},
    "gateway/configs": {
        "gateway/settings", "gateway/protocol/wire", "gateway/cluster", ERRORS, BASICS, "storage",
    },
    "gateway/settings": set(),
    "gateway/protocol/wire": {ERRORS, "records", "storage"},
    FLOW_CONTROL: {"gateway/protocol/wire", BASICS},
    ERRORS: {"storage"},
    BASICS: {"storage"},
    "auth": set(),
    "storage/lmdb": {"storage"},
    "storage/pulsar": {"auth", "storage"},
    "storage": set(),
    "compat": {"records"},
    "compat/fingerprint": set(),
    "records": set(),
    "reports": {"reports/page", "reports/analysis", "reports/ingest"},
    "reports/page": {"reports/analysis"},
    "reports/analysis": {"reports/ingest", "compat/fingerprint"},
    "reports/ingest": set(),
}  # fmt: skip

#: Modules that import a place against the table.
EXCEPTIONS = {
    # It reads on behalf of a caller, and pauses as handlers do.
    ("gateway/fetch/fetch_reader.py", "gateway/protocol"),
    ("gateway/fetch/fetch_reader.py", "gateway/security"),
    ("gateway/fetch/fetch_conversions.py", "gateway/protocol"),
}

#: The files, or folders with a trailing slash, that may import a library.
BELONGS_TO = {
    "twisted": (
        "gateway/cli/main.py",
        "gateway/net/listeners.py",
        "gateway/net/proxy_listener.py",
        "gateway/server.py",
        "gateway/net/transport.py",
        "gateway/net/connection.py",
        "gateway/coroutines.py",
        "gateway/reactor.py",
        "gateway/workers.py",
        "gateway/security/key_download.py",
        "storage/bridge.py",
        "storage/https.py",
        "storage/lmdb/",
        "storage/pulsar/",
    ),
    "pulsar": ("storage/pulsar/",),
    "lmdb": ("storage/lmdb/",),
    "kafka": ("gateway/protocol/wire/", "gateway/handlers/", "gateway/cli/"),
    "re2": ("auth/mapping_rules.py", "gateway/groups/consumer/topic_regexes.py"),
    "gssapi": ("auth/kerberos_acceptor.py",),
    "click": ("gateway/cli/",),
    "pydantic": ("gateway/settings/",),
    "pydantic_settings": ("gateway/settings/",),
    "pyspark": ("reports/",),
    "OpenSSL": ("auth/tls.py", "gateway/net/connection.py", "storage/https.py"),
    "jwt": ("auth/jwt_tokens.py", "auth/signing_keys.py"),
}

#: The only module that imports the reactor; others get it as an argument.
IMPORTS_THE_REACTOR = "gateway/cli/main.py"

#: Spark functions that pass rows to Python processes. Workers do not have this project's Python
#: environment, and each row would be copied in both directions.
ROWS_IN_PYTHON = {
    "udf", "udtf", "pandas_udf", "mapInPandas", "mapInArrow", "applyInPandas", "applyInArrow",
    "applyInPandasWithState", "transformWithState", "transformWithStateInPandas", "rdd", "foreach",
    "foreachPartition", "parallelize",
}  # fmt: skip


@cache
def nodes(source: str) -> tuple[ast.AST, ...]:
    """All nodes of a module. Several tests read all modules; each module is parsed once."""
    return tuple(ast.walk(ast.parse(source)))


def imports(source: str) -> Iterator[str]:
    """Every module that `source` imports: a.b for `import a.b` and for `from a import b`."""
    for node in nodes(source):
        match node:
            case ast.Import(names=names):
                yield from (name.name for name in names)
            case ast.ImportFrom(module=str(module), level=0, names=names):
                yield from (f"{module}.{name.name}" for name in names)
            case ast.ImportFrom(level=level) if level:
                yield "." * level


@cache
def place_of(path: str) -> str:
    """The place of a file: the longest entry of MAY_IMPORT that holds it, or its special place."""
    return SPECIAL_PLACES.get(path) or max(
        (place for place in MAY_IMPORT if f"{path}/".startswith(f"{place}/")), key=len
    )


@cache
def file_of(module: str) -> str:
    """The file of an imported name: of the module, or of the one that defines the name."""
    path = module.replace(".", "/")
    for name in (f"{path}.py", f"{path}.pyx", f"{path}/__init__.py"):
        if (ROOT / name).exists():
            return name
    return file_of(module.rpartition(".")[0])


def complaints(path: str, source: str) -> list[str]:
    found = []
    own = place_of(path)
    for module in imports(source):
        first = module.split(".", 1)[0]
        if not first:
            found.append(f"{path} has a relative import; use the absolute name")
        elif first in PACKAGES:
            other = place_of(file_of(module))
            if other not in {own, *MAY_IMPORT[own]} and (path, other) not in EXCEPTIONS:
                found.append(f"{path} imports {module}: {own} may not import {other}")
        elif first in BELONGS_TO and not any(
            path == place or (place.endswith("/") and path.startswith(place))
            for place in BELONGS_TO[first]
        ):
            found.append(
                f"{path} imports {module}: {first} stays in {', '.join(BELONGS_TO[first])}"
            )
        elif module == "twisted.internet.reactor" and path != IMPORTS_THE_REACTOR:
            found.append(f"{path} imports the reactor; pass it as an argument")
    return found


def rows_in_python(source: str) -> list[str]:
    """The names of ROWS_IN_PYTHON that `source` uses as attributes or imports."""
    tree = nodes(source)
    named = [node.attr for node in tree if isinstance(node, ast.Attribute)]
    named += [name.name for node in tree if isinstance(node, ast.ImportFrom) for name in node.names]
    return sorted(ROWS_IN_PYTHON.intersection(named))


def modules() -> list[str]:
    return sorted(
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
    )


def test_modules_import_only_what_their_place_allows():
    found = {path: complaints(path, (ROOT / path).read_text("utf-8")) for path in modules()}
    assert found
    assert [complaint for listed in found.values() for complaint in listed] == []


def test_gateway_imports_compat_only_in_modules_that_it_can_do_without():
    """`gateway.handlers` imports those in `old` only if `compat` is installed."""
    importers = {
        path
        for path in modules()
        if path.startswith("gateway/")
        and any(
            module.split(".", 1)[0] == "compat" for module in imports((ROOT / path).read_text())
        )
    }
    assert importers == {
        "gateway/handlers/old/old_versions.py",
        "gateway/handlers/old/produce_message_sets.py",
        "gateway/partitions/stored_records.py",
    }


@pytest.mark.parametrize("package", sorted({path.split("/")[0] for path in modules()}))
def test_package_is_marked_as_typed(package):
    assert (ROOT / package / "py.typed").exists()


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("auth/plain.py", "from gateway import logs"),
        ("gateway/partitions/partition.py", "from gateway.topics.registry import Topics"),
        ("gateway/protocol/routes.py", "from gateway import handlers"),
        ("gateway/workers.py", "import gateway.broker"),
        ("storage/lmdb/log.py", "import storage.pulsar.store"),
        ("compat/message_sets/up_conversion.py", "import storage.log"),
        ("storage/log.py", "def f():\n    from gateway.settings.model import Settings"),
        ("gateway/protocol/dispatch.py", "from twisted.internet.defer import Deferred"),
        ("gateway/server.py", "from twisted.internet import reactor"),
        ("gateway/fetch/fetch_reader.py", "import lmdb"),
        ("gateway/fetch/fetch_reader.py", "import kafka.protocol"),
        ("gateway/cli/report.py", "import pyspark"),
        ("reports/run.py", "from gateway import logs"),
        ("gateway/fetch/fetch_reader.py", "from . import logs"),
    ],
)
def test_forbidden_import_is_found(path, source):
    assert len(complaints(path, source)) == 1


def test_reports_pass_no_rows_through_python():
    paths = [path for path in modules() if path.startswith("reports/")]
    found = {path: rows_in_python((ROOT / path).read_text("utf-8")) for path in paths}
    assert found
    assert {path: names for path, names in found.items() if names} == {}


@pytest.mark.parametrize(
    "source",
    [
        "F.udf(f)",
        "from pyspark.sql.functions import pandas_udf",
        "rows.mapInPandas(f, s)",
        "x.groupBy('a').applyInPandas(f, s)",
        "rows.rdd.map(f)",
    ],
)
def test_functions_that_pass_rows_through_python_are_found(source):
    assert len(rows_in_python(source)) == 1


def test_every_path_of_the_tables_exists():
    places = [*SPECIAL_PLACES, *(set(MAY_IMPORT) - set(SPECIAL_PLACES.values()))]
    places += [place for places in BELONGS_TO.values() for place in places]
    assert [place for place in places if not (ROOT / place).exists()] == []


def test_places_do_not_import_each_other_in_cycles():
    assert _cycles(MAY_IMPORT) == []


def test_table_has_no_import_that_no_module_needs():
    used = {place: set() for place in MAY_IMPORT}
    exceptions = set()
    for path in modules():
        for module in imports((ROOT / path).read_text("utf-8")):
            if module.split(".", 1)[0] in PACKAGES:
                other = place_of(file_of(module))
                used[place_of(path)].add(other)
                exceptions.add((path, other))
    assert [
        (place, other) for place, others in MAY_IMPORT.items() for other in others - used[place]
    ] == []
    assert EXCEPTIONS - exceptions == set()


def import_cycles(sources):
    """Groups of modules that import each other, directly or through others."""
    graph = {}
    for name, source in sources.items():
        found = {one if one in sources else one.rpartition(".")[0] for one in imports(source)}
        graph[name] = found & set(sources) - {name}
    return _cycles(graph)


def _cycles(graph):
    reachable = {name: _reachable_from(name, graph) for name in graph}
    cycles = {
        frozenset(other for other in reached if name in reachable[other])
        for name, reached in reachable.items()
        if name in reached
    }
    return sorted(sorted(cycle) for cycle in cycles)


def _reachable_from(name, graph):
    reached = set()
    waiting = [name]
    while waiting:
        new = graph[waiting.pop()] - reached
        reached |= new
        waiting += new
    return reached


def module_sources():
    """Source by dotted module name.

    Compiled modules are included, because their import also runs a package's `__init__`.
    """
    paths = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    sources = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(
            ".__init__"
        ): path.read_text("utf-8")
        for path in paths
    }
    compiled = [path for package in PACKAGES for path in (ROOT / package).rglob("*.pyx")]
    return sources | {
        ".".join(path.relative_to(ROOT).with_suffix("").parts): "" for path in compiled
    }


def test_modules_do_not_import_each_other_in_cycles():
    assert import_cycles(module_sources()) == []


def test_import_cycles_are_found():
    sources = {
        "a.one": "from a import two",
        "a.two": "import a.three",
        "a.three": "def f():\n    from a.one import g",
        "a.four": "import a.one",
    }
    assert import_cycles(sources) == [["a.one", "a.three", "a.two"]]
