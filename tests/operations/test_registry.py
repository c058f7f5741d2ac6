"""Operations are found by their files and by entry points; a broken plug-in is one sentence."""

import sys
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from zipfile import ZipFile

import pytest

from collbench.operations.builtin.allgather import ALLGATHER
from collbench.operations.builtin.reducescatter import REDUCESCATTER
from collbench.operations.registry import _found, broken, commands, operations
from collbench.plugin import entries


class Point:
    """An entry point of an installed package."""

    def __init__(self, name, found):
        self.name, self.value, self.dist, self._found = name, f"package:{name}", SimpleNamespace(name="maker"), found

    def load(self):
        if isinstance(self._found, Exception):
            raise self._found
        return self._found


@pytest.fixture
def install(monkeypatch):
    """Installs plug-ins for one test."""

    def these(**found):
        points = [Point(name, what) for name, what in found.items()]
        monkeypatch.setattr("collbench.plugin._is_declared", lambda group: True)
        monkeypatch.setattr("importlib.metadata.entry_points", lambda group: points if group == "collbench.operations" else [])
        _found.cache_clear()

    yield these
    _found.cache_clear()


def test_each_operation_is_registered_under_its_name_and_a_command_may_have_several():
    assert operations() and all(name == operation.name for name, operation in operations().items())
    assert [operation.name for operation in commands()["p2p"]] == ["p2p_latency", "p2p_bandwidth", "p2p_bidirectional"]
    assert [operation.name for operation in commands()["allreduce"]] == ["allreduce"]
    assert [operation.name for operation in commands()["put"]] == ["put_latency", "put_bandwidth"]


def test_a_plug_in_is_an_operation_or_a_module_of_several_and_replaces_none_of_ours(install):
    mine = replace(ALLGATHER, name="mine")
    install(gathers=mine)
    assert operations()["mine"] is mine
    assert commands()["mine"] == [mine]
    module = ModuleType("several")
    module.one, module.two, module.other = replace(ALLGATHER, name="one"), replace(REDUCESCATTER, name="two"), 3
    install(several=module)
    assert {"one", "two"} <= set(operations())
    install(mine=replace(ALLGATHER, name="allreduce"))
    assert operations()["allreduce"].reduces


@pytest.mark.parametrize("about", ["pack-1.0.dist-info", "pack.egg-info", "pack.egg/EGG-INFO", "pack.zip"])
def test_a_plug_in_is_found_in_every_form_of_install(about, tmp_path, monkeypatch):
    files = {"METADATA": "Metadata-Version: 2.1\nName: pack\nVersion: 1.0\n", "entry_points.txt": "[collbench.operations]\nmine = pack\n"}
    files["PKG-INFO"] = files["METADATA"]
    place = tmp_path / about
    if place.suffix == ".zip":
        with ZipFile(place, "w") as archive:
            for name, text in files.items():
                archive.writestr(f"pack-1.0.dist-info/{name}", text)
    else:
        place.mkdir(parents=True)
        for name, text in files.items():
            (place / name).write_text(text)
    monkeypatch.syspath_prepend(place if place.suffix == ".zip" else place.parent)
    assert entries("collbench.operations", ())["mine"].package == "pack"


@pytest.mark.parametrize("found", [ImportError("no module named 'numpyy'"), ZeroDivisionError("division by zero")], ids=repr)
def test_a_plug_in_that_does_not_load_is_one_sentence(install, found):
    install(wrong=found)
    error = broken()["wrong"]
    assert (error.plugin, error.place, error.remedy) == ("wrong", "package:wrong", "fix or uninstall maker")
    assert f"({type(found).__name__}: {found})" in error.defect
    assert "wrong" not in operations() and "allreduce" in operations()


@pytest.mark.parametrize("found", [3, "allreduce", ModuleType("empty"), Point], ids=str)
def test_a_plug_in_that_holds_no_operation_is_one_sentence(install, found):
    install(empty=found)
    assert broken()["empty"].defect == "contains no Operation"


@pytest.mark.contract
def test_finding_the_operations_imports_no_numpy_and_no_library():
    import subprocess

    code = "import sys, collbench.operations.registry as r; r.operations(); print({'numpy', 'torch', 'mpi4py'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "set()\n"
