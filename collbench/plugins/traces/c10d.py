"""What torch.distributed calls its operations and data types. Chakra and Kineto traces have the same names."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from collbench.operations.dtypes import dtype_named
from collbench.plugins.traces.model import DTYPE, DTYPES, KIND, NONE, REDOP, UNKNOWN

# By name without "nccl:", "c10d::", underscores and "_coalesced".
_COLLECTIVES = {
    "allreduce": "allreduce", "allreducesparse": "allreduce",
    "allgather": "allgather", "allgatherbase": "allgather", "allgatherintotensor": "allgather",
    "reducescatter": "reducescatter", "reducescatterbase": "reducescatter", "reducescattertensor": "reducescatter",
    "alltoall": "alltoall", "alltoallbase": "alltoall", "alltoallsingle": "alltoall", "alltoallv": "alltoallv",
    "broadcast": "broadcast", "broadcastoop": "broadcast", "reduce": "reduce", "reduceoop": "reduce",
    "gather": "gather", "scatter": "scatter", "barrier": "barrier", "monitoredbarrier": "barrier",
    "send": "send", "isend": "send", "recv": "recv", "irecv": "recv", "recvanysource": "recv",
}  # fmt: skip
# Names of at::ScalarType and of C++: collbench's type, and its elements for one of torch. A type that collbench does not have
# is one of its width.
_DTYPES = {
    "float": ("float32", 1), "double": ("float64", 1), "half": ("float16", 1), "bfloat16": ("bfloat16", 1),
    "float8_e4m3fn": ("float8_e4m3fn", 1), "float8_e5m2": ("float8_e5m2", 1),
    "float8_e4m3fnuz": ("float8_e4m3fn", 1), "float8_e5m2fnuz": ("float8_e5m2", 1),
    "char": ("int8", 1), "signed char": ("int8", 1), "byte": ("uint8", 1), "unsigned char": ("uint8", 1), "bool": ("uint8", 1),
    "short": ("float16", 1), "short int": ("float16", 1), "uint16": ("float16", 1), "unsigned short": ("float16", 1),
    "int": ("int32", 1), "uint32": ("uint32", 1), "unsigned int": ("uint32", 1),
    "long": ("int64", 1), "long int": ("int64", 1), "uint64": ("uint64", 1), "unsigned long": ("uint64", 1),
    "complexhalf": ("float16", 2), "complexfloat": ("float32", 2), "complexdouble": ("float64", 2),
    "complex<half>": ("float16", 2), "complex<float>": ("float32", 2), "complex<double>": ("float64", 2),
}  # fmt: skip
ROOTED = frozenset(KIND[name] for name in ("broadcast", "reduce", "gather", "scatter"))
MESSAGES = frozenset(KIND[name] for name in ("send", "recv"))
# The first buffer of their `c10d::` calls is the output.
OUTPUT_FIRST = frozenset(KIND[name] for name in ("allgather", "reducescatter", "gather", "scatter", "alltoall", "alltoallv"))
_TENSOR = re.compile(r"Tensor\(([^()]{1,40})\)")
GROUPS_NODE = "## process_group:init ##"  # the node of an execution trace that has the process groups
_RANK_AFTER_WORD = re.compile(r"rank[-_ ]?(\d{1,8})(?!\d)", re.IGNORECASE)
_RANK_AT_END = re.compile(r"(?:^|[._-])(\d{1,8})$")


@lru_cache(maxsize=4096)
def kind_of(name: str) -> int | None:
    """Return the index in KINDS of "_allgather_base", "nccl:all_gather" or "c10d::allgather_"; None for "wait" and other names."""
    plain = name.rpartition(":")[2].lower().replace("_", "").removesuffix("coalesced")
    return KIND[_COLLECTIVES[plain]] if plain in _COLLECTIVES else None


@lru_cache(maxsize=4096)
def dtype_of(name: str) -> tuple[int, int]:
    """Return the index in DTYPES of "Float" or "c10::BFloat16", and the number of its elements in one of torch; (NONE, 1) if unknown."""
    dtype, elements = _DTYPES.get(name.lower().replace("c10::", ""), ("", 1))
    return DTYPE.get(dtype, NONE), elements


def dtype_in(types: Iterable[str]) -> str:
    """Return torch's data type in the first of ["Int", "GenericList[Tensor(float)]"] that has one: "float"; "" if there is none."""
    tensor = next(filter(None, map(_TENSOR.search, types)), None)
    return tensor[1] if tensor else ""


def width_of(name: str) -> int:
    """Return the bytes of an element of torch's type, 0 for an unknown one."""
    number, scale = dtype_of(name)
    return 0 if number == NONE else scale * dtype_named(DTYPES[number]).size


def redop_of(name: str) -> int:
    """Return the index in REDOPS of "sum", or NONE."""
    return REDOP.get({"product": "prod", "mean": "avg"}.get(name.lower(), name.lower()), NONE)


def rank_in_name(path: Path) -> int:
    """Return the rank that a file name contains ("rank-3.json.gz", "trace_3.json", "trace.3.et"), UNKNOWN if there is none."""
    name = path.name
    for suffix in (".gz", ".json", ".et", ".chakra", ".trace", ".pt"):
        name = name.removesuffix(suffix)
    number = _RANK_AFTER_WORD.search(name) or _RANK_AT_END.search(name)
    return int(number[1]) if number else UNKNOWN
