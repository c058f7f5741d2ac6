"""The double offers nothing that the real cupy, NCCL and driver have not: names, arguments and numbers are theirs."""

import ast
import json
import re
import subprocess
from pathlib import Path

import pytest

from collbench.backends.nccl.library import ONLY_RCCL
from tests.fake_gpu.build import HERE, PYTHON
from tests.fake_gpu.facts import declared, exported

CUPY = PYTHON / "cupy"
# The real object that a file of the fake replaces; the others have no public names.
MODULES = {"cuda/runtime.py": "cuda.runtime", "cuda/nvrtc.py": "cuda.nvrtc"}
CLASSES = {
    "cuda/_stream.py": {
        "Event": "cuda.Event", "Graph": "cuda.graph.Graph", "Stream": "cuda.Stream", "get_elapsed_time": "cuda.get_elapsed_time",
    },
    "cuda/_device.py": {"Device": "cuda.Device"},
    "cuda/_module.py": {"RawModule": "RawModule"},
    "cuda/_pinned.py": {"PinnedMemoryPointer": "cuda.PinnedMemoryPointer", "alloc_pinned_memory": "cuda.alloc_pinned_memory"},
    "cuda/driver.py": {"CUDADriverError": "cuda.driver.CUDADriverError"},
    "_libcuda.py": {"CUDARuntimeError": "cuda.runtime.CUDARuntimeError"},
}  # fmt: skip

# Queries the real cupy: for each dotted name its arguments, None if it has none or they are unknown, "missing" without the name.
ASK = """
import inspect, json, re, sys
import cupy, cupy.cuda.graph
def arguments(thing):
    try:
        return [name for name in inspect.signature(thing).parameters if name not in ("self", "args", "kwargs")]
    except (TypeError, ValueError):
        first = (getattr(thing, "__doc__", None) or "").strip().splitlines()[:1]
        found = re.match(r"[\\w.]+\\((.*)\\)", first[0]) if first else None
        if not found: return None
        words = [word.strip() for word in re.sub(r"\\([^)]*\\)", "()", found[1]).split(",")]
        return [word.split("=")[0].split()[-1] for word in words if word not in ("", "self", "*", "cls")]
def look(name):
    thing = cupy
    for part in name.split("."):
        if not hasattr(thing, part): return "missing"
        thing = getattr(thing, part)
    return arguments(thing) if callable(thing) else None
print(json.dumps({name: look(name) for name in json.load(sys.stdin)}))
"""


def in_venv(python, code, given=""):
    done = subprocess.run([python, "-c", code], input=given, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _arguments(function):
    return [one.arg for one in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs) if one.arg != "self"]


def _public(nodes):
    """Functions with their arguments; constants and properties with None."""
    for node in nodes:
        if isinstance(node, ast.FunctionDef):
            yield node.name, None if node.decorator_list else _arguments(node)
        elif isinstance(node, ast.Assign):
            yield from ((name.id, None) for target in node.targets for name in ast.walk(target) if isinstance(name, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id, None


def _offered():
    found = {}
    for file, module in MODULES.items():
        found |= {f"{module}.{name}": arguments for name, arguments in _public(ast.parse((CUPY / file).read_text()).body)}
    for file, names in CLASSES.items():
        for node in ast.parse((CUPY / file).read_text()).body:
            if isinstance(node, ast.FunctionDef) and node.name in names:
                found[names[node.name]] = _arguments(node)
            elif isinstance(node, ast.ClassDef) and node.name in names:
                found |= {f"{names[node.name]}.{name}": arguments for name, arguments in _public(node.body)}
                found[names[node.name]] = found.pop(f"{names[node.name]}.__init__", None)
    return {name: arguments for name, arguments in found.items() if not re.search(r"\._(?!_)", name)}


# Attributes of each object and not of its class, and how objects come and go.
OWN = {"cuda.runtime.__all__", "cuda.PinnedMemoryPointer", "cuda.graph.Graph", *(f"cuda.{name}" for name in (
    "Device.__exit__", "Stream.__exit__", "Stream.__del__", "Event.__del__", "graph.Graph.__del__"))}  # fmt: skip


@pytest.mark.contract
def test_cupy_has_every_name_with_these_arguments(cuda_python):
    offered = {name: arguments for name, arguments in _offered().items() if name not in OWN}
    assert len(offered) > 70
    real = json.loads(in_venv(cuda_python, ASK, json.dumps(sorted(offered))))
    assert not [name for name in offered if real[name] == "missing"]
    both = [name for name in offered if offered[name] is not None and real[name] is not None]
    assert len(both) > 50
    # A real function may take more, behind those of the double.
    assert {name: offered[name] for name in both} == {name: real[name][: len(offered[name] or ())] for name in both}


CONSTANTS = {
    "memcpyHostToHost": 0, "memcpyHostToDevice": 1, "memcpyDeviceToHost": 2, "memcpyDeviceToDevice": 3, "memcpyDefault": 4,
    "hostAllocDefault": 0, "hostAllocPortable": 1,
    "streamCaptureModeGlobal": 0, "streamCaptureModeThreadLocal": 1, "streamCaptureModeRelaxed": 2,
}  # fmt: skip
ASK_VALUES = """
import cupy, json, sys
names, statuses = json.load(sys.stdin)
runtime = cupy.cuda.runtime
print(json.dumps([{name: getattr(runtime, name) for name in names}, [str(runtime.CUDARuntimeError(status)) for status in statuses]]))
"""


@pytest.mark.contract
def test_cupys_constants_and_errors_are_the_same(cuda_python):
    nodes = ast.parse((CUPY / "_libcuda.py").read_text()).body
    (table,) = (node.value for node in nodes if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_TEXTS")
    texts = ast.literal_eval(table)
    constants, errors = json.loads(in_venv(cuda_python, ASK_VALUES, json.dumps([[*CONSTANTS], [*texts]])))
    assert constants == CONSTANTS
    assert [error.partition(":")[0] for error in errors] == [name for name, _ in texts.values()]


@pytest.fixture(scope="module")
def headers(cuda_python):
    """nccl.h and cuda.h without comments."""
    folders = (Path(cuda_python).parents[1]).glob("lib/python3*/site-packages/nvidia")
    files = {name: file for folder in folders for name in ("nccl.h", "cuda.h") for file in folder.glob(f"*/include/{name}")}
    return {name: re.sub(r"/\*.*?\*/|//[^\n]*", "", file.read_text(), flags=re.DOTALL) for name, file in files.items()}


def numbers(text):
    named = re.findall(r"\b((?:nccl|CUDA_)\w+)\s*=\s*(0x\w+|\d+)\b", text)
    return {name: int(value, 0) for name, value in [*named, *re.findall(r"#define\s+(NCCL_\w+)\s+(0x\w+|\d+)\b", text)]}


def test_nccls_numbers_are_the_headers(headers):
    real, own = numbers(headers["nccl.h"]), numbers((HERE / "nccl/nccl.hpp").read_text())
    later = {name for name in own if name not in real}
    counts = {"ncclNumResults"}  # grows with versions
    assert later <= {"ncclTimeout"}, "in the header of NCCL 2.32"
    assert {name: own[name] for name in own.keys() - later - counts} == {name: real[name] for name in own.keys() - later - counts}
    assert len(own) > 30


def test_the_drivers_errors_are_the_headers(headers):
    real = numbers(headers["cuda.h"])
    named = dict(re.findall(r"\{(k\w+), \"(CUDA_\w+)\"", (HERE / "cuda/errors.cpp").read_text()))
    own = {name: int(value) for name, value in re.findall(r"\b(k\w+) = (\d+),", (HERE / "cuda/core.hpp").read_text())}
    assert {word: own[name] for name, word in named.items()} == {word: real[word] for word in named.values()}


def test_nccl_declares_every_function_so(headers):
    both, real = exported("nccl"), declared(headers["nccl.h"])  # the double also plays RCCL
    own = {name: kinds for name, kinds in both.items() if name not in ONLY_RCCL}
    assert len(own) >= 28
    assert own == {name: real[name] for name in own}
    assert not set(ONLY_RCCL) & set(real)


def test_the_driver_declares_every_function_so(headers):
    own, real = exported("cuda"), declared(headers["cuda.h"])
    assert len(own) > 45
    assert own == {name: real[name] for name in own}


@pytest.mark.contract
def test_the_real_nccl_has_its_headers_version(cuda_python, headers):
    code = """
import ctypes, nvidia.nccl
library = ctypes.CDLL(list(nvidia.nccl.__path__)[0] + "/lib/libnccl.so.2")
version = ctypes.c_int()
assert library.ncclGetVersion(ctypes.byref(version)) == 0
print(version.value)
"""
    major, minor, patch = (int(re.findall(rf"#define NCCL_{part} (\d+)", headers["nccl.h"])[0]) for part in ("MAJOR", "MINOR", "PATCH"))
    assert int(in_venv(cuda_python, code)) == 10000 * major + 100 * minor + patch
