"""libucc.so.1: its search and loading, and the declarations of its C interface.

Source of the numbers and layouts: ucc/api/ucc.h and ucc_def.h of UCC 1.8.0. A test compares them with the installed header.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from ctypes import CFUNCTYPE, POINTER, c_char_p, c_double, c_int, c_int64, c_size_t, c_uint, c_uint16, c_uint32, c_uint64, c_void_p
from functools import cache
from pathlib import Path

from collbench.backends.unavailable import DoesNotLoad, LibraryNotFound, LibraryUnusable, UnknownVersion, WrongBuild
from collbench.errors import RunFailed

CHOSEN = "COLLBENCH_UCC"
_NAME = "libucc.so.1"
_INSTALL = f"install UCC 1.x (HPC-X has it; its own documentation describes how to build it), then set {CHOSEN} to its {_NAME}"
_UCX = f"add the UCX that it was built with, or a newer one, to LD_LIBRARY_PATH (or load its module), or set {CHOSEN} to another UCC"
_MAJOR = 1
_LAYERS = ("cl_basic", "mc_cpu", "ec_cpu", "tl_ucp")  # what collectives on host memory need: tl_ucp moves the data over UCX
_UCP = "libucp.so.0"
_UCX_LOG = "UCX_LOG_FILE"
_PATIENCE_S = 20.0
API = (1, 0)  # what ucc_init_version is asked for; every 1.x has these functions

# Enumerators: UCC_COLL_TYPE_* are bits, UCC_DT_* are numbers shifted by 3, UCC_OP_* are numbers.

COLLECTIVES: Mapping[str, int] = {
    "ALLGATHER": 1 << 0, "ALLGATHERV": 1 << 1, "ALLREDUCE": 1 << 2, "ALLTOALL": 1 << 3, "ALLTOALLV": 1 << 4, "BARRIER": 1 << 5,
    "BCAST": 1 << 6, "GATHER": 1 << 9, "GATHERV": 1 << 10, "REDUCE": 1 << 11, "REDUCE_SCATTER": 1 << 12, "REDUCE_SCATTERV": 1 << 13,
    "SCATTER": 1 << 14, "SCATTERV": 1 << 15,
}  # fmt: skip
DATATYPES: Mapping[str, int] = {
    "int8": 0 << 3, "int16": 1 << 3, "int32": 2 << 3, "int64": 3 << 3, "uint8": 5 << 3, "uint32": 7 << 3, "uint64": 8 << 3,
    "float16": 10 << 3, "float32": 11 << 3, "float64": 12 << 3, "bfloat16": 13 << 3,
}  # fmt: skip
# Types that host memory is reduced in: components/ec/cpu/ec_cpu_reduce.c has no float16. After such an error the next operation may hang.
REDUCED = frozenset(DATATYPES) - {"float16"}
WITHOUT_AVERAGE = frozenset({"reducescatter", "reducescatterv"})  # the ring of tl_ucp, which it selects for all sizes
SAME_WIDTH: Mapping[int, str] = {1: "int8", 2: "int16", 4: "int32", 8: "int64"}
REDOPS: Mapping[str, int] = {"sum": 0, "prod": 1, "max": 2, "min": 3, "band": 7, "bor": 8, "bxor": 9, "avg": 12}
HOST = 0  # UCC_MEMORY_TYPE_HOST
THREAD_SINGLE = 0
# UCC_COLL_ARGS_FLAG_*
IN_PLACE = 1
PERSISTENT = 2
COUNT_64 = 4
DISPLACEMENTS_64 = 8
FLAGS = 1  # UCC_COLL_ARGS_FIELD_FLAGS
IN_PROGRESS = 1
BY_ARRAY = 3  # UCC_EP_MAP_ARRAY
CONTEXT_OOB = 1 << 2  # UCC_CONTEXT_PARAM_FIELD_OOB
# UCC_TEAM_PARAM_FIELD_*
TEAM_EP = 1 << 2
TEAM_RANGE = 1 << 4
TEAM_MAP = 1 << 10


# Structures that collbench passes as a whole have the header's size.
AllgatherFunction = CFUNCTYPE(c_int, c_void_p, c_void_p, c_size_t, c_void_p, POINTER(c_void_p))
RequestFunction = CFUNCTYPE(c_int, c_void_p)


class LibraryParameters(ctypes.Structure):
    """ucc_lib_params_t."""

    _fields_ = [("mask", c_uint64), ("thread_mode", c_int), ("coll_types", c_uint64), ("reduction_types", c_uint64), ("sync_type", c_int)]


class OutOfBand(ctypes.Structure):
    """ucc_oob_coll_t: the all-gather through which the ranks of a context meet."""

    _fields_ = [
        ("allgather", AllgatherFunction),
        ("req_test", RequestFunction),
        ("req_free", RequestFunction),
        ("coll_info", c_void_p),
        ("n_oob_eps", c_uint32),
        ("oob_ep", c_uint32),
    ]


class ContextParameters(ctypes.Structure):
    """ucc_context_params_t."""

    _fields_ = [
        ("mask", c_uint64),
        ("type", c_int),
        ("sync_type", c_int),
        ("oob", OutOfBand),
        ("ctx_id", c_uint64),
        ("segments", c_void_p),
        ("n_segments", c_uint64),
    ]


class EndpointMap(ctypes.Structure):
    """ucc_ep_map_t with its member `array`: the ranks of a team, as ranks of the context."""

    _fields_ = [("type", c_int), ("ep_num", c_uint64), ("map", c_void_p), ("elem_size", c_size_t)]


class TeamParameters(ctypes.Structure):
    """ucc_team_params_t."""

    _fields_ = [
        ("mask", c_uint64),
        ("flags", c_uint64),
        ("ordering", c_int),
        ("outstanding_colls", c_uint64),
        ("ep", c_uint64),
        ("ep_list", c_void_p),
        ("ep_range", c_int),
        ("team_size", c_uint64),
        ("sync_type", c_int),
        ("oob", OutOfBand),
        ("p2p_conn", c_void_p * 5),
        ("segments", c_void_p),
        ("n_segments", c_uint64),
        ("ep_map", EndpointMap),
        ("id", c_uint64),
    ]


class BufferInfo(ctypes.Structure):
    """ucc_coll_buffer_info_t."""

    _fields_ = [("buffer", c_void_p), ("count", c_uint64), ("datatype", c_uint64), ("mem_type", c_int)]


class BufferInfoV(ctypes.Structure):
    """ucc_coll_buffer_info_v_t: `counts` and `displacements` are arrays of 64-bit numbers of elements, with the flags for that."""

    _fields_ = [("buffer", c_void_p), ("counts", c_void_p), ("displacements", c_void_p), ("datatype", c_uint64), ("mem_type", c_int)]


class Info(ctypes.Union):
    """The source or destination of a collective."""

    _fields_ = [("info", BufferInfo), ("info_v", BufferInfoV)]


class CollectiveArguments(ctypes.Structure):
    """ucc_coll_args_t."""

    _fields_ = [
        ("mask", c_uint64),
        ("coll_type", c_int),
        ("src", Info),
        ("dst", Info),
        ("op", c_int),
        ("flags", c_uint64),
        ("root", c_uint64),
        ("error_type", c_int),
        ("tag", c_uint16),
        ("global_work_buffer", c_void_p),
        ("cb", c_void_p * 2),
        ("timeout", c_double),
        ("active_set", c_int64 * 3),
        ("src_memh", c_void_p),
        ("dst_memh", c_void_p),
    ]


class RequestFunctions(ctypes.Structure):
    """library_t of native/requests.c."""

    _fields_ = [(name, c_void_p) for name in ("init", "post", "progress", "finalize", "context")]


@cache
def _loaded(path: str) -> ctypes.CDLL:
    """Return the library. UCX, which reads its settings as it is loaded, logs to stderr unless the user chooses: stdout has rows."""
    if _UCX_LOG in os.environ:
        return ctypes.CDLL(path)
    os.environ[_UCX_LOG] = "stderr"
    try:
        return ctypes.CDLL(path)
    finally:
        del os.environ[_UCX_LOG]


def load_ucc(env: Mapping[str, str] = os.environ) -> ctypes.CDLL:
    """Return the library in COLLBENCH_UCC, else the one that the loader finds. Raises LibraryUnusable."""
    path = env.get(CHOSEN) or _NAME
    try:
        library = _loaded(path)
    except OSError as error:
        if "undefined symbol" in str(error):
            raise LibraryUnusable(DoesNotLoad("UCC", str(error), _UCX)) from error
        raise LibraryUnusable(LibraryNotFound("UCC", str(error), _INSTALL)) from error
    if not hasattr(library, "ucc_init_version") or not hasattr(library, "ucc_get_version_string"):
        raise LibraryUnusable(WrongBuild(CHOSEN, path, "is not UCC", _INSTALL))
    library.ucc_status_string.restype = library.ucc_get_version_string.restype = c_char_p
    if version(library)[0] != _MAJOR:
        raise LibraryUnusable(UnknownVersion("UCC", ".".join(map(str, version(library))), f"{_MAJOR}.x", _INSTALL))
    return library


# Loads UCC, starts it, and loads the files named after it, in a process of its own: UCC's layers crash where UCC has not started.
_LOAD = """
import ctypes, sys
try:
    ctypes.CDLL(sys.argv[1]).ucc_lib_config_read(None, None, ctypes.byref(ctypes.c_void_p()))
    for file in sys.argv[2:]:
        ctypes.CDLL(file)
except OSError as error:
    sys.exit(str(error))
"""


def check_layers(library: ctypes.CDLL) -> None:
    """Raise LibraryUnusable if the layers that host memory needs are missing, or do not load (an older UCX lacks symbols).

    UCC leaves out layers that do not load, and then has no collectives. A check that takes too long finds nothing.
    """
    file = file_of(library)
    if file is None:
        return
    about = ".".join(map(str, version(library)))
    layers = {name: file.parent / f"ucc/libucc_{name}.so" for name in _LAYERS}
    for name, layer in layers.items():
        if not layer.exists():
            raise LibraryUnusable(WrongBuild("UCC", about, f"lacks its layer {name} ({layer} is missing), which needs UCX", _INSTALL))
    command = [sys.executable, "-P", "-S", "-c", _LOAD, str(file), *map(str, layers.values())]
    with suppress(subprocess.TimeoutExpired):
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_PATIENCE_S, check=False)
        if done.returncode:
            lines = done.stderr.strip().splitlines() or [f"a process that loads it ends with code {done.returncode}"]
            raise LibraryUnusable(DoesNotLoad(f"UCC {about}", lines[-1][:300], _UCX))


class _Symbol(ctypes.Structure):
    """Dl_info of dlfcn.h."""

    _fields_ = [("file", c_char_p), ("base", c_void_p), ("symbol", c_char_p), ("address", c_void_p)]


def file_of(library: ctypes.CDLL, function: str = "ucc_init_version") -> Path | None:
    """Return the file of the loaded library that has the function; None if the loader does not know it."""
    symbol = _Symbol()
    is_known = ctypes.CDLL(None).dladdr(ctypes.cast(getattr(library, function), c_void_p), ctypes.byref(symbol))
    return Path(os.fsdecode(symbol.file)) if is_known and symbol.file else None


def ucx_modules() -> Path | None:
    """Return the folder from which the UCX that this process has loaded takes its transports; None without one."""
    try:
        file = file_of(ctypes.CDLL("libucs.so.0", mode=os.RTLD_NOLOAD), "ucs_status_string")
    except (OSError, AttributeError):
        return None
    return file.resolve().parent / "ucx" if file else None


def ucx_version() -> str | None:
    """Return the version of the UCX that this process has loaded ("1.18.0"), or None."""
    try:
        get = ctypes.CDLL(_UCP, mode=os.RTLD_NOLOAD).ucp_get_version_string
    except (OSError, AttributeError):
        return None
    get.restype = c_char_p
    return str(get().decode())


def version(library: ctypes.CDLL) -> tuple[int, int, int]:
    """Return the loaded library's version."""
    numbers = [c_uint(0) for _ in range(3)]
    library.ucc_get_version(*map(ctypes.byref, numbers))
    major, minor, release = (number.value for number in numbers)
    return major, minor, release


def check(library: ctypes.CDLL, code: int, function: str) -> None:
    """Raise RunFailed with the library's text if `code` is an error."""
    if code < 0:
        raise RunFailed(f"{function} failed: {library.ucc_status_string(code).decode()}")
