"""A backend that is slowed carries every operation as ever: right to the last element, under its own name, or n/a for the same reason."""

import pytest

from collbench.operations.unsupported import ClockUnsupported, decode_reason
from tests.contract.asked import MOVING, ODD, REDUCING, ROOTED
from tests.contract.launch import launch
from tests.contract.test_every_case import assert_as_promised, cases_of

EVERY = [
    {"operations": ["barrier"], "sizes": [1], "dtypes": ["float32"]},
    {"operations": ["allreduce", *REDUCING], "sizes": ODD, "dtypes": ["float32", "int8"]},
    {"operations": ["broadcast", *MOVING, *ROOTED], "sizes": ODD, "dtypes": ["int8"], "roots": [1]},
    {"operations": ["p2p_latency", "p2p_bandwidth", "p2p_bidirectional"], "sizes": ODD, "dtypes": ["float32"], "window": 3},
    {"operations": ["allreduce"], "sizes": [1003], "dtypes": ["float32"], "mode": "pipelined", "buffers": "rotating"},
]
SPEC = "by=5-15%; by=20% sizes=1-16 ranks=1"  # these sizes, rounded to whole elements of each part
long = pytest.mark.long


@pytest.mark.parametrize("backend", ["simulated", pytest.param("mpi", marks=long), pytest.param("gloo", marks=long)])
def test_every_operation_is_carried_out_as_promised_and_reports_that_it_was_slowed(tmp_path, backend):
    found, cases = launch(tmp_path, backend, 2, EVERY, slowed=[SPEC]), cases_of(EVERY, backend, 2)
    assert found.code == 0, found.stderr
    for row, case in zip(found.rows, cases, strict=True):
        assert_as_promised(row, case, backend, 2)
        spec = "by=20% sizes=1-16 ranks=1" if 1 <= row.size_bytes <= 16 else "by=5-15%"
        assert (row.backend, row.flags.count("slowed"), row.evidence.get("slowed")) == (
            (backend, 0, None) if row.na else (backend, 1, spec)
        )


@long
def test_pairs_over_sockets_too(tmp_path):
    pairs = {"operations": ["p2p_latency", "p2p_bandwidth", "p2p_bidirectional"], "sizes": [8, 300_001], "dtypes": ["float32"], "window": 3}
    found = launch(tmp_path, "socket", 2, [pairs], slowed=["by=10%"])
    assert (found.code, {(row.na, row.wrong, "slowed" in row.flags) for row in found.rows}) == (0, {(None, 0, True)})


@long
def test_what_only_enqueues_is_not_slowed_but_gives_the_reason(tmp_path):
    asked = [{"operations": ["allreduce"], "sizes": [8, 1024], "dtypes": ["float32"], "buffers": "fixed"}]
    found = launch(tmp_path, "nccl", 2, asked, slowed=["by=10% sizes=8"])
    first, other = found.rows
    assert decode_reason(first.na_fact) == ClockUnsupported("nccl", enqueues=True)
    assert (other.na, other.wrong, other.flags.count("slowed")) == (None, 0, 0)
