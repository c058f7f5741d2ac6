"""`collbench workload` over shaped links: every training's bytes written out by hand against the hosts' link counters, within 2 %; and
how long the gradients of a model of 340 million parameters take between two hosts of 1 Gbit/s, within 5 % of the arithmetic.

The counters are read here, outside of collbench, before and after two starts of the same command, one of which makes STEPS steps more.
What else both do (joining, warm-up, a trial, verification) is the same and falls out of the difference. A counter holds 66 bytes of
headers per packet (Ethernet 14, IPv4 20, TCP 32); packets are counted beside bytes, so the headers are taken out exactly, and what is
left are the messages' bytes, and of MPI and the ranks' own talk a few headers more.

How MPICH moves each collective is known from test_bytes_across_hosts; all-reduce is set to a ring here.
"""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from tests.cli.command import BIN, PROGRAM, environment
from tests.launchers.stored import stored
from tests.launchers.test_bytes_across_hosts import MPICH
from tests.plugins.training.reading import read_workload

NEAR = 0.02
STEPS = 4  # more in the second start than in the first
HEADERS = 66
MODEL = 3_000_000  # parameters of 4 bytes: 12 MB
S = 4 * MODEL
REST = S - 4 * 3 * (12 * 256 * 256 + 13 * 256)  # outside of three layers of hidden size 256
A = 4 * 512 * 256 * 2  # activations: 512 tokens of hidden size 256, two sequences at a time
TRANSFORMER = ("--layers", "3", "--hidden", "256", "--sequence", "512", "--microbatch", "2")

pytestmark = [
    pytest.mark.hosts,
    pytest.mark.skipif(not (BIN / "mpiexec").exists(), reason="no MPICH in this environment: pip install collbench[mpich]"),
]
GRADIENTS = 4 * 340_000_000
LINK = 1e9 / 8  # bytes per second
# A full frame as the shaper counts it: 1448 bytes of payload in 1514 (1500 and Ethernet's 14; no preamble between namespaces).
FRAMING = 1448 / 1514


@dataclass(frozen=True)
class Case:
    """name, typed  of the training
    moves           reported bytes of the busiest rank: of each exchange the larger of what it sends and receives
    sends, gets     bytes of each of the three hosts in a step
    per_host        ranks
    """

    name: str
    typed: tuple[str, ...]
    moves: float
    sends: tuple[float, float, float]
    gets: tuple[float, float, float]
    per_host: int = 1


def alike(size):
    return (size, size, size), (size, size, size)


CASES = [
    # A ring over 3 moves 2·2/3 of the size out of each.
    Case("data-parallel", ("--bucket", "5M"), 4 / 3 * S, *alike(4 / 3 * S)),
    # Two ranks per host: each of both sums its half of every bucket over the three hosts, 2·2/3 of S/2; what is inside a host, half of
    # the model to add up and half to gather for each, crosses no link.
    Case("hierarchical", ("--bucket", "6M"), 5 / 3 * S, *alike(4 / 3 * S), per_host=2),
    # Rank 0 serves: both workers send it the whole of the gradients, and after that get the whole model.
    Case("parameter-server", ("--bucket", "5M"), 4 * S, (2 * S, S, S), (2 * S, S, S)),
    # Ranks 0 and 1 have half of the model each, rank 2 works.
    Case("parameter-server", ("--update", "sharded", "--bucket", "5M"), 2 * S, (S / 2, S / 2, S), (S / 2, S / 2, S)),
    # The same without waiting for one another: as many rounds of each worker.
    Case("parameter-server", ("--update", "asynchronous", "--bucket", "5M"), 2 * S, (2 * S, S, S), (2 * S, S, S)),
    # Three stages: the middle one has two neighbours; 8 microbatches, each forward and back.
    Case("pipeline", (*TRANSFORMER, "--microbatches", "8"), 16 * A, (8 * A, 16 * A, 8 * A), (8 * A, 16 * A, 8 * A)),
    # Four all-reduces per layer.
    Case("tensor-parallel", (*TRANSFORMER, "--tensor", "3"), 4 * 3 * 4 / 3 * A, *alike(4 * 3 * 4 / 3 * A)),
    # Four times per layer every token goes to 2 of 3 experts, so that two thirds of twice the activations leave each host.
    Case("expert-parallel", (*TRANSFORMER, "--top-k", "2"), 4 * 3 * 2 / 3 * 2 * A, *alike(4 * 3 * 2 / 3 * 2 * A)),
    # Parameters are gathered twice, but those outside of the layers once, and gradients scattered once: two thirds of them each time.
    Case("fsdp", ("--layers", "3", "--hidden", "256"), 2 / 3 * (3 * S - REST), *alike(2 / 3 * (3 * S - REST))),
]  # fmt: skip
# Gloo's reduce-scatter is a whole all-reduce, of which each rank keeps its part.
FSDP = 2 / 3 * (2 * S - REST) + 4 / 3 * S
GLOO = [*CASES[:-1], replace(CASES[-1], sends=(FSDP,) * 3, gets=(FSDP,) * 3)]


def counted(bed):
    """By host the payload that has left and that has come over its link."""
    names = ("tx_bytes", "tx_packets", "rx_bytes", "rx_packets")
    files = [f"/sys/class/net/eth0/statistics/{name}" for name in names]
    actual = [[int(word) for word in bed.run(host, ["cat", *files]).stdout.split()] for host in bed.names]
    return [(each[0] - HEADERS * each[1], each[2] - HEADERS * each[3]) for each in actual]


def launched(bed, typed, folder, per_host, timeout, *, backend="mpi"):
    """The row of one launch by MPICH's mpiexec; inside a host the ranks talk over its loopback."""
    passed = [word for name, value in MPICH.items() for word in ("-genv", name, value)]
    reach = ["-launcher", "ssh", "-launcher-exec", bed.rsh, "-hosts", ",".join(bed.names), "-ppn", str(per_host), "-iface", "eth0"]
    line = [str(BIN / "mpiexec"), *reach, "-n", str(per_host * len(bed.names)), *passed, *PROGRAM, "workload", *typed]
    done = bed.run(0, [*line, "--backend", backend, "--no-parts", "--out", str(folder / "run")], timeout, environment())
    _, (row,), warnings = read_workload(stored(done, folder))
    assert (row.na, row.wrong, row.nodes, warnings) == (None, 0, len(bed.names), [])
    if "asynchronous" not in row.flags:
        assert crossed(row) and all(ratio > 1 - NEAR for ratio in crossed(row)) and "other_path" not in row.flags
    return row


def crossed(row):
    """What collbench itself counted at each host and direction, in parts of what has to cross there at least."""
    ways = [host[way] for host in row.evidence["moved"]["hosts"].values() for way in ("out", "in")]
    return [float(way["ratio"]) for way in ways if way["at_least_bytes"]]


def between(bed, case, folder, steps, backend):
    """Return the payload that a launch sends and receives, by host; repeat a launch with disturbed measurements."""
    typed = (case.name, "--model", str(MODEL), *case.typed, "--steps", str(steps), "--warmup", "1", "--max-time", "60")
    for attempt in range(4):
        here = folder / f"{steps}-{attempt}"
        here.mkdir()
        before = counted(bed)
        row = launched(bed, typed, here, case.per_host, 70, backend=backend)
        after = counted(bed)
        assert row.n == steps
        if not {"remeasured", "state_flip"} & set(row.flags):
            return row, [(out - out0, into - into0) for (out, into), (out0, into0) in zip(after, before, strict=True)]
    pytest.fail("the machine changed its state in each of four launches, so that they measured more steps than requested")


def per_step(bed, case, folder, backend):
    (_, few), (row, many) = (between(bed, case, folder, steps, backend) for steps in (2, 2 + STEPS))
    return row, [((b[0] - a[0]) / STEPS, (b[1] - a[1]) / STEPS) for a, b in zip(few, many, strict=True)]


@pytest.mark.long
@pytest.mark.timeout(160)
@pytest.mark.parametrize(
    ("backend", "case"),
    [
        pytest.param(backend, case, id=f"{backend} {case.name} {' '.join(case.typed[:2])}")
        for backend, cases in (("mpi", CASES), ("gloo", GLOO))
        for case in cases
    ],
)
def test_links_carry_what_the_training_must_move(backend, case, hosts, tmp_path):
    row, moved = per_step(hosts(3, "1gbit"), case, tmp_path, backend)
    assert [out for out, _ in moved] == pytest.approx(case.sends, rel=NEAR)
    assert [into for _, into in moved] == pytest.approx(case.gets, rel=NEAR)
    assert row.moved_bytes == pytest.approx(case.moves, rel=0.001), "parts are padded by a few elements"


@pytest.mark.long
@pytest.mark.timeout(160)
def test_each_routing_takes_as_long_as_its_busiest_rank_needs_at_the_links_rate(hosts, tmp_path):
    # symmetric, so that the same host is the busiest on both ways: the shaper lets a host send its burst faster after a pause
    tokens = np.array([[[64] * 3] * 3, [[64, 32, 96], [32, 96, 64], [96, 64, 32]], [[0, 96, 96], [96, 64, 32], [96, 32, 64]]])
    np.savez(tmp_path / "tokens.npz", tokens=np.stack([tokens] * 3, axis=1))  # [step, layer, rank, expert]
    typed = ("expert-parallel", "--routing", str(tmp_path / "tokens.npz"), "--model", "1M", "--hidden", "1024", "--sequence", "128")
    types = ("--dispatch-dtype", "bfloat16", "--combine-dtype", "float32")
    row = launched(hosts(3, "100mbit"), (*typed, *types, "--steps", "5", "--warmup", "1", "--max-time", "60"), tmp_path, 1, 120)
    result = row.routing
    assert result.rounds == 5
    away = tokens * (1 - np.eye(3, dtype=int))
    busiest = 3 * 2 * (2 + 4) * 1024 * away.sum(axis=2).max(axis=1)
    expected = busiest / (LINK / 10 * FRAMING)
    assert [step.time_s.value for step in result.steps] == pytest.approx(expected.tolist(), rel=0.05)
    assert [step.tax.value for step in result.steps] == pytest.approx((expected / expected[0]).tolist(), rel=0.05)


@pytest.mark.long
@pytest.mark.timeout(400)
def test_the_step_time_of_bert_large_between_two_hosts_follows_from_its_bytes(hosts, tmp_path):
    """Two hosts: each sends half of every sum and gets half of the result, 2·(2-1)/2 = 1 of the gradients: 11.4 s.

    Over Gloo, which adds up one part while the next is on its way; MPICH adds up in between, and takes longer by that.
    """
    typed = ("data-parallel", "--model", "bert-large", "--steps", "2", "--warmup", "1", "--max-time", "120", "--step-time", "500ms")
    row = launched(hosts(2, "1gbit"), typed, tmp_path, 1, 380, backend="gloo")
    assert (row.parameters, row.dtype, row.moved_bytes, row.n) == (340_000_000, "float32", GRADIENTS, 2)
    assert row.time_s.p50 == pytest.approx(GRADIENTS / (LINK * FRAMING), rel=0.05)
    assert row.ceiling.limited_by == "NIC eth0 1 Gb/s, TCP"
    assert row.percent_of_ceiling == pytest.approx(100, abs=5)
