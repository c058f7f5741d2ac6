"""Every operation on every backend, every type, reduction, root and placing: right to the last element, or n/a with the reason."""

import functools
import shutil
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import pytest
from msgspec.structs import replace

from collbench.operations.dtypes import BITWISE, undefined_redop
from collbench.operations.unsupported import (
    DtypeUnsupported,
    NoInPlaceForm,
    NotPowerOfTwo,
    OperationUnsupported,
    RedopUnsupported,
    TooFewRanks,
    decode_reason,
)
from tests.conftest import sample
from tests.contract.asked import NEIGHBOURS, ONE_SIDED, asked_for
from tests.contract.launch import launch
from tests.contract.rank import sweep_of

pytestmark = pytest.mark.timeout(320)  # under --long a launch has a thousand cases
NOT_IN_UCC = ("float16", "float8_e4m3fn", "float8_e5m2")
NOT_IN_TORCH = ("uint32", "uint64", "float8_e4m3fn", "float8_e5m2")
BY_MESSAGES = ("allgatherv", "gatherv", "scatterv", "hypercube")
SCANS = ("scan", "exscan", "reducescatterv")
IN_PLACE_ONLY = {
    "gloo": ("allreduce", "broadcast", "reduce", *BY_MESSAGES), "mpi": ("broadcast", "hypercube"), "nccl": ("hypercube",),
    "ucc": ("broadcast",),
} | {
    "horovod": ("allreduce", "broadcast"),
    "torchcomms": ("allreduce", "broadcast", "reduce", "reducescatter", *BY_MESSAGES),
}  # fmt: skip
OUT_OF_PLACE_ONLY = dict.fromkeys(("gloo", "nccl", "torchcomms"), ("alltoall", "sendrecv")) | {
    "horovod": ("allgather", "allgatherv", "alltoall", "reducescatter"),
    "tensorflow": ("allreduce", "allgather", "alltoall", "broadcast"),
    "mpi": NEIGHBOURS,
    "ucc": ("alltoall",),
    "jax": ("allreduce", "allgather", "reducescatter", "alltoall", "sendrecv"),
}
OF_MPI, HAS_WINDOWS = (*ONE_SIDED, *NEIGHBOURS), ("mpi", "simulated")
LACKS = {"nccl": ("barrier", *SCANS), **dict.fromkeys(("gloo", "torchcomms"), SCANS)} | {
    "tensorflow": (
        "barrier", "reduce", "gather", "scatter", "alltoallv", "allgatherv", "gatherv", "scatterv", *SCANS, "sendrecv", "hypercube",
        "p2p_latency", "p2p_bandwidth", "p2p_bidirectional",
    ),
}  # fmt: skip
LACKS["jax"] = (
    "reduce", "gather", "scatter", "alltoallv", "allgatherv", "gatherv", "scatterv", *SCANS, "hypercube", "p2p_latency", "p2p_bandwidth",
    "p2p_bidirectional",
)  # fmt: skip
LACKS["ucc"] = ("scatter", "scan", "exscan", "sendrecv", "hypercube", "p2p_latency", "p2p_bandwidth", "p2p_bidirectional")
LACKS["horovod"] = tuple(name for name in LACKS["tensorflow"] if name not in ("barrier", "alltoallv", "allgatherv"))
HOROVOD_REDUCES = ("float16", "float32", "float64", "int32", "int64")
NO_TENSORFLOW_SUM = ("int8", "uint8", "uint32", "uint64", "float8_e4m3fn", "float8_e5m2")
needs = {"gloo": "torch", "mpi": "mpi4py"}
LAUNCHES = [
    ("simulated", 2),
    *(pytest.param("simulated", n, marks=pytest.mark.long) for n in (1, 3, 4)),  # 2 to 9 s each
    ("gloo", 2),
    ("mpi", 2),
    ("nccl", 2),  # the double of tests/fake_gpu: results are right, times mean nothing
    *(  # slower: more ranks than cores
        pytest.param(backend, n, marks=pytest.mark.long)
        for backend, n in sample([("gloo", 3), ("gloo", 4), ("mpi", 3), ("nccl", 3), ("nccl", 4)], 1)
    ),
]

ANY, VENDOR = "any", "the MPI library"


def launched(backend, n, python=sys.executable):
    """Return (sweeps, outcome) of the launch of this backend, which runs once in a session."""
    return _launched(backend, n, python)  # the cache distinguishes an argument that is left out from the same one that is passed


@functools.cache
def _launched(backend, n, python):
    if backend in needs and python == sys.executable and not find_spec(needs[backend]):
        pytest.skip(f"{needs[backend]} is not installed")
    folder = Path(tempfile.mkdtemp())
    try:
        asked = asked_for(backend, n)
        return asked, launch(folder, backend, n, asked, python=python)
    finally:
        shutil.rmtree(folder)


def has_no_form(case, backend, n):
    """Reasons of an operation that a library lacks, or has not in this placing, or not among so many ranks; whether each holds."""
    operation, pair = case.operation, case.operation.startswith("p2p") or case.operation in ONE_SIDED
    lacking = operation in (*LACKS.get(backend, ()), *(() if backend in HAS_WINDOWS else OF_MPI))
    return {
        OperationUnsupported(backend, operation): lacking,
        OperationUnsupported(backend, operation, "in place"): operation in IN_PLACE_ONLY.get(backend, ()) and case.in_place is False,
        OperationUnsupported(backend, operation, "out of place"): operation in OUT_OF_PLACE_ONLY.get(backend, ()) and case.in_place,
        TooFewRanks(operation): (pair or operation in ("sendrecv", *NEIGHBOURS)) and n < 2,
        NoInPlaceForm(operation): (pair or operation == "alltoallv") and case.in_place,
        NotPowerOfTwo("hypercube", n): operation == "hypercube" and n not in (2, 4),
    }


def reduces_no_such(case, backend):
    """Reasons of a reduction that has no meaning, or that a library does not have."""
    dtype, redop, reduces = case.dtype.name, case.redop, case.redop is not None
    misfit = undefined_redop(redop, case.dtype) if reduces else None
    return {
        misfit: misfit,
        **(no_such_in_tensorflow(case) if backend == "tensorflow" else {}),
        **(no_such_in_horovod(case) if backend == "horovod" else {}),
        **(no_such_in_jax(case) if backend == "jax" else {}),
        **(no_such_in_ucc(case) if backend == "ucc" else {}),
        RedopUnsupported("MPI", str(redop)): backend == "mpi" and redop == "avg",
        RedopUnsupported("NCCL", str(redop)): backend == "nccl" and redop in BITWISE,
        DtypeUnsupported("gloo", dtype): backend == "gloo" and reduces and dtype in NOT_IN_TORCH,
        DtypeUnsupported("torchcomms over Gloo", dtype): backend == "torchcomms" and reduces and dtype in NOT_IN_TORCH,
        DtypeUnsupported("MPI", dtype): backend == "mpi" and reduces and dtype.startswith("float8"),
        DtypeUnsupported(VENDOR, "bfloat16"): backend == "mpi" and reduces and dtype == "bfloat16",
    }


def no_such_in_tensorflow(case):
    """Reasons, in this order, of what its collectives lack."""
    dtype, redop = case.dtype, case.redop
    return {
        OperationUnsupported("tensorflow", case.operation, note=ANY): case.operation == "reducescatter",
        RedopUnsupported("tensorflow", str(redop)): redop in BITWISE,
        DtypeUnsupported("tensorflow", dtype.name): redop and dtype.name in NO_TENSORFLOW_SUM,
        DtypeUnsupported("tensorflow", dtype.name, "send", "its collectives"): dtype.size == 1,
    }


def no_such_in_ucc(case):
    """Reasons of the types that it does not reduce, and of averages."""
    return {
        DtypeUnsupported("UCC", case.dtype.name): case.redop and case.dtype.name in NOT_IN_UCC,
        RedopUnsupported("UCC", "avg", case.operation): case.redop == "avg" and case.operation in ("reducescatter", "reducescatterv"),
    }


def no_such_in_jax(case):
    """Reasons of what jax.lax lacks on CPUs."""
    known = ("sum",) if case.operation == "reducescatter" else ("sum", "max", "min", "avg")
    return {
        OperationUnsupported("jax", case.operation, note=ANY): case.operation in ("broadcast", "barrier"),
        RedopUnsupported("jax", str(case.redop), case.operation, known): case.redop and case.redop not in known,
    }


def no_such_in_horovod(case):
    """Reasons, in this order, of what its build has no function for; what is only moved goes as a type of its width."""
    dtype, redop = case.dtype.name, case.redop
    redops = ("sum", "avg") if case.operation == "reducescatter" else ("sum", "avg", "min", "max", "prod")
    return {
        RedopUnsupported("horovod over Gloo", str(redop), case.operation, redops): redop and redop not in redops,
        DtypeUnsupported("horovod", dtype, "send", case.operation): dtype not in HOROVOD_REDUCES if redop else dtype == "bfloat16",
    }


def reason(case, backend, n):
    """The reason of a case that cannot be measured, or None."""
    reasons = has_no_form(case, backend, len(case.split.groups(n)[0]) if case.split else n) | reduces_no_such(case, backend)
    return next((why for why, holds in reasons.items() if holds), None)


def fits(found, wanted):
    """Whether a reason is the wanted one, but for fields that are ANY, or VENDOR: a library's name and version."""
    if isinstance(wanted, DtypeUnsupported) and wanted.library == VENDOR:
        found = replace(found, library=VENDOR) if "MPI" in found.library else found
    if isinstance(wanted, OperationUnsupported) and wanted.note == ANY:
        found = replace(found, note=ANY) if found.note else found
    return found == wanted


def assert_as_promised(row, case, backend, n):
    wanted = reason(case, backend, n)
    may = isinstance(wanted, DtypeUnsupported) and wanted.dtype == "bfloat16"  # a library that can reduce bfloat16 may
    if wanted and not (row.na is None and may):
        assert fits(decode_reason(row.na_fact), wanted), row
        assert row.na == decode_reason(row.na_fact).render()
        assert (row.checked, row.wrong, row.time_s, row.busbw_bytes_per_s) == (0, None, None, None)
        return
    checked = (0, None) if (backend, case.operation) == ("simulated", "barrier") else (1, 0)  # made-up ranks meet in no time
    assert (row.na, row.checked, row.wrong, row.wrong_detail) == (None, *checked, None), row
    assert row.time_s.p50 > 0
    assert (row.busbw_bytes_per_s or 0) > 0 or n == 1 or case.operation == "barrier"
    assert (row.dtype, row.redop, row.root, row.size_bytes) == (case.dtype.name, case.redop, case.root, case.size_bytes)


@pytest.mark.parametrize(("backend", "n"), LAUNCHES)
def test_right_or_not_applicable(backend, n):
    assert_all_as_promised(backend, n)


def assert_all_as_promised(backend, n, python=sys.executable):
    asked, outcome = launched(backend, n, python)
    cases = cases_of(asked, backend, n)
    assert outcome.code == 0, outcome.stderr
    for row, case in zip(outcome.rows, cases, strict=True):
        assert_as_promised(row, case, backend, n)


def cases_of(asked, backend, n):
    return [case for part in asked for case in sweep_of(part).cases(backend, n)]


def placings(backend, operation, n=2):
    """Per placing asked for: whether it ran, and the placing on the row."""
    asked, outcome = launched(backend, n)
    pairs = zip(cases_of(asked, backend, n), outcome.rows, strict=True)
    return {
        (c.in_place, r.in_place, r.na is None) for c, r in pairs if c.operation == operation and c.buffers == "fixed" and not no_such(c)
    }


def no_such(case):
    return case.redop not in (None, "sum") or (case.redop and case.dtype.name in ("bfloat16", *NOT_IN_TORCH))


BOTH_PLACINGS, IN_PLACE_ALONE = {(None, False, True), (False, False, True)}, {(None, True, True), (False, False, False)}


@pytest.mark.parametrize(("backend", "operation", "placed"), [
    ("mpi", "allreduce", BOTH_PLACINGS), ("nccl", "allreduce", BOTH_PLACINGS), ("nccl", "broadcast", BOTH_PLACINGS),
    ("gloo", "allreduce", IN_PLACE_ALONE), ("mpi", "broadcast", IN_PLACE_ALONE), ("gloo", "broadcast", IN_PLACE_ALONE),
])  # fmt: skip
def test_a_library_with_both_placings_takes_out_of_place_and_the_row_reports_what_was_taken(backend, operation, placed):
    assert placings(backend, operation) == {*placed, (True, True, True)}


@pytest.mark.long  # a launch of its own
def test_an_nccl_without_functions_for_them_does_the_same_by_messages(tmp_path):
    names = {"alltoall": "ncclAlltoAll", "gather": "ncclGather", "scatter": "ncclScatter"}
    sweep = {"operations": list(names), "sizes": [1003], "dtypes": ["float32"], "buffers": "fixed", "roots": [0, 2]}
    asked = [sweep, {**sweep, "operations": ["gather", "scatter"], "in_place": True}]
    outcome = launch(tmp_path, "nccl", 3, asked, lacks=sorted(names.values()))
    assert (outcome.code, len(outcome.rows)) == (0, 9), outcome.stderr
    assert {(row.na, row.checked, row.wrong) for row in outcome.rows} == {(None, 1, 0)}


@pytest.mark.system
def test_simulated_rows_report_it_and_others_do_not():
    assert all("simulated" in row.flags for row in launched("simulated", 2)[1].rows if row.na is None)
    assert not any("simulated" in row.flags for row in launched("mpi", 2)[1].rows)


def test_mpi_is_timed_by_the_native_loop_and_torch_by_python():
    loops = {backend: {row.evidence["loop"] for row in launched(backend, 2)[1].rows if row.na is None} for backend in ("mpi", "gloo")}
    assert loops == {"mpi": {"native"}, "gloo": {"python"}}
    assert not any("python_loop" in row.flags for backend in loops for row in launched(backend, 2)[1].rows)


@pytest.mark.long
@pytest.mark.openmpi
@pytest.mark.parametrize("n", [2, *sample([3, 4], 1)])
def test_open_mpi(openmpi_python, n):
    assert_all_as_promised("mpi", n, openmpi_python)


@pytest.mark.long
@pytest.mark.impi
@pytest.mark.parametrize("n", [2, *sample([3, 4], 1)])
def test_intel_mpi(impi_python, n):
    asked, outcome = launched("mpi", n, impi_python)
    swapped = 0
    for row, case in zip(outcome.rows, cases_of(asked, "mpi", n), strict=True):
        if row.wrong and swaps_neighbours_of_two(case, n):
            swapped += 1
        else:
            assert_as_promised(row, case, "mpi", n)
    assert outcome.code == (4 if swapped else 0), outcome.stderr


def swaps_neighbours_of_two(case, n):
    """Whether it is the MPI_Neighbor_alltoall of 2 ranks, whose two parts 2021.18.1 exchanges, as MPI did before 4.0: data are wrong."""
    return case.operation == "neighbor_alltoall" and (len(case.split.groups(n)[0]) if case.split else n) == 2
