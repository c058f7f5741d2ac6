"""That every benchmark runs and prints what it must. Times are not asserted: this machine may be busy."""

import json
from functools import partial

import pytest

from tests.conftest import cannot, needs_plugin
from tools.benchmarks import (
    against_c,
    answers,
    ceilings_1024,
    control_5000,
    control_fuzz,
    evidence_cost,
    first_number,
    gate_10k,
    heartbeat_8b,
    loop_cost,
    memory,
    nccl_log,
    probe,
    socket_iperf,
    startup,
    suite_overhead,
)
from tools.benchmarks.figures import SECONDS, counted, timed
from tools.benchmarks.launches import Missing, c_program, mpiexec, pairs


@pytest.fixture
def mpi():
    try:
        mpiexec()
        c_program()
    except Missing as why:
        pytest.skip(str(why))


def lines(outcome):
    """Value by figure, as printed; the raw values are those of JSON."""
    assert json.loads(json.dumps(outcome.raw)) == outcome.raw
    printed = [line.split("|") for line in outcome.markdown().splitlines() if line.startswith("| ")]
    return {cases[1].strip(): cases[2].strip() for cases in printed[1:]}


# By benchmark the units of its figures ("±": a difference, else above 0), the modules that it must not import, and whether it needs MPI.
PRINTED = [
    pytest.param(partial(startup.measure, 1), {"collbench --help": " s", "python -c pass": " s"}, "imported of numpy, torch, rich", False,
        id="startup"),
    pytest.param(partial(probe.measure, 1), {"wall time": " s", "peak memory": " MiB"}, "imported of torch", False, id="probe"),
    pytest.param(partial(ceilings_1024.measure, 1), {"seconds": " s"}, None, False, id="ceilings", marks=pytest.mark.long),
    pytest.param(partial(first_number.measure, 1), {"difference within pairs": "± s"}, "imported in the ranks of pandas, torch", True,
        id="first number", marks=pytest.mark.long),
    pytest.param(partial(memory.measure, 1, ["8"]), {"8: collbench beyond its buffers": " MiB"}, None, True, id="memory",
        marks=pytest.mark.long),
    pytest.param(partial(evidence_cost.measure, 1, "8,16", iterations=20), {"p50 at 8 B, ratio within pairs": " ×",
        "time per case, difference within pairs": "± ms"}, None, True, id="evidence", marks=pytest.mark.long),
    pytest.param(partial(suite_overhead.measure, 1, "--sizes", "8"), {"harness per case": " ms", "measured per case": " ms"}, None, True,
        id="suite", marks=pytest.mark.long),
    pytest.param(partial(against_c.measure, 1, ["8"], iterations=100), {"8: ratio within pairs": " ×"}, None, True, id="C",
        marks=pytest.mark.long),
]  # fmt: skip


@pytest.mark.parametrize(("measure", "units", "imported", "uses_mpi"), PRINTED)
def test_a_benchmark_prints_its_figures_and_imports_nothing_heavy(measure, units, imported, uses_mpi, request):
    if uses_mpi:
        request.getfixturevalue("mpi")
    shown = lines(measure())
    for name, unit in units.items():
        assert shown[name].endswith(unit.removeprefix("±"))
        assert unit.startswith("±") or float(shown[name].removesuffix(unit)) > 0
    assert imported is None or shown[imported] == "none"


@pytest.mark.long
def test_the_wait_for_an_answer_is_timed_to_its_first_line_and_to_its_end(mpi):
    shown = lines(answers.measure(1))
    for name in ("check", "allreduce"):
        first, end = (float(shown[f"collbench {name}: {what}"].removesuffix(" s")) for what in ("first status line", "end"))
        assert 0 < first < end


def test_a_log_is_read_at_a_rate_in_bounded_memory():
    shown = lines(nccl_log.measure(1, size=1 << 20))
    assert list(shown) == ["starting: speed", "starting: peak memory", "calling: speed", "calling: peak memory"]
    assert float(shown["starting: speed"].removesuffix(" MB/s")) > 0


def test_loop_cost_is_above_nothing():
    try:
        shown = lines(loop_cost.measure(1))
    except Missing as why:
        pytest.skip(str(why))
    assert float(shown["per call"].removesuffix(" ns")) > 0


def test_pairs_take_turns():
    order = []

    def ran(name):
        order.append(name)
        return name

    assert pairs(partial(ran, "a"), partial(ran, "b"), 3) == [("a", "b")] * 3
    assert "".join(order) == "ab" + "abbaab"


def test_a_target_is_met_by_the_whole_interval():
    def met(value):
        return timed("x", [value + i / 1000 for i in (3, 1, 2, 5, 4, 0, 6, 7)], SECONDS, below=0.1).met

    assert (met(0.01), met(0.097), met(0.2)) == (True, None, False)
    assert timed("x", [0.01], SECONDS, below=0.1).interval == "none; all: 0.010 to 0.010 (n = 1)"
    assert not counted("x", ["torch"]).met


@pytest.mark.long
@needs_plugin("selftest")
def test_the_gate_prints_times_and_memory_and_imports_nothing_heavy():
    outcome = gate_10k.measure(1, cases=60, allocations=4)
    assert [each["what"] for each in outcome.raw] == ["one", "three"]
    assert {each["result"] for each in outcome.raw} <= {"passed", "no verdict"}
    assert outcome.names() == [
        f"one allocation ({outcome.raw[0]['result']})",
        "one allocation, peak memory",
        f"three allocations, all cases ({outcome.raw[1]['result']})",
        "three allocations, all cases, peak memory",
        "imported of torch, mpi4py, cupy",
    ]
    assert outcome.figures[-1].cases()[1] == "none"


@pytest.mark.long
@pytest.mark.hosts
def test_socket_and_iperf3_read_the_same_link():
    try:
        shown = lines(socket_iperf.measure(1))
    except Missing as why:
        cannot(why)
    assert [name.partition(":")[0] for name in shown] == ["loopback"] * 3 + ["1 Gbit/s"] * 3
    assert all(0.1 < float(shown[f"1 Gbit/s: {who}"].removesuffix(" GB/s")) < 0.13 for who in ("socket", "iperf3"))


@pytest.mark.long
def test_simulated_nodes_join_and_gather():
    outcome = control_5000.measure(1, nodes=40, values=20_000)
    (one,) = outcome.raw
    assert (one["nodes"], one["bytes_each"], one["complete"]) == (40, 160_000, True)
    assert outcome.names() == [
        "join, gather and decide", "of it: join", "of it: gather", "peak memory of rank 0", "processor time of rank 0",
        "sums that are right",
    ]  # fmt: skip


@pytest.mark.long
def test_mutated_messages_are_refused_or_read():
    outcome = control_fuzz.measure(2000)
    assert [(one["what"], one["messages"]) for one in outcome.raw] == [
        ("mutated messages", 2000), ("at a socket, with the key", 100), ("at a socket, raw bytes", 5),
    ]  # fmt: skip
    assert all(0 < one["refused"] <= one["messages"] for one in outcome.raw)


@pytest.mark.long
def test_heartbeats_are_switched_off_and_on():
    outcome = heartbeat_8b.measure(1, iterations=50)
    assert [one["beat_s"] for one in outcome.raw] == [1.0, 0.01]
    assert all(one["on_p50_s"] > 0 < one["off_p50_s"] for one in outcome.raw)
