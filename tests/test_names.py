"""Names of modules and classes, and the number of modules in a folder."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

from tests.test_layout import PACKAGES, ROOT

TREES = (*PACKAGES, "bench", "tests")
MAX_MODULES = 15

#: Nouns, not activities.
NOUNS_IN_ING = {"forwarding", "framing", "housekeeping"}

#: The same thing in the interface and in each store.
IN_EACH_STORE = {"log", "settings", "store", "table"}

#: Each program runs alone, with another interpreter.
PROGRAMS = "tests/legacy_clients/drivers"


def modules(tree: str) -> list[Path]:
    return [
        path
        for path in sorted((ROOT / tree).rglob("*.py"))
        if path.stem not in ("__init__", "__main__", "conftest")
        and not path.is_relative_to(ROOT / PROGRAMS)
    ]


def is_test(path: Path) -> bool:
    return path.name.startswith("test_")


def repeated(names: list[str]) -> set[str]:
    return {name for name, count in Counter(names).items() if count > 1}


def public_classes(path: Path) -> set[str]:
    tree = ast.parse(path.read_text("utf-8"))
    return {
        node.name
        for node in tree.body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    }


@pytest.mark.parametrize("tree", TREES)
def test_modules_of_a_package_have_different_names(tree):
    allowed = IN_EACH_STORE if tree == "storage" else set()
    assert repeated([path.stem for path in modules(tree) if not is_test(path)]) - allowed == set()


def test_public_classes_have_different_names():
    shared, in_tests = [], {}
    for path in (path for tree in TREES for path in modules(tree)):
        if is_test(path):
            in_tests[path] = public_classes(path)
        else:
            shared += public_classes(path)
    assert repeated(shared) == set()
    assert {path: names for path, names in in_tests.items() if names & set(shared)} == {}


def test_no_module_is_named_by_a_gerund_alone():
    names = {path.stem.removeprefix("test_") for tree in TREES for path in modules(tree)}
    assert {name for name in names if name.endswith("ing") and "_" not in name} == NOUNS_IN_ING


def test_folder_has_at_most_15_modules():
    folders = Counter(path.parent for tree in TREES for path in modules(tree))
    assert [folder for folder, count in folders.items() if count > MAX_MODULES] == []
