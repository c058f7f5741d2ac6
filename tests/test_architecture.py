"""The rooms stand in the order in which data flows, import only upwards, and README lists them as they are."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "collbench"
README = (ROOT / "README.md").read_text(encoding="utf-8")
JOINTS = {"cli", "runner"}
LIGHT = {"stats", "analysis", "report", "gate", "topology", "peak", "doctor"}
HEAVY = {"torch", "mpi4py", "cupy", "pynvml", "pandas", "matplotlib"}
DRAWING = {"matplotlib", "jinja2", "prometheus_client"}  # the extra `report`: who only reads a table goes without
AT_START = {"numpy", "rich", "torch", "mpi4py", "zmq", "psutil", "hostlist", "ml_dtypes", "pandas"}


def _listed_rooms() -> list[str]:
    block = re.search(r"## Architecture.*?```\n(.*?)```", README, re.DOTALL)
    assert block, "README has no section Architecture with a list of rooms"
    return re.findall(r"^  (\w+)/ ", block[1], re.MULTILINE)


ROOMS = _listed_rooms()
MODULES = sorted(PACKAGE.rglob("*.py"))


def _room(module: Path) -> str:
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


def test_readme_lists_every_room_and_no_other() -> None:
    there = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    assert set(ROOMS) == there
    assert len(ROOMS) == len(set(ROOMS))


@pytest.mark.parametrize("module", [m for m in MODULES if _room(m) not in JOINTS | {""}], ids=lambda m: str(m.relative_to(PACKAGE)))
def test_a_room_imports_only_rooms_above_it(module: Path) -> None:
    above = ROOMS[: ROOMS.index(_room(module)) + 1]
    for name in _imports(module):
        if name.startswith("collbench."):
            target = name.split(".")[1]
            assert target in {*above, "units", "errors", "reading", "addresses"} - JOINTS, (
                f"{module.name} in {_room(module)} imports {name}"
            )


def test_the_runner_imports_neither_cli_nor_what_comes_after_results() -> None:
    after = set(ROOMS[ROOMS.index("results") + 1 :])
    for module in (PACKAGE / "runner").glob("*.py"):
        imported = {name.split(".")[1] for name in _imports(module) if name.startswith("collbench.")}
        assert not imported & (after | {"cli"}), f"{module.name} imports {imported & (after | {'cli'})}"


@pytest.mark.parametrize("room", sorted(LIGHT & set(ROOMS)))
def test_a_laptop_can_report_and_gate(room: str) -> None:
    for module in (PACKAGE / room).rglob("*.py"):
        heavy = {name.split(".")[0] for name in _imports(module)} & HEAVY - (DRAWING if room == "report" else set())
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


def test_the_room_device_alone_imports_cupy() -> None:
    others = [module for module in MODULES if _room(module) != "device"]
    assert not [module for module in others if "cupy" in {name.split(".")[0] for name in _imports(module)}]


def test_the_mpi_path_never_imports_torch() -> None:
    assert "torch" not in {name.split(".")[0] for name in _imports(PACKAGE / "backends" / "mpi.py")}


def test_no_path_or_registry_of_any_machine_is_committed() -> None:
    for file in [*MODULES, ROOT / "README.md", ROOT / "Makefile", ROOT / "constraints.txt", ROOT / "pyproject.toml"]:
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
