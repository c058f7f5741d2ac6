"""Packages import only packages above them in ARCHITECTURE.md's table; heavy libraries are imported where they are used.

The core, all that is not in `collbench/plugins`, imports no plug-in; a plug-in imports the core and the plug-ins that it needs.
"""

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from collbench.plugin import BUILTIN, plugins

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "collbench"
PAGE = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
LIGHT = {"stats", "analysis", "report", "gating", "machine"}
HEAVY = {"torch", "mpi4py", "cupy", "pynvml", "pandas"}
DRAWING = {"jinja2"}  # plain tables do not need them
AT_START = {"numpy", "rich", "torch", "mpi4py", "zmq", "psutil", "hostlist", "ml_dtypes", "pandas"}
ROOT_MODULES = {path.stem for path in PACKAGE.glob("*.py")}
PACKAGES = re.findall(r"^\| `(\w+)/` \| ", PAGE.split("\n## ")[1], re.MULTILINE)
MODULES = sorted(PACKAGE.rglob("*.py"))
CORE = [module for module in MODULES if module.relative_to(PACKAGE).parts[0] != "plugins"]
# Circles of imports in the core, which an import does not run into: one of their imports is for typing only.
KNOWN_CIRCLES = [
    {"backends/backend.py", "backends/host.py", "backends/nonblocking.py"},
    {"backends/nccl/backend.py", "backends/nccl/binding.py", "backends/nccl/creation.py"},
    {"control/inquiry.py", "control/server.py"},
    {"machine/model.py", "machine/readers/text.py"},
    {"machine/peak/collective.py", "machine/peak/time_model.py"},
    {"report/html/first_screen.py", "report/kinds.py", "report/material.py"},
    {"testing/network.py", "testing/plugin.py"},
]


def _package(module: Path) -> str:
    parts = module.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else ""


def _tree(module: Path) -> ast.Module:
    return ast.parse(module.read_text(encoding="utf-8"))


class _Class(NamedTuple):
    name: str
    line: int
    has_docstring: bool


class _Source(NamedTuple):
    """What the tests ask of a module, from its syntax tree, which would need too much memory for all modules.

    imports: by when, the modules that it imports: "first" by statements of the module itself, "anywhere"
    of_collbench: by when, the modules of collbench that it imports: "at run time" outside of functions, "for typing" or so, "anywhere".
    `from collbench.units import rates` counts as both collbench.units and collbench.units.rates: the latter may be a module.
    """

    is_empty: bool
    has_docstring: bool
    classes: list[_Class]
    imports: Mapping[str, list[str]]
    of_collbench: Mapping[str, set[str]]


@cache
def _source(module: Path) -> _Source:
    tree = _tree(module)
    nodes = list(ast.walk(tree))
    classes = [_Class(node.name, node.lineno, bool(ast.get_docstring(node))) for node in nodes if isinstance(node, ast.ClassDef)]
    statements = {
        "at run time": _outside_functions(tree.body, typing=False),
        "for typing": _outside_functions(tree.body, typing=True),
        "anywhere": nodes,
    }
    return _Source(
        is_empty=not tree.body,
        has_docstring=bool(ast.get_docstring(tree)),
        classes=classes,
        imports={"first": _modules(tree.body), "anywhere": _modules(nodes)},
        of_collbench={
            when: {name for node in of_time for name in _names(node) if name.startswith("collbench.")}
            for when, of_time in statements.items()
        },
    )


def _modules(nodes: Iterable[ast.AST]) -> list[str]:
    """Return the modules that imports among these nodes name."""
    names: list[str] = []
    for node in nodes:
        if isinstance(node, ast.Import):
            names += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.append(node.module)
    return names


def test_architecture_lists_every_package_and_no_other() -> None:
    assert PACKAGES[0] == "collbench"
    folders = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    assert set(PACKAGES[1:]) == folders | {"plugins"}  # `make test-core` runs without it
    assert PACKAGES[-1] == "plugins"
    assert len(PACKAGES) == len(set(PACKAGES))


@pytest.mark.parametrize("module", [m for m in MODULES if _package(m)], ids=lambda m: str(m.relative_to(PACKAGE)))
def test_a_package_imports_only_packages_above_it(module: Path) -> None:
    above = set(PACKAGES[1 : PACKAGES.index(_package(module)) + 1]) | ROOT_MODULES
    for name in _source(module).imports["anywhere"]:
        if name.startswith("collbench.") and not name.startswith("collbench.plugins"):
            assert name.split(".")[1] in above, f"{module.name} in {_package(module)} imports {name}"


def _imported_plugins(module: Path) -> set[str]:
    """Return the plug-ins that a module imports, also lazily and for typing."""
    return {name.split(".")[2] for name in _source(module).of_collbench["anywhere"] if name.startswith("collbench.plugins.")}


def _names(node: ast.AST) -> list[str]:
    """Return the names of modules, and of what may be modules, of an import."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module:
        return [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return []


def _outside_functions(statements: list[ast.stmt], *, typing: bool) -> Iterator[ast.stmt]:
    """Yield the statements that an import of their module runs; if `typing`, also those for typing."""
    for statement in statements:
        yield statement
        if isinstance(statement, ast.FunctionDef):
            continue
        if isinstance(statement, ast.If) and ast.unparse(statement.test) == "TYPE_CHECKING" and not typing:
            continue
        for part in ("body", "orelse", "finalbody"):
            yield from _outside_functions(getattr(statement, part, []), typing=typing)
        for handler in getattr(statement, "handlers", []):
            yield from _outside_functions(handler.body, typing=typing)


def test_the_core_imports_no_plugin() -> None:
    imports = {str(module.relative_to(PACKAGE)): _imported_plugins(module) for module in CORE}
    assert not {module: plugins for module, plugins in imports.items() if plugins}


@pytest.mark.parametrize("name", [name for name in BUILTIN if name in plugins()])
def test_a_plugin_imports_only_the_core_and_what_it_needs(name: str) -> None:
    imported = set[str]().union(*(_imported_plugins(module) for module in (PACKAGE / "plugins" / name).rglob("*.py")))
    assert imported - {name} == set(plugins()[name].needs)


@cache
def _imported_with(module: Path) -> set[str]:
    """Return the names that a test or tool imports outside of functions."""
    statements = _outside_functions(_tree(module).body, typing=False)
    return {name for statement in statements for name in _names(statement)}


def _file_of(name: str) -> Path | None:
    """Return the file of a module of the tests or the tools; None for any other module."""
    if name.partition(".")[0] not in ("tests", "tools", "site_pages"):
        return None
    path = (ROOT / "tools" if name.startswith("site_pages") else ROOT).joinpath(*name.split("."))
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.exists()), None)


def _plugins_imported_by_test(module: Path) -> set[str]:
    """Return the modules of plug-ins that pytest imports to collect a module, also through helpers and tools."""
    imported = set[str]()
    waiting = [module]
    seen = set[Path]()
    while waiting:
        file = waiting.pop()
        seen.add(file)
        names = _imported_with(file)
        imported |= {name for name in names if name.startswith(("collbench.plugins.", "tests.plugins."))}
        waiting += [other for name in names if (other := _file_of(name)) is not None and other not in seen]
    return imported


def test_the_tests_of_the_core_import_no_plugin() -> None:
    """`make test-core` collects them without plug-ins. What needs a plug-in belongs to tests/plugins, else it uses `needs_plugin`."""
    modules = [module for module in (ROOT / "tests").rglob("*.py") if module.relative_to(ROOT).parts[1] != "plugins"]
    imported = {str(module.relative_to(ROOT)): _plugins_imported_by_test(module) for module in modules}
    assert {module: names for module, names in imported.items() if names} == {}


def test_every_folder_of_plugins_is_a_builtin_plugin() -> None:
    assert {path.parent.name for path in PACKAGE.glob("plugins/*/__init__.py")} <= set(BUILTIN)


def _imported_by(when: str) -> dict[str, set[str]]:
    """Return by module of the core the modules of the core that it imports outside of functions.

    Without `collbench/__init__.py`, which names the Python API.
    """
    modules = {".".join(module.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): module for module in CORE}
    del modules["collbench"]
    files = {name: str(module.relative_to(PACKAGE)) for name, module in modules.items()}
    return {
        files[name]: {files[other] for other in _source(module).of_collbench[when] if other in files} for name, module in modules.items()
    }


def _circles(imported_by: Mapping[str, set[str]]) -> list[set[str]]:
    """Return the largest sets of modules that import one another, directly or not."""
    reached = {module: _reached(module, imported_by) for module in imported_by}
    circles: list[set[str]] = []
    for module in sorted(imported_by):
        circle = {other for other in reached[module] if module in reached[other]}
        if circle and circle not in circles:
            circles.append(circle)
    return circles


def _reached(module: str, imported_by: Mapping[str, set[str]]) -> set[str]:
    """Return the modules that an import of a module imports, itself only in a circle."""
    reached = set[str]()
    waiting = set(imported_by[module])
    while waiting:
        other = waiting.pop()
        reached.add(other)
        waiting |= imported_by[other] - reached
    return reached


def test_no_import_of_the_core_is_a_circle() -> None:
    assert _circles(_imported_by("at run time")) == []


def test_imports_of_the_core_for_typing_are_no_new_circle() -> None:
    assert _circles(_imported_by("for typing")) == KNOWN_CIRCLES


@pytest.mark.parametrize("package", sorted(LIGHT))
def test_a_laptop_can_report_and_gate(package: str) -> None:
    for module in (PACKAGE / package).rglob("*.py"):
        heavy = {name.split(".")[0] for name in _source(module).imports["anywhere"]} & HEAVY - (DRAWING if package == "report" else set())
        assert heavy <= ({"pynvml"} if module.name == "nvml.py" else set()), f"{module.name} imports {heavy}"


def test_nothing_for_drawing_is_imported_before_something_is_drawn() -> None:
    for module in MODULES:
        drawing = {name.split(".")[0] for name in _source(module).imports["first"]} & DRAWING
        assert not drawing, f"{module.name} imports {drawing}"


@pytest.mark.parametrize("module", sorted((PACKAGE / "cli").glob("*.py")), ids=lambda m: m.name)
def test_the_command_line_imports_nothing_heavy_at_start(module: Path) -> None:
    if module.name == "listening.py":
        pytest.skip("only rank 0 imports it, when it has something to show")
    assert not {name.split(".")[0] for name in _source(module).imports["first"]} & AT_START


def test_backends_import_their_libraries_only_in_functions() -> None:
    for module in (*(PACKAGE / "backends").rglob("*.py"), *(PACKAGE / "device").rglob("*.py")):
        assert not {name.split(".")[0] for name in _source(module).imports["first"]} & HEAVY, module.name


def test_device_alone_imports_cupy() -> None:
    others = [module for module in MODULES if _package(module) not in ("device", "plugins")]
    assert not [module for module in others if "cupy" in {name.split(".")[0] for name in _source(module).imports["anywhere"]}]


def test_the_mpi_path_never_imports_torch() -> None:
    assert "torch" not in {name.split(".")[0] for name in _source(PACKAGE / "backends" / "mpi.py").imports["anywhere"]}


def test_no_path_or_registry_of_any_machine_is_committed() -> None:
    for file in [
        *MODULES,
        ROOT / "README.md",
        *(ROOT / "docs").rglob("*.md"),
        ROOT / "Makefile",
        ROOT / "constraints.txt",
        ROOT / "pyproject.toml",
    ]:
        text = file.read_text(encoding="utf-8")
        assert f"{ROOT}/" not in text, file
        assert "index-url" not in text.lower().replace("_", "-") or file.name == "Makefile", file


def test_every_public_name_has_a_docstring() -> None:
    for module in MODULES:
        source = _source(module)
        assert source.has_docstring or source.is_empty, module
        for kind in source.classes:
            assert kind.has_docstring or kind.name.startswith("_"), f"{module}:{kind.line} {kind.name}"


def test_every_class_name_has_one_meaning() -> None:
    places: dict[str, list[str]] = {}
    for module in MODULES:
        for kind in _source(module).classes:
            places.setdefault(kind.name, []).append(str(module.relative_to(PACKAGE)))
    assert {name: modules for name, modules in places.items() if len(modules) > 1} == {}
