"""Builds the fake libcuda.so.1, libnccl.so.2 and libcufile.so.0 with g++, once per version of the sources: build/fake-gpu/<checksum>/.

AMD's libamdhip64.so.6 and librccl.so.1 are the same sources under other names, and are built only for the tests that use them.

In a checkout that cannot be written to they go to the system's temporary folder.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from hashlib import sha256
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
BUILD = ROOT / "build/fake-gpu" if os.access(ROOT, os.W_OK) else Path(tempfile.gettempdir(), f"collbench-fake-gpu-{os.geteuid()}")
PYTHON = HERE / "python"  # where the fake cupy lies
_COMPILE = ("g++", "-std=c++17", "-O1", "-Wall", "-Wextra", "-fPIC", "-fvisibility=hidden", "-pthread", "-c")
_LINK = ("g++", "-shared", "-pthread", "-Wl,-z,defs")
_SONAMES = {"cuda": "libcuda.so.1", "nccl": "libnccl.so.2", "cufile": "libcufile.so.0", "nvml": "libnvidia-ml.so.1"}
_AMD = {"hip": "libamdhip64.so.6", "rccl": "librccl.so.1"}
_SOURCES = {"hip": ("cuda", "hip"), "rccl": ("nccl",)}  # folders, where these are not named like the library
_DEFINES = {"hip": ("-DFAKE_HIP",), "rccl": ("-DFAKE_RCCL",)}
_EXPORTED = {"hip": "hip*; fakeGpuEnqueue;"}  # so that nothing of CUDA is found on a machine of AMD


class Missing(Exception):
    """g++ is missing."""


@cache
def libraries() -> Path:
    """The folder with cuda/libcuda.so.1, nccl/libnccl.so.2, cufile/libcufile.so.0 and nvml/libnvidia-ml.so.1. Raises Missing."""
    return _made(BUILD / _checksum(), _build_all)


@cache
def amd_libraries() -> Path:
    """The folder with hip/libamdhip64.so.6 and rccl/librccl.so.1. Raises Missing."""
    return _made(BUILD / f"{_checksum()}-amd", lambda folder: _build_all(folder, _AMD))


@cache
def nccl_without(functions: tuple[str, ...]) -> Path:
    """A folder with a libnccl.so.2 that has not these functions, as older versions have not. Raises Missing."""
    whole = libraries()
    if not functions:
        return whole / "nccl"

    def link(folder: Path) -> None:
        script = folder / "exported.map"
        script.write_text(f"{{ global: *; local: {' '.join(f'{name};' for name in functions)} }};\n")
        _link("nccl", whole / "nccl/nccl.o", folder, f"-Wl,--version-script={script}")

    return _made(whole.parent / "-".join((whole.name, *functions)), link)


def _checksum() -> str:
    files = sorted(file for folder in (*_SONAMES, "hip") for file in (HERE / folder).iterdir())
    text = b"".join(file.name.encode() + file.read_bytes() for file in files)
    return sha256(text + repr((_COMPILE, _LINK, _EXPORTED)).encode()).hexdigest()[:16]


def _made(folder: Path, build: Callable[[Path], object]) -> Path:
    """Return the complete folder: it is built next to its final path, and a second process uses the first one's."""
    if folder.exists():
        return folder
    if not shutil.which("g++"):
        raise Missing("the fake GPU is compiled by g++: apt-get install g++")
    BUILD.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=BUILD, prefix="part-") as part:
        made = Path(part) / "made"
        made.mkdir()
        build(made)
        try:
            made.rename(folder)
        except OSError:
            if not folder.exists():
                raise
    return folder


def _build_all(folder: Path, kinds: Collection[str] = _SONAMES.keys()) -> None:
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda kind: _build(kind, folder / kind), kinds))


def _build(kind: str, folder: Path) -> None:
    """All files as one text: most of the time goes into the headers of C++."""
    folder.mkdir()
    text, compiled = folder / f"{kind}.cpp", folder / f"{kind}.o"
    sources = [source for name in _SOURCES.get(kind, (kind,)) for source in sorted((HERE / name).glob("*.cpp"))]
    text.write_text("".join(f'#include "{source}"\n' for source in sources))
    _run([*_COMPILE, *_DEFINES.get(kind, ()), text, "-o", compiled])
    if kind in _EXPORTED:
        script = folder / "exported.map"
        script.write_text(f"{{ global: {_EXPORTED[kind]} local: *; }};\n")
        _link(kind, compiled, folder, f"-Wl,--version-script={script}")
    else:
        _link(kind, compiled, folder)


def _link(kind: str, compiled: Path, folder: Path, *options: str) -> None:
    soname = (_SONAMES | _AMD)[kind]
    _run([*_LINK, f"-Wl,-soname,{soname}", *options, compiled, "-o", folder / soname, "-ldl"])


def _run(command: Sequence[str | Path]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}\n{done.stderr}")
