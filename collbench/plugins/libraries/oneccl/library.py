"""oneCCL: its search and loading, collbench's C functions over its C++ interface (shim.cpp), and their declarations.

oneCCL 2021 has a C++ interface only. The C interface of later versions is in libccl.so.2, which the wheel oneccl-cpu lacks. So the C
functions are compiled with the headers of the installed oneCCL at the first use, and stored in the user's cache.
Source of the numbers: oneapi/ccl/types.hpp of oneCCL 2021.16.
"""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from ctypes import POINTER, byref, c_char_p, c_int32, c_int64, c_uint64, c_void_p
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import msgspec

from collbench.backends.unavailable import DoesNotLoad, LibraryNotFound, LibraryUnusable, NotInstalled
from collbench.compiled import compiled, key_of, stored
from collbench.errors import CollbenchError, RunFailed, UsageError

CHOSEN = "COLLBENCH_ONECCL"
ROOT_VARIABLE = "CCL_ROOT"  # set by Intel's setvars.sh
WHEEL = "oneccl-cpu"
INSTALL = "pip install 'collbench[oneccl]'"
NAME = "libccl.so.1"
_HEADER = "oneapi/ccl.hpp"
_SHIM = Path(__file__).with_name("shim.cpp")
_OPTIONS = ("-std=c++17", "-O2", "-fPIC", "-shared", "-fvisibility=hidden")
_COMPILE_S = 120
_ADDRESS_BYTES = 256

# Enumerators: ccl::datatype and ccl::reduction. The average exists, but every data type is refused on host memory (2021.16).

DATATYPES: Mapping[str, int] = {
    "int8": 0, "uint8": 1, "int32": 4, "uint32": 5, "int64": 6, "uint64": 7,
    "float16": 8, "float32": 9, "float64": 10, "bfloat16": 11,
}  # fmt: skip
SAME_WIDTH: Mapping[int, str] = {1: "int8", 2: "float16", 4: "int32", 8: "int64"}
REDOPS: Mapping[str, int] = {"sum": 0, "prod": 1, "min": 2, "max": 3}
OPERATIONS: Mapping[str, int] = {
    name: number
    for number, name in enumerate(
        (
            "allreduce", "reduce", "broadcast", "allgather", "allgatherv", "alltoall", "alltoallv", "reduce_scatter", "barrier",
            "send", "recv",
        )
    )
}  # fmt: skip


class Arguments(ctypes.Structure):
    """`arguments` of shim.cpp."""

    _fields_ = [
        ("operation", c_int32),
        ("type", c_int32),
        ("reduction", c_int32),
        ("rank", c_int32),
        ("send", c_void_p),
        ("receive", c_void_p),
        ("count", c_uint64),
        ("sent", c_void_p),
        ("received", c_void_p),
        ("ranks", c_uint64),
        ("communicator", c_void_p),
        ("cached", c_char_p),
    ]


class Installation(msgspec.Struct, frozen=True):
    """An installed oneCCL.

    prefix    the folder with `lib` and `include`
    about     its package and version, or the variable that names the folder: "oneccl-cpu 2021.16.2"
    """

    prefix: Path
    about: str

    @property
    def library(self) -> Path:
        """The library with the C++ interface."""
        return self.prefix / "lib" / NAME

    @property
    def headers(self) -> Path:
        """The folder of the headers."""
        return self.prefix / "include"


def installation(env: Mapping[str, str] = os.environ) -> Installation:
    """Return the oneCCL in COLLBENCH_ONECCL or CCL_ROOT, else that of the wheel. Raises LibraryUnusable."""
    for variable in (CHOSEN, ROOT_VARIABLE):
        if env.get(variable):
            return Installation(Path(env[variable]), f"the oneCCL of {variable}")
    try:
        wheel = distribution(WHEEL)
    except PackageNotFoundError:
        raise LibraryUnusable(NotInstalled(WHEEL, INSTALL)) from None
    for file in wheel.files or ():
        if file.name == NAME:
            return Installation(Path(str(file.locate())).resolve().parents[1], f"{WHEEL} {wheel.version}")
    raise LibraryUnusable(DoesNotLoad(f"{WHEEL} {wheel.version}", f"it has no {NAME}", INSTALL))


def load_ccl(oneccl: Installation) -> ctypes.CDLL:
    """Return oneCCL's library. Raises LibraryUnusable."""
    try:
        return _loaded(str(oneccl.library))
    except OSError as error:
        if not oneccl.library.exists():
            remedy = f"set {CHOSEN} to a folder with lib/{NAME} and include/{_HEADER}"
            raise LibraryUnusable(LibraryNotFound("oneCCL", f"{oneccl.library} is missing", remedy)) from error
        raise LibraryUnusable(DoesNotLoad(oneccl.about, str(error), INSTALL)) from error


@cache
def _loaded(path: str) -> ctypes.CDLL:
    return ctypes.CDLL(path)


def check_usable(env: Mapping[str, str] = os.environ) -> Installation:
    """Return the oneCCL to use: it loads, and the C functions are compiled or can be. Raises LibraryUnusable."""
    oneccl = installation(env)
    load_ccl(oneccl)
    if not (oneccl.headers / _HEADER).is_file():
        raise LibraryUnusable(NotInstalled("oneccl-cpu-devel", INSTALL, oneccl.about))
    if stored(_key(oneccl), ".so") is None and _compiler(env) is None:
        raise LibraryUnusable(NotInstalled("a C++ compiler", "apt-get install g++", "collbench's interface to oneCCL"))
    return oneccl


def _compiler(env: Mapping[str, str]) -> str | None:
    return shutil.which(env.get("CXX") or "c++", path=env.get("PATH"))


def _key(oneccl: Installation) -> str:
    """Return a name from all inputs of the C functions. Releases differ in their config.h."""
    config = oneccl.headers / "oneapi/ccl/config.h"
    parts = (_SHIM.read_bytes(), config.read_bytes() if config.exists() else b"", repr(_OPTIONS).encode(), str(oneccl.library).encode())
    return f"oneccl-{platform.machine()}-{key_of(*parts)}"


def _compile(oneccl: Installation, env: Mapping[str, str]) -> bytes:
    """Return the shared object. Raises RunFailed with the compiler's first error."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder, "shim.so")
        command = [_compiler(env) or "c++", *_OPTIONS, "-isystem", str(oneccl.headers), str(_SHIM), str(oneccl.library), "-o", str(target)]
        failure = f"{command[0]} does not compile collbench's interface to {oneccl.about}"
        try:
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_COMPILE_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise RunFailed(f"{failure}: {error}") from error
        if done.returncode:
            lines = done.stderr.splitlines() or [f"exit code {done.returncode}"]
            raise RunFailed(f"{failure}: {next((line for line in lines if 'error' in line), lines[0])}")
        return target.read_bytes()


class OneCcl:
    """collbench's C functions over a loaded oneCCL. Raises LibraryUnusable; RunFailed if they do not compile."""

    def __init__(self, env: Mapping[str, str] = os.environ) -> None:
        self.installation = check_usable(env)
        self._ccl = load_ccl(self.installation)  # the shared object below needs it, and finds it loaded
        path = compiled(_key(self.installation), ".so", lambda: _compile(self.installation, env))
        try:
            self.shim = ctypes.CDLL(str(path))
        except OSError as error:
            raise LibraryUnusable(DoesNotLoad(self.installation.about, str(error), INSTALL)) from error
        for name in ("error", "version"):
            getattr(self.shim, f"collbench_oneccl_{name}").restype = c_char_p
        self.shim.collbench_oneccl_make_communicator.argtypes = [c_int64, c_int64, c_void_p, POINTER(c_void_p)]
        for name in ("close_store", "free_communicator", "free_request"):
            getattr(self.shim, f"collbench_oneccl_{name}").argtypes = [c_void_p]

    @property
    def version(self) -> str:
        """The version of the loaded library."""
        return str(self.shim.collbench_oneccl_version().decode())

    def error(self, _code: int = 1) -> str:
        """Return the text of this thread's last exception."""
        return str(self.shim.collbench_oneccl_error().decode(errors="replace"))

    def pointer(self, name: str) -> int:
        """Return the address of a C function, for a NativeCall."""
        return ctypes.cast(getattr(self.shim, f"collbench_oneccl_{name}"), c_void_p).value or 0

    def initialize(self) -> None:
        """Start the library, which reads its environment variables. Raises UsageError if it refuses one."""
        self._check(self.shim.collbench_oneccl_init(), "init", UsageError)

    def open_store(self) -> tuple[bytes, c_void_p]:
        """Return the address and the handle of a new key-value store, which this process serves. Raises RunFailed."""
        address = ctypes.create_string_buffer(_ADDRESS_BYTES)
        store = c_void_p()
        self._check(self.shim.collbench_oneccl_open_store(address, byref(store)), "create_main_kvs")
        return address.raw, store

    def join_store(self, address: bytes) -> c_void_p:
        """Return the handle of another process's store. Raises RunFailed."""
        store = c_void_p()
        self._check(self.shim.collbench_oneccl_join_store(address, byref(store)), "create_kvs")
        return store

    def communicator(self, ranks: int, rank: int, store: c_void_p) -> int:
        """Return the handle of a communicator, which all of its ranks make together. Raises RunFailed."""
        handle = c_void_p()
        self._check(self.shim.collbench_oneccl_make_communicator(ranks, rank, store, byref(handle)), "create_communicator")
        return handle.value or 0

    def request(self, arguments: Arguments) -> int:
        """Return the handle of a request. Raises RunFailed."""
        handle = c_void_p()
        self._check(self.shim.collbench_oneccl_make_request(byref(arguments), byref(handle)), "create_operation_attr")
        return handle.value or 0

    def free(self, kind: str, handle: int | c_void_p) -> None:
        """Free a "request", a "communicator" or, with "store", close a store."""
        function = "close_store" if kind == "store" else f"free_{kind}"
        getattr(self.shim, f"collbench_oneccl_{function}")(handle)

    def _check(self, code: int, function: str, kind: type[CollbenchError] = RunFailed) -> None:
        if code:
            remedy = "check the CCL_* and FI_* variables; CCL_LOG_LEVEL=info shows more"
            raise kind(f"oneCCL's {function} failed ({self.error()}): {remedy}")
