"""That every benchmark runs and prints what it must. Times are not asserted: this machine may be busy."""

import json
import resource
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from collbench.launch.slurm import detect
from collbench.machine.readers import linux
from tests.conftest import cannot, needs_plugin
from tools.benchmarks import (
    against_c,
    answers,
    ceilings_1024,
    control_5000,
    control_fuzz,
    evidence_cost,
    first_number,
    folder_fuzz,
    gate_10k,
    heartbeat_8b,
    host_list,
    loop_cost,
    memory,
    nccl_log,
    probe,
    socket_iperf,
    startup,
    suite_overhead,
    topology_build,
)
from tools.benchmarks.example_files import Files
from tools.benchmarks.figures import SECONDS, counted, timed
from tools.benchmarks.hostile_files import emptied, play
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


_FIRST = 1_000_000  # others than those of the committed table


@pytest.fixture(scope="module")
def files():
    return Files()


@pytest.mark.parametrize("number", range(_FIRST, _FIRST + 60))
def test_an_altered_file_ends_in_a_result_or_in_a_sentence(number, files, tmp_path):
    with _least_memory():
        played = play(number, files, emptied(tmp_path / "case"))
    assert played.shown or played.refused, played.altered


@contextmanager
def _least_memory():
    """What would take more than 4 GiB fails here and takes no other process along."""
    limits = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (4 << 30), limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


def test_a_case_is_the_same_each_time(files, tmp_path):
    for number in (3, 7):
        first, second = (play(number, files, emptied(tmp_path / "case")) for _ in range(2))
        assert first == second


def test_a_failing_case_is_reported_with_its_number(monkeypatch):
    def broken(number, files, folder):
        raise RecursionError(f"case {number}")

    monkeypatch.setattr(folder_fuzz, "play", broken)
    actual = list(folder_fuzz.play_all(5, 2))
    assert [each["case"] for each in actual] == [5, 6] and "RecursionError: case 6" in str(actual[1]["failed"])
    printed = "".join(f"{json.dumps(each)}\n" for each in actual)
    monkeypatch.setattr(folder_fuzz.subprocess, "run", lambda *line, **options: SimpleNamespace(stdout=printed))
    assert folder_fuzz.measure(2, first=5).figures[0].cases()[1::3] == ["2", "MISSED"]


@pytest.mark.long
def test_processes_of_their_own_play_all_cases():
    outcome = folder_fuzz.measure(300, first=2_000_000)
    assert outcome.raw[0]["cases"] == 300
    assert outcome.figures[0].cases()[1] == "0", outcome.raw[1:]
    assert outcome.figures[1].cases()[-1] == "met"


MOST_READS = 7  # of a PCI function: uevent, numa_node, four of its link, and one of its driver's
MOST_READS_OF_A_LINK = 2  # of an xGMI link: its own, and its part in what its GPU costs


def test_the_benchmark_prints_time_per_link_and_the_slope():
    outcome = topology_build.measure(1, sizes=(300, 1_500))
    assert [figure.cases()[0] for figure in outcome.figures][:3] == [
        "PCIe, 504 links", "PCIe, 1,512 links", "PCIe, slope of time over links",
    ]  # fmt: skip
    assert [(each["kind"], each["links"]) for each in outcome.raw] == [("PCIe", 504), ("PCIe", 1512), ("xGMI", 304), ("xGMI", 1504)]
    assert "µs per link" in outcome.markdown()


@pytest.mark.long
@pytest.mark.parametrize("size", [1_000, 10_000, 100_000])
@pytest.mark.parametrize("kind", ["PCI function", "xGMI link"])
def test_files_read_per_link_do_not_grow(kind, size):
    files = topology_build.pcie(size) if kind == "PCI function" else topology_build.xgmi(size)
    machine = linux.read(files)
    links = machine.pci if kind == "PCI function" else machine.gpu_links
    assert len(links) >= size
    most = MOST_READS if kind == "PCI function" else MOST_READS_OF_A_LINK
    assert sum(count for path, count in files.reads.items() if kind == "xGMI link" or "/sys/bus/pci/" in path) <= most * len(links)
    assert kind == "xGMI link" or max(files.reads.values()) <= 2


def test_it_prints_the_time_of_each_shape():
    outcome = host_list.measure(2, nodes=100)
    assert [figure.cases()[0].partition(",")[0] for figure in outcome.figures] == list(host_list.SHAPES)
    assert [figure.cases()[3] for figure in outcome.figures] == ["< 50.00 ms"] * 4
    assert [(each["shape"], each["nodes"]) for each in outcome.raw[:3]] == [("one range", 100), ("one range", 100), ("racks", 100)]


@pytest.mark.parametrize(("shape", "first", "last", "of_rank"), [
    ("one range", "gpu00001", "gpu10000", {8: "gpu00002", 79_999: "gpu10000"}),
    ("racks", "r000n01", "r249n40", {8 * 39: "r000n40", 8 * 40: "r001n01"}),
    ("names alone", "n0-ib", "n9999-ib", {7: "n0-ib", 8 * 5000: "n5000-ib"}),
])  # fmt: skip
def test_ten_thousand_names(shape, first, last, of_rank):
    text = host_list.SHAPES[shape](host_list.NODES)
    for rank, host in of_rank.items():
        found = detect(host_list.step(text, rank, host_list.NODES))
        assert found is not None
        assert (len(found.hosts), len(set(found.hosts)), found.hosts[0], found.hosts[-1]) == (10_000, 10_000, first, last)
        assert (found.rank, found.ranks, found.local_rank, found.local_ranks) == (rank, 80_000, rank % 8, 8)
        assert found.hosts[int(found.node)] == host


def test_gaps_are_kept():
    text = host_list.ragged(host_list.NODES)
    found = detect(host_list.step(text, 0, host_list.NODES))
    assert found is not None and list(found.hosts) == [f"gpu{number}" for number in text.removeprefix("gpu[").removesuffix("]").split(",")]
