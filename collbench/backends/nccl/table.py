"""NCCL's numbers and words, each with the version that brought it: the one place where they stand.

Sources: nccl.h of the wheel nvidia-nccl-cu13 2.32.3 (a test holds the numbers against it), and NVIDIA/nccl's history of src/nccl.h.in,
src/graph/tuning.cc and src/enqueue.cc for the versions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Version = tuple[int, ...]
OLDEST: Version = (2, 7)  # the first with ncclSend and ncclRecv
SAYS_WHY: Version = (2, 13)  # the first with ncclGetLastError
SYMMETRIC_FLAG = 1  # NCCL_WIN_COLL_SYMMETRIC
UNIQUE_ID_BYTES = 128  # NCCL_UNIQUE_ID_BYTES
FP8_REDUCES_FROM = 90  # compute capability times 10: "FP8 reduction support begins with sm90 capable devices" (enqueue.cc)
OBEYS_FROM: Version = (2, 19)  # older ones keep ring where another algorithm was asked for, without a word (tuning.cc)


@dataclass(frozen=True)
class Word:
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
SAME_WIDTH = {1: "uint8", 2: "float16", 4: "uint32", 8: "uint64"}  # for moving what the loaded version has no name for

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

REMOTE_ERROR = 6  # something went wrong at another rank, which knows better what

# Operations that NCCL makes of sends and receives, in functions of its own from 2.28 on: no algorithm or protocol can be asked for.
MADE_OF_MESSAGES = frozenset({"alltoall", "gather", "scatter"})

# How buffers are made known to NCCL: the function that does it, and the first version that has it.
REGISTRATIONS: Mapping[str, tuple[str, Version]] = {
    "registered": ("ncclCommRegister", (2, 19)),
    "symmetric": ("ncclCommWindowRegister", (2, 27)),
}

ALGORITHM_SINCE: Mapping[str, Version] = {"pat": (2, 23)}  # those of plan.ALGORITHMS that OBEYS_FROM does not have yet


def version_of(code: int) -> Version:
    """ncclGetVersion's number as (major, minor, patch): 2832 is 2.8.32, 23203 is 2.32.3 (NCCL_VERSION of nccl.h)."""
    major = 10_000 if code >= 10_000 else 1_000
    return code // major, code % major // 100, code % 100


def code_of(version: Version) -> int:
    """The number again, as ncclGetVersion gives it."""
    major, minor, patch = version
    return major * (10_000 if (major, minor) > (2, 8) else 1_000) + minor * 100 + patch


def dotted(version: Version) -> str:
    """A version as people write it."""
    return ".".join(map(str, version))


def datatype(name: str, width: int, version: Version, reduces: bool) -> int | None:
    """The number of an element type; None where this version cannot reduce it. What is only moved goes as any type of its width."""
    word = DATATYPES.get(name)
    if word and word.since <= version:
        return word.number
    return None if reduces else DATATYPES[SAME_WIDTH[width]].number
