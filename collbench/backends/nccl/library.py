"""libnccl.so.2: search and loading, its version, its error texts, and what each version supports."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

import msgspec

from collbench.backends.backend import Feature
from collbench.backends.unavailable import DoesNotLoad, LibraryNotFound, LibraryUnusable, UnknownVersion, WrongBuild
from collbench.errors import RunFailed
from collbench.operations.case import Case
from collbench.operations.operation import Operation, Reason
from collbench.operations.unsupported import (
    ArchitectureUnsupported,
    DeviceApiUnsupported,
    DtypeUnsupported,
    OptionUnsupported,
    RedopUnsupported,
    VersionNeeded,
)

# NCCL's constants and names, each with the version that introduced it.
#
# Sources: nccl.h of the wheel nvidia-nccl-cu13 2.32.3 (a test compares the numbers), and NVIDIA/nccl's history of src/nccl.h.in,
# src/graph/tuning.cc and src/enqueue.cc for the versions.

Version = tuple[int, ...]
OLDEST: Version = (2, 7)  # the first with ncclSend and ncclRecv
LAST_ERROR_SINCE: Version = (2, 13)  # the first with ncclGetLastError
SYMMETRIC_FLAG = 1  # NCCL_WIN_COLL_SYMMETRIC
UNIQUE_ID_BYTES = 128  # NCCL_UNIQUE_ID_BYTES
FP8_REDUCES_FROM = 90  # compute capability times 10: "FP8 reduction support begins with sm90 capable devices" (enqueue.cc)
OBEYS_FROM: Version = (2, 19)  # older versions silently use ring if they do not support the requested algorithm (tuning.cc)


class Word(msgspec.Struct, frozen=True):
    """An enumerator of nccl.h: its name, its number, and the first version that has it."""

    name: str
    number: int
    since: Version = (2, 0)


DATATYPES: Mapping[str, Word] = {
    "int8": Word("ncclInt8", 0),
    "uint8": Word("ncclUint8", 1),
    "int32": Word("ncclInt32", 2),
    "uint32": Word("ncclUint32", 3),
    "int64": Word("ncclInt64", 4),
    "uint64": Word("ncclUint64", 5),
    "float16": Word("ncclFloat16", 6),
    "float32": Word("ncclFloat32", 7),
    "float64": Word("ncclFloat64", 8),
    "bfloat16": Word("ncclBfloat16", 9, (2, 10)),
    "float8_e4m3fn": Word("ncclFloat8e4m3", 10, (2, 24)),
    "float8_e5m2": Word("ncclFloat8e5m2", 11, (2, 24)),
}
SAME_WIDTH = {1: "uint8", 2: "float16", 4: "uint32", 8: "uint64"}  # to move data of types that the loaded version does not have

REDOPS: Mapping[str, Word] = {
    "sum": Word("ncclSum", 0),
    "prod": Word("ncclProd", 1),
    "max": Word("ncclMax", 2),
    "min": Word("ncclMin", 3),
    "avg": Word("ncclAvg", 4, (2, 10)),
}

RESULTS: Mapping[int, Word] = {
    word.number: word
    for word in (
        Word("ncclSuccess", 0),
        Word("ncclUnhandledCudaError", 1),
        Word("ncclSystemError", 2),
        Word("ncclInternalError", 3),
        Word("ncclInvalidArgument", 4),
        Word("ncclInvalidUsage", 5),
        Word("ncclRemoteError", 6, (2, 13)),
        Word("ncclInProgress", 7, (2, 14)),
        Word("ncclTimeout", 8, (2, 30)),
    )
}

REMOTE_ERROR = 6  # an error of another rank, which has the details

# Operations that NCCL implements with sends and receives (own functions since 2.28), so that algorithm and protocol have no effect.
MADE_OF_MESSAGES = frozenset({"alltoall", "gather", "scatter"})

# How buffers are registered with NCCL: the function, and the first version that has it.
REGISTRATIONS: Mapping[str, tuple[str, Version]] = {
    "registered": ("ncclCommRegister", (2, 19)),
    "window": ("ncclCommWindowRegister", (2, 27)),
    "symmetric": ("ncclCommWindowRegister", (2, 27)),
}
WINDOW_FLAGS = {"window": 0, "symmetric": SYMMETRIC_FLAG}  # NCCL_WIN_DEFAULT and NCCL_WIN_COLL_SYMMETRIC
# Memory for calls of kernels, by which part of the device API makes them, with the first version that has it.
DEVICE_APIS: Mapping[str, Version] = {"device": (2, 28), "gin": (2, 28, 7)}
GPU_MEMORY = 3  # ncclStatGpuMemTotal: the memory that ncclCommMemStats counts

# Parts of NCCL's interface: its name, a function of it ("": by version), the first version, and where collbench uses it.
# Sources of the versions: the first tag of NVIDIA/nccl whose nccl.h.in or src/include/nccl_device has the function; for copy engines the
# condition on NCCL_CTA_POLICY_ZERO in src/enqueue.cc of 2.28.3; for the settings of one collective the release notes of 2.31.2.
_PARTS: Sequence[tuple[str, str, Version, str]] = (
    ("registered buffers", "ncclCommRegister", (2, 19), "--registration registered"),
    ("windows", "ncclCommWindowRegister", (2, 27), "--registration window"),
    ("symmetric windows", "ncclCommWindowRegister", (2, 27), "--registration symmetric"),
    ("alltoall, gather and scatter as calls", "ncclAlltoAll", (2, 28), "alltoall, gather, scatter"),
    ("split of a communicator", "ncclCommSplit", (2, 18), "init_halves, init_alternate, init_nodes"),
    ("communicator without some ranks", "ncclCommShrink", (2, 27), "init_reform"),
    ("communicator with more ranks", "ncclCommGrow", (2, 29, 2), ""),
    ("revoked communicator", "ncclCommRevoke", (2, 28, 7), ""),
    ("suspended communicator", "ncclCommSuspend", (2, 29, 7), ""),
    ("properties of a communicator", "ncclCommQueryProperties", (2, 29, 2), ""),
    ("memory of a communicator", "ncclCommMemStats", (2, 29, 7), "evidence.communicator of rows"),
    ("one-sided messages", "ncclPutSignal", (2, 29, 2), ""),
    ("device API", "ncclDevCommCreate", (2, 28), ""),
    ("network calls of kernels (GIN)", "", (2, 28, 7), ""),
    ("collectives by copy engines", "", (2, 28), "--registration symmetric, with NCCL_CTA_POLICY=2 in the environment"),
    ("settings of one collective", "", (2, 31), ""),
    ("NCCL parameters through calls", "ncclParamGet", (2, 30, 4), ""),
)

# The functions that make the groups of `init`, by operation. (`ncclCommInitRank`, which makes those of the others, is in every version.)
CREATIONS: Mapping[str, tuple[str, Version]] = {
    "init_halves": ("ncclCommSplit", (2, 18)),
    "init_alternate": ("ncclCommSplit", (2, 18)),
    "init_nodes": ("ncclCommSplit", (2, 18)),
    "init_reform": ("ncclCommShrink", (2, 27)),
}

ALGORITHM_SINCE: Mapping[str, Version] = {"pat": (2, 23)}  # the algorithms of sweep.ALGORITHMS that need a later version than OBEYS_FROM


def features_of(library: NcclLibrary) -> tuple[Feature, ...]:
    """Return which parts of NCCL's interface the loaded version has. RCCL's version does not show what it has; only its functions do."""
    by_version = library.dialect.name == "NCCL"
    parts = [part for part in _PARTS if part[1] or by_version]
    has = {name: library.has(function) if function else library.version >= since for name, function, since, _ in parts}
    return tuple(Feature(name, dotted(since) if by_version else "", has[name], use) for name, _, since, use in parts)


def version_of(code: int) -> Version:
    """Return ncclGetVersion's number as (major, minor, patch): 2832 is 2.8.32, 23203 is 2.32.3 (NCCL_VERSION of nccl.h)."""
    major = 10_000 if code >= 10_000 else 1_000
    return code // major, code % major // 100, code % 100


def code_of(version: Version) -> int:
    """Return a version as ncclGetVersion's number."""
    major, minor, patch = version
    return major * (10_000 if (major, minor) > (2, 8) else 1_000) + minor * 100 + patch


def dotted(version: Version) -> str:
    """Return a version as text: "2.32.3"."""
    return ".".join(map(str, version))


def datatype(name: str, width: int, version: Version, reduces: bool, words: Mapping[str, Word] = DATATYPES) -> int | None:
    """Return NCCL's number of a data type; None if this version cannot reduce it. words: the data types that the library has.

    Without a reduction, any type of the same width is used.
    """
    word = words.get(name)
    if word and word.since <= version:
        return word.number
    return None if reduces else DATATYPES[SAME_WIDTH[width]].number


SONAME = "libnccl.so.2"
CHOSEN = "COLLBENCH_NCCL"
ONLY_RCCL = ("ncclAllToAllv", "ncclAlltoAllv", "mscclLoadAlgo")  # functions of RCCL that NCCL does not have
_DEEPEST = 2  # groups inside one another: a rank's own group, inside that of all ranks of a process
_INSTALL = f"pip install 'collbench[cuda13]' (or cuda12), load your site's module, or set {CHOSEN} to the library's path"


class UniqueId(ctypes.Structure):
    """ncclUniqueId, which is passed by value."""

    _fields_ = [("internal", ctypes.c_ubyte * UNIQUE_ID_BYTES)]


class NcclFailed(RunFailed):
    """An untimed NCCL call returned an error. `code` is NCCL's (0: none), `last_error` the text of ncclGetLastError ("": none)."""

    def __init__(self, sentence: str, code: int = 0, last_error: str = "") -> None:
        super().__init__(sentence)
        self.code = code
        self.last_error = last_error


class NcclNotFound(LibraryUnusable):
    """No usable NCCL library was found."""


def fp8_on_cuda(library: str, dtype: str, arch: str) -> Reason | None:
    """Return why NCCL cannot reduce an 8-bit float on this GPU ("sm_90"), or None. For an unknown GPU, NCCL decides."""
    match = re.fullmatch(r"sm_(\d+)", arch)  # its number is the compute capability times 10
    return ArchitectureUnsupported(library, dtype, arch, "9.0") if match and int(match[1]) < FP8_REDUCES_FROM else None


class LibraryDialect(msgspec.Struct, frozen=True):
    """How a library with NCCL's interface differs from others.

    name        in messages: "NCCL"
    soname      of its shared object; folder: where pip's packages have it below `nvidia`, or ""
    datatypes   its data types, with the first version of each
    aliases     by NCCL's name of a function the library's own one, in versions without NCCL's
    fp8         (library, data type, GPU) -> why it cannot reduce an 8-bit float there, or None
    install     the remedy if it is missing
    """

    name: str
    soname: str
    datatypes: Mapping[str, Word]
    fp8: Callable[[str, str, str], Reason | None]
    install: str
    folder: str = ""
    aliases: Mapping[str, str] = msgspec.field(default_factory=dict)


NCCL = LibraryDialect("NCCL", SONAME, DATATYPES, fp8_on_cuda, _INSTALL, "nccl/lib")


class NcclLibrary(msgspec.Struct, frozen=True):
    """The loaded library: its handle, the path of the loaded file, its version, and its dialect."""

    handle: ctypes.CDLL
    path: str
    version: Version
    dialect: LibraryDialect = NCCL

    def _name(self, name: str) -> str:
        return name if hasattr(self.handle, name) else self.dialect.aliases.get(name, name)

    def has(self, name: str) -> bool:
        """Return whether this version has a function `name`, under this or its own name."""
        return hasattr(self.handle, self._name(name))

    def address(self, name: str) -> int:
        """Return the address of a function."""
        return ctypes.cast(getattr(self.handle, self._name(name)), ctypes.c_void_p).value or 0

    def call(self, name: str, *words: object) -> None:
        """Call a function that is not timed. Raises NcclFailed with NCCL's error text."""
        code = getattr(self.handle, name)(*words)
        if code:
            raise NcclFailed(f"{name} of {self.dialect.name} {dotted(self.version)} failed: {self.explain(code)}", code, self._last_error())

    def explain(self, code: int) -> str:
        """Return an error code as text: "ncclSystemError (2): unhandled system error; last error: …"."""
        self.handle.ncclGetErrorString.restype = ctypes.c_char_p
        name = RESULTS[code].name if code in RESULTS else "a code that nccl.h 2.32 does not have"
        last_error = self._last_error()
        return f"{name} ({code}): {_text(self.handle.ncclGetErrorString(code))}" + (f"; last error: {last_error}" if last_error else "")

    def explain_abort(self, code: int) -> str:
        """Return `explain`'s text for a call that ended a program early. Ends open groups, in which later calls would only wait."""
        words = self.explain(code)
        for _ in range(_DEEPEST):
            self.handle.ncclGroupEnd()
        return words

    def _last_error(self) -> str:
        if self.version < LAST_ERROR_SINCE:
            return ""
        self.handle.ncclGetLastError.restype = ctypes.c_char_p
        return " ".join(_text(self.handle.ncclGetLastError(None)).split())

    def unique_id(self) -> str:
        """Return the unique id of a new communicator, in hexadecimal for the control plane. Raises NcclFailed."""
        identity = UniqueId()
        self.call("ncclGetUniqueId", ctypes.byref(identity))
        return bytes(identity.internal).hex()


def load_nccl(env: Mapping[str, str]) -> NcclLibrary:
    """Return the library in COLLBENCH_NCCL, else the one that this process has loaded, else the wheel's, else the system's.

    Raises NcclNotFound if there is none, if the chosen one does not load or is RCCL, or if it is too old.
    """
    return load(env, NCCL)


def load(env: Mapping[str, str], dialect: LibraryDialect) -> NcclLibrary:
    """Return a library with NCCL's interface, found as `load_nccl` does. Raises NcclNotFound."""
    handle = _chosen(env[CHOSEN]) if env.get(CHOSEN) else _found(dialect)
    path = _loaded_from(handle)
    is_rccl = any(hasattr(handle, name) for name in ONLY_RCCL)
    if is_rccl != (dialect.name == "RCCL"):
        actual = "RCCL" if is_rccl else "NCCL"
        remedy = f"use --backend {actual.lower()}, or set another library"
        raise NcclNotFound(WrongBuild(CHOSEN, path, f"is {actual}, not {dialect.name}", remedy))
    code = ctypes.c_int()
    if handle.ncclGetVersion(ctypes.byref(code)):
        raise NcclNotFound(DoesNotLoad(path, "ncclGetVersion failed", f"reinstall it, or set {CHOSEN} to the path of another library"))
    version = version_of(code.value)
    if version < OLDEST:
        raise NcclNotFound(UnknownVersion(dialect.name, f"{dotted(version)} ({path})", f"{dotted(OLDEST)} and newer", dialect.install))
    return NcclLibrary(handle, path, version, dialect)


def _chosen(path: str) -> ctypes.CDLL:
    try:
        return _nccl_of(ctypes.CDLL(path))
    except OSError as error:
        raise NcclNotFound(DoesNotLoad(f"{CHOSEN}={path}", str(error), "correct or unset it")) from error


def _found(dialect: LibraryDialect) -> ctypes.CDLL:
    """Return the first library that loads, preferably one that this process has loaded: two would not share their state of the GPUs."""
    problem = ""
    for name, mode in _places(dialect):
        try:
            return _nccl_of(ctypes.CDLL(name, mode=mode))
        except OSError as error:
            problem = str(error)
    raise NcclNotFound(LibraryNotFound(dialect.name, problem, dialect.install))


def _places(dialect: LibraryDialect = NCCL) -> Iterator[tuple[str, int]]:
    yield dialect.soname, ctypes.DEFAULT_MODE | os.RTLD_NOLOAD
    spec = find_spec("nvidia") if dialect.folder else None
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        file = Path(folder) / dialect.folder / dialect.soname
        if file.exists():
            yield str(file), ctypes.DEFAULT_MODE
    yield dialect.soname, ctypes.DEFAULT_MODE


def _nccl_of(handle: ctypes.CDLL) -> ctypes.CDLL:
    """Return the handle if it is an NCCL library. Raises OSError."""
    if not hasattr(handle, "ncclGetVersion"):
        raise OSError(f"{handle._name} is not an NCCL library: it has no function ncclGetVersion")
    return handle


def _loaded_from(handle: ctypes.CDLL, maps: Path = Path("/proc/self/maps")) -> str:
    """Return the file of a loaded library from /proc, with links resolved; without /proc, the requested name."""
    address = ctypes.cast(handle.ncclGetVersion, ctypes.c_void_p).value or 0
    try:
        lines = [line.split(maxsplit=5) for line in maps.read_text(errors="replace").splitlines()]
    except OSError:
        return str(handle._name)
    for fields in lines:
        first, _, after = fields[0].partition("-")
        if len(fields) == 6 and int(first, 16) <= address < int(after, 16):
            return fields[5]
    return str(handle._name)


def _text(raw: bytes | None) -> str:
    return (raw or b"").decode(errors="replace").strip()


# Cases that the loaded NCCL does not support, with the reasons for n/a rows.


def limits(operation: Operation, case: Case, library: NcclLibrary, archs: Iterable[str]) -> Reason | None:
    """Return why this NCCL cannot run a case on GPUs of these architectures ("sm_90"), or None."""
    if operation.creates:
        return next(_creations(operation, case, library), None)
    reductions = _reductions(case, library, archs) if operation.reduces else iter(())
    return next(reductions, None) or next(_registrations(operation, case, library), None) or next(_tunings(operation, case, library), None)


def _creations(operation: Operation, case: Case, library: NcclLibrary) -> Iterator[Reason]:
    values = {
        "--algorithms": case.algorithm, "--protocols": case.protocol, "--registration": case.registration not in (None, "none"),
        "--mode graph": case.mode == "graph",
    }  # fmt: skip
    options = tuple(option for option, value in values.items() if value)
    if options:
        yield OptionUnsupported(options, operation.name, "operations that move data")
    function, since = CREATIONS.get(operation.name, ("", OLDEST))
    if function and not library.has(function):
        yield _needs(function, since, library)


def _reductions(case: Case, library: NcclLibrary, archs: Iterable[str]) -> Iterator[Reason]:
    redop = case.redop or "sum"
    name = case.dtype.name
    if redop not in REDOPS:
        yield RedopUnsupported(library.dialect.name, redop)
    elif REDOPS[redop].since > library.version:
        yield _needs(redop, REDOPS[redop].since, library)
    words = library.dialect.datatypes
    if name not in words:
        yield DtypeUnsupported(library.dialect.name, name)
    elif datatype(name, case.dtype.size, library.version, True, words) is None:
        yield _needs(name, words[name].since, library)
    if name.startswith("float8"):
        yield from filter(None, (library.dialect.fp8(library.dialect.name, name, arch) for arch in archs))


def _registrations(operation: Operation, case: Case, library: NcclLibrary) -> Iterator[Reason]:
    kind = case.registration or "none"
    if kind in DEVICE_APIS:
        if DEVICE_APIS[kind] > library.version:
            yield _needs(f"--registration {kind}", DEVICE_APIS[kind], library)
        else:
            yield DeviceApiUnsupported(library.dialect.name, kind, operation.name, dotted(library.version))
    if kind in REGISTRATIONS:
        function, since = REGISTRATIONS[kind]
        if since > library.version or not library.has(function):
            yield _needs(f"{kind} memory ({function})", since, library)
    if kind == "symmetric" and "nccl" not in operation.steps:
        yield OptionUnsupported(("--registration symmetric",), operation.name, "collectives")


def _tunings(operation: Operation, case: Case, library: NcclLibrary) -> Iterator[Reason]:
    if not (case.algorithm or case.protocol):
        return
    if "nccl" not in operation.steps or operation.name in MADE_OF_MESSAGES:
        options = ("--algorithms",) * bool(case.algorithm) + ("--protocols",) * bool(case.protocol)
        yield OptionUnsupported(options, f"{operation.name} (which NCCL makes of sends and receives)", "collectives with algorithms")
    since = max(OBEYS_FROM, ALGORITHM_SINCE.get(case.algorithm or "", OBEYS_FROM))
    if since > library.version:
        yield _needs(" ".join(word for word in (case.algorithm, case.protocol) if word), since, library)


def _needs(feature: str, since: Version, library: NcclLibrary) -> Reason:
    return VersionNeeded(library.dialect.name, feature, dotted(since), dotted(library.version))
