"""Helpers of several tests: cases, places, what ranks send and receive."""

import os
from collections.abc import Callable, Mapping
from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from msgspec.structs import replace

from collbench.errors import CollbenchError
from collbench.operations.case import Case
from collbench.operations.data import reduced, write_digits
from collbench.operations.dtypes import DTYPES, undefined_redop
from collbench.operations.operation import Operation, Place

OF_THE_MACHINE = frozenset({"cpu_shared", "straggler"})  # flags that a busy machine may add to any row, even a simulated one

FITTING = [(dtype, redop) for dtype in DTYPES for redop in ("sum", "prod", "min", "max", "avg", "band", "bor", "bxor")
           if not undefined_redop(redop, DTYPES[dtype])]  # fmt: skip

Call = Callable[[], object]
SENTENCES = Path(__file__).parent / "golden/sentences"


def said(call: Call) -> str:
    """Return the text that a function returns, or that of the CollbenchError that it raises."""
    try:
        return str(call())
    except CollbenchError as error:
        return str(error)


def check_sentences(golden: Path, calls: Mapping[str, Call]) -> None:
    """Compare what each call says in an empty folder with a golden file: a line with its name and, indented below it, the text."""
    texts: list[str] = []
    for name, call in calls.items():
        with TemporaryDirectory() as folder, chdir(folder):
            lines = said(call).splitlines()
        texts.append("".join([f"{name}\n", *(f"    {line}\n" for line in lines), "\n"]))
    if os.environ.get("COLLBENCH_GOLDEN") == "1":
        golden.write_text("".join(texts), encoding="utf-8")
    assert "".join(texts) == golden.read_text(encoding="utf-8")


def make_case(dtype: str = "float32", count: int = 100, **changes: Any) -> Case:
    """Return a case: an all-reduce of `count` elements on the simulated backend."""
    kind = DTYPES[dtype]
    return replace(Case("allreduce", "simulated", kind, count * kind.size, redop="sum", in_place=False), **changes)


def make_place(rank: int = 0, n: int = 2, count: int = 100, dtype: str = "float32", **changes: Any) -> Place:
    """Return a rank's view of such a case."""
    return Place(rank, n, count, make_case(dtype, count, **changes))


def sent(operation: Operation, place: Place) -> np.ndarray:
    """Return the data that the rank of `place` sends."""
    data = np.zeros(operation.sends(place), place.case.dtype.numpy)
    write_digits(data, place)
    return data


def carried_out(operation: Operation, place: Place, sends: list[np.ndarray]) -> np.ndarray:
    """Return the data that the rank of `place` receives if every rank sends `sends`, computed in the dtype itself."""
    blocks = operation.expected_blocks(place)
    parts = [
        reduced((sends[source][block.at : block.at + block.count] for source in block.sources), len(block.sources), place.case)
        for block in blocks
    ]
    return np.concatenate(parts).astype(place.case.dtype.numpy) if parts else np.zeros(0, place.case.dtype.numpy)
