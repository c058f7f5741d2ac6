"""What the loaded NCCL cannot do, as reasons for rows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from collbench.backends.nccl.library import NcclLibrary
from collbench.backends.nccl.table import (
    ALGORITHM_SINCE,
    DATATYPES,
    FP8_REDUCES_FROM,
    MADE_OF_MESSAGES,
    OBEYS_FROM,
    REDOPS,
    REGISTRATIONS,
    Version,
    datatype,
    dotted,
)
from collbench.operations.cell import Cell
from collbench.operations.operation import Operation, Reason


def limits(operation: Operation, cell: Cell, library: NcclLibrary, archs: Iterable[str]) -> Reason | None:
    """Why this NCCL cannot do a cell on GPUs of these architectures ("sm_90"), or None."""
    reductions = _reductions(cell, library, archs) if operation.reduces else iter(())
    return next(reductions, None) or next(_registrations(operation, cell, library), None) or next(_tunings(operation, cell, library), None)


def _reductions(cell: Cell, library: NcclLibrary, archs: Iterable[str]) -> Iterator[Reason]:
    redop, name = cell.redop or "sum", cell.dtype.name
    if redop not in REDOPS:
        yield f"NCCL has no {redop}"
    elif REDOPS[redop].since > library.version:
        yield _needs(redop, REDOPS[redop].since, library)
    if name not in DATATYPES:
        yield f"NCCL cannot reduce {name}"
    elif datatype(name, cell.dtype.size, library.version, reduces=True) is None:
        yield _needs(name, DATATYPES[name].since, library)
    old = [arch for arch in archs if name.startswith("float8") and _capability(arch) < FP8_REDUCES_FROM]
    if old:
        yield f"NCCL reduces {name} on GPUs from compute capability 9.0 on, this one is {old[0]}"


def _registrations(operation: Operation, cell: Cell, library: NcclLibrary) -> Iterator[Reason]:
    kind = cell.registration or "none"
    if kind in REGISTRATIONS:
        function, since = REGISTRATIONS[kind]
        if since > library.version or not library.has(function):
            yield _needs(f"{kind} memory ({function})", since, library)
    if kind == "symmetric" and "nccl" not in operation.steps:
        yield "symmetric memory is for collectives, not for send and receive"


def _tunings(operation: Operation, cell: Cell, library: NcclLibrary) -> Iterator[Reason]:
    if not (cell.algorithm or cell.protocol):
        return
    if "nccl" not in operation.steps or operation.name in MADE_OF_MESSAGES:
        yield "NCCL takes no algorithm and no protocol for send and receive"
    since = max(OBEYS_FROM, ALGORITHM_SINCE.get(cell.algorithm or "", OBEYS_FROM))
    if since > library.version:
        yield _needs(" ".join(word for word in (cell.algorithm, cell.protocol) if word), since, library)


def _needs(what: str, since: Version, library: NcclLibrary) -> Reason:
    return f"{what} needs NCCL {dotted(since)}, {dotted(library.version)} is loaded"


def _capability(arch: str) -> int:
    """sm_90 is 90; of another kind of name we know nothing, and let NCCL decide."""
    found = re.fullmatch(r"sm_(\d+)", arch)
    return int(found[1]) if found else FP8_REDUCES_FROM
