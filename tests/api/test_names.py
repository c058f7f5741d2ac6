"""The exported names and signatures of the API, byte for byte (COLLBENCH_GOLDEN=1 writes them), its page, and what an import loads."""

import inspect
import os
import pkgutil
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import collbench
from collbench.api import frames
from collbench.api.measurement import OF_THE_COMMAND_LINE, OPTIONS_OF_OPERATIONS, option_words
from collbench.api.runs import Runs
from collbench.cli.options import Option
from collbench.plugin import api
from site_pages import reference_pages
from site_pages.api import FUNCTIONS
from tests.cli.command import ROOT, run
from tests.conftest import needs_all_plugins

GOLDEN = {False: ROOT / "tests/golden/api.txt", True: ROOT / "tests/golden/api_of_plugins.txt"}  # by whether plug-ins add the names
PLAIN = (
    "report reports/first-run", "compare reports/regression/before reports/regression/after",
    "gate --verdict reports/gate-trials/link-0/verdict.json", "runs reports",
)  # fmt: skip


def _signatures(of_plugins: bool) -> str:
    lines = []
    for name in sorted(name for name in collbench.__all__ if (name in api()) == of_plugins):
        value = getattr(collbench, name)
        if inspect.isclass(value):
            lines.append(f"class {name}({', '.join(base.__name__ for base in value.__bases__)})")
        elif callable(value):
            lines.append(f"{name}{inspect.signature(value)}".replace("'", ""))
        else:
            lines.append(name)
    for name, found in sorted(vars(Runs).items()):
        if (f"Runs.{name}" in api()) != of_plugins:
            continue
        if not name.startswith("_") and isinstance(found, property):
            lines.append(f"Runs.{name}")
        elif inspect.isfunction(found) and (not name.startswith("_") or name in ("__len__", "__getitem__")):
            lines.append(f"Runs.{name}{inspect.signature(found)}".replace("'", ""))
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("of_plugins", [False, pytest.param(True, marks=needs_all_plugins)], ids=["core", "plug-ins"])
def test_names_and_signatures_are_frozen(of_plugins: bool) -> None:
    found = _signatures(of_plugins)
    if os.environ.get("COLLBENCH_GOLDEN") == "1":
        GOLDEN[of_plugins].write_text(found)
    assert found == GOLDEN[of_plugins].read_text()


def test_all_names_are_listed_and_none_is_hidden_by_a_package() -> None:
    assert set(collbench.__all__) <= set(dir(collbench))
    with pytest.raises(AttributeError, match="'measured'"):
        collbench.measured  # type: ignore[attr-defined]  # noqa: B018
    packages = {module.name for module in pkgutil.iter_modules(collbench.__path__)}
    assert not packages & set(collbench.__all__)


def test_each_argument_is_an_option_of_the_command() -> None:
    arguments = set(inspect.signature(collbench.measure).parameters) - {"operation", "others"}
    assert arguments <= OPTIONS_OF_OPERATIONS.keys() - OF_THE_COMMAND_LINE


def test_an_option_without_an_argument_of_its_own_is_accepted_by_its_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A new option needs no change of the function."""
    started: list[Sequence[str]] = []
    monkeypatch.setitem(OPTIONS_OF_OPERATIONS, "settle", Option("--settle", "seconds before each case", "SECONDS"))  # type: ignore[arg-type]
    monkeypatch.setattr("collbench.api.measurement.run_command", lambda argv, folder: started.append(argv))
    monkeypatch.setattr("collbench.api.measurement.read", lambda folder: folder)
    collbench.measure("allreduce", ranks=2, out=tmp_path / "run", settle=1.5)
    assert "--settle=1.5" in started[0] and "--ranks=2" in started[0]
    for name in ("sizs", "html", "minimum"):
        with pytest.raises(TypeError, match=f"no argument '{name}'"):
            collbench.measure("allreduce", **{name: 1})  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "value", "words"), [
    ("sizes", [8, "1K"], ["--sizes=8,1K"]), ("sizes", 8, ["--sizes=8"]), ("dtype", "float32", ["--dtype=float32"]),
    ("root", (0, 1), ["--root=0,1"]), ("in_place", False, ["--out-of-place"]), ("in_place", True, ["--in-place"]), ("in_place", None, []),
    ("max_time", 0.5, ["--max-time=0.5"]), ("gpus_per_process", 2, ["--gpus-per-process=2"]),
    ("slowed", ["by=5%", "by=10%"], ["--slowed=by=5%", "--slowed=by=10%"]),
    ("traffic", Path("a b.csv"), ["--traffic=a b.csv"]), ("full", True, ["--full"]), ("full", False, []),
    ("only", "latency", ["--only=latency"]),
])  # fmt: skip
def test_an_argument_becomes_the_words_of_the_command(name: str, value: object, words: list[str]) -> None:
    assert option_words(name, value) == words


@pytest.mark.contract
@pytest.mark.often("report")
@pytest.mark.long  # starts a process for each
@pytest.mark.parametrize("words", PLAIN)
def test_plain_commands_import_neither_pandas_nor_the_api(words: str) -> None:
    done = run(ROOT, *words.split(), env={"PYTHONPROFILEIMPORTTIME": "1"})
    found = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert done.returncode in (0, 1) and "collbench.cli.main" in found
    assert not [name for name in found if name.startswith(("pandas", "pyarrow", "collbench.api"))]


@pytest.mark.contract
def test_neither_the_package_nor_the_api_imports_pandas_before_a_table_is_made() -> None:
    code = (
        "import sys, collbench; assert not {m for m in sys.modules if m.startswith('collbench.')}; "
        "collbench.read, collbench.compare, collbench.gate, collbench.measure, collbench.Runs; "
        "print(sorted({'pandas', 'pyarrow', 'matplotlib', 'torch', 'mpi4py'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("[]\n", "")


PAGE = reference_pages()["reference/api.md"]


def test_all_exported_names_methods_and_columns_are_described() -> None:
    for name in FUNCTIONS:
        own = PAGE.partition(f"\n### {name}\n")[2].partition("\n### ")[0]
        parameters = inspect.signature(getattr(collbench, name)).parameters
        assert parameters and all(re.sub("[\"']", "", f"    {each},\n") in own for each in parameters.values())
        assert all(f"`{each}`" in own for each in parameters)
    described = {*FUNCTIONS, "Runs", *re.findall(r"^\| `(\w+)` \| `\d` \|", PAGE, re.MULTILINE), "__version__"}
    assert described == set(collbench.__all__)
    methods = {name for name, found in vars(collbench.Runs).items() if inspect.isfunction(found) and not name.startswith("_")}
    assert all(f"| `{name}(" in PAGE for name in methods)
    for name, columns in frames.columns_of().items():
        own = PAGE.partition(f"### Runs.{name}()\n")[2].partition("\n### ")[0]
        assert re.findall(r"^\| `(\w+)` \|", own, re.MULTILINE) == list(columns)
