"""Packages import only packages above them in ARCHITECTURE.md's table; heavy libraries are imported where they are used."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

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


def _package(module: Path) -> str:
    parts = module.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else ""


def _imports(module: Path, *, at_import_only: bool = False) -> Iterator[str]:
    tree = ast.parse(module.read_text(encoding="utf-8"))
    nodes: list[ast.stmt] = tree.body if at_import_only else [n for n in ast.walk(tree) if isinstance(n, ast.stmt)]
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def test_architecture_lists_every_package_and_no_other() -> None:
    assert PACKAGES[0] == "collbench"
    assert set(PACKAGES[1:]) == {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    assert len(PACKAGES) == len(set(PACKAGES))


@pytest.mark.parametrize("module", [m for m in MODULES if _package(m)], ids=lambda m: str(m.relative_to(PACKAGE)))
def test_a_package_imports_only_packages_above_it(module: Path) -> None:
    above = set(PACKAGES[1 : PACKAGES.index(_package(module)) + 1]) | ROOT_MODULES
    for name in _imports(module):
        if name.startswith("collbench."):
            assert name.split(".")[1] in above, f"{module.name} in {_package(module)} imports {name}"


@pytest.mark.parametrize("package", sorted(LIGHT))
def test_a_laptop_can_report_and_gate(package: str) -> None:
    for module in (PACKAGE / package).rglob("*.py"):
        heavy = {name.split(".")[0] for name in _imports(module)} & HEAVY - (DRAWING if package == "report" else set())
        assert heavy <= ({"pynvml"} if module.name == "nvml.py" else set()), f"{module.name} imports {heavy}"


def test_nothing_for_drawing_is_imported_before_something_is_drawn() -> None:
    for module in MODULES:
        drawing = {name.split(".")[0] for name in _imports(module, at_import_only=True)} & DRAWING
        assert not drawing, f"{module.name} imports {drawing}"


@pytest.mark.parametrize("module", sorted((PACKAGE / "cli").glob("*.py")), ids=lambda m: m.name)
def test_the_command_line_imports_nothing_heavy_at_start(module: Path) -> None:
    if module.name == "listening.py":
        pytest.skip("only rank 0 imports it, when it has something to show")
    assert not {name.split(".")[0] for name in _imports(module, at_import_only=True)} & AT_START


def test_backends_import_their_libraries_only_in_functions() -> None:
    for module in (*(PACKAGE / "backends").rglob("*.py"), *(PACKAGE / "device").rglob("*.py")):
        assert not {name.split(".")[0] for name in _imports(module, at_import_only=True)} & HEAVY, module.name


def test_device_alone_imports_cupy() -> None:
    others = [module for module in MODULES if _package(module) != "device"]
    assert not [module for module in others if "cupy" in {name.split(".")[0] for name in _imports(module)}]


def test_the_mpi_path_never_imports_torch() -> None:
    assert "torch" not in {name.split(".")[0] for name in _imports(PACKAGE / "backends" / "mpi.py")}


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
        assert str(ROOT.parent) + "/" not in text, file
        assert "index-url" not in text.lower().replace("_", "-") or file.name == "Makefile", file


def test_every_public_name_has_a_docstring() -> None:
    for module in MODULES:
        tree = ast.parse(module.read_text(encoding="utf-8"))
        assert ast.get_docstring(tree) or not tree.body, module
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                assert ast.get_docstring(node), f"{module}:{node.lineno} {node.name}"


def test_every_class_name_has_one_meaning() -> None:
    places: dict[str, list[str]] = {}
    for module in MODULES:
        for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(str(module.relative_to(PACKAGE)))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}
