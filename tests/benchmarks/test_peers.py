"""What the peers print is read, pairs under a changed machine are repeated, and a ratio is judged by its interval."""

import re
import shlex
import subprocess
from itertools import count, pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collbench.errors import UsageError
from tests.conftest import ROOT
from tools.benchmarks.launches import Launch, LaunchFailed
from tools.benchmarks.peers import gloo, imb, osu, osu_nonblocking
from tools.benchmarks.peers.__main__ import main, parser
from tools.benchmarks.peers.contest import Contest, Pair, Span, Target, agree, compete, difference, lines, ratio, raw, take_turns
from tools.benchmarks.peers.load import LARGE, SMALL, Load, rows, sentence, wanted
from tools.benchmarks.peers.ours import Ours, median_of_blocks

OSU_COLLECTIVE = """
# OSU MPI Allreduce Latency Test v7.4
# Datatype: MPI_FLOAT.
# Size       Avg Latency(us)  P50 Tail Lat(us)
8                       0.92              0.31
65536                  43.01              9.17
"""
OSU_RATE = """# OSU MPI Multiple Bandwidth / Message Rate Test v7.4
# [ pairs: 1 ] [ window size: 64 ]
# Datatype: MPI_CHAR.
# Size                  MB/s        Messages/s P50 Tail BW(MB/s)
8                       5.78         723038.13             16.00
"""
OSU_OLD = "# OSU MPI Broadcast Latency Test v5.6.2\n# Size       Avg Latency(us)\n8                       0.12\n"
IMB_COLLECTIVE = """#----------------------------------------------------------------
# Benchmarking Allreduce
# #processes = 2
#----------------------------------------------------------------
       #bytes #repetitions  t_min[usec]  t_max[usec]  t_avg[usec]
            8          300         0.23         0.25         0.24
      1048576          300       152.93       153.01       152.97
"""
IMB_PING_PONG = """       #bytes #repetitions      t[usec]   Mbytes/sec
            8          300         0.80        10.05
"""
GLOO = """[Gloo] Rank 0 is connected to 1 peer ranks. Expected number of connected peer ranks is : 1
Options:     processes=2, inputs=1, threads=1, verify=true

   size (B)   elements   min (us)   p50 (us)   p99 (us)   max (us)   bandwidth (GB/s)   iterations
   16777216    4194304      10147      13389      19282      19282              1.181           20
"""


@pytest.mark.parametrize(("read", "text", "seconds"), [
    (osu.times, OSU_COLLECTIVE, {8: 0.31e-6, 65536: 9.17e-6}),
    (lambda text: osu.times(text, osu.MEAN), OSU_COLLECTIVE, {8: 0.92e-6, 65536: 43.01e-6}),
    (osu.times, OSU_OLD, {8: 0.12e-6}),
    (osu.times, OSU_RATE, {8: 0.5e-6}),  # the median bandwidth is a time per message
    (osu.times, OSU_RATE.replace("16.00", "0.00"), {8: 0.0}),
    (imb.times, IMB_COLLECTIVE, {8: 0.24e-6, 1048576: 152.97e-6}),
    (imb.times, IMB_PING_PONG, {8: 0.8e-6}),
    (gloo.times, GLOO, {16777216: 13389e-6}),
    (gloo.times, GLOO.replace("(us)", "(ns)"), {16777216: 13389e-9}),
], ids=["OSU", "OSU's mean", "old OSU", "OSU's rate", "OSU's rate of 0", "IMB", "IMB ping-pong", "gloo", "gloo in ns"])  # fmt: skip
def test_a_peer_s_times_are_read_in_the_unit_that_it_names(read, text, seconds):
    assert read(text) == {size: pytest.approx(value) for size, value in seconds.items()}


@pytest.mark.parametrize(("out", "version"), [(OSU_COLLECTIVE, (7, 4)), (OSU_RATE, (7, 4)), (OSU_OLD, (5, 6, 2)), ("v7.4", None)])
def test_osu_prints_its_version(out, version):
    assert osu.version_of(out) == version


def test_only_versions_with_percentiles_are_asked_for_them(monkeypatch):
    monkeypatch.setattr(osu, "mpiexec", lambda *words: list(words))
    monkeypatch.setattr(osu, "find", lambda folder, name: folder / name)
    new, old = osu.Osu(Path("x"), (7, 4)).command("allreduce", SMALL), osu.Osu(Path("x"), (5, 6, 2)).command("allreduce", SMALL)
    assert new[new.index("x/osu_allreduce") :] == shlex.split("x/osu_allreduce -m 8:1048576 -i 1000 -x 200 -z50 -T mpi_float")
    assert old[old.index("x/osu_allreduce") :] == shlex.split("x/osu_allreduce -m 8:1048576 -i 1000 -x 200")


def test_osu_s_overlap_is_an_exposed_time():
    table = "# Size  Overall(us)  Compute(us)  Pure Comm.(us)  Overlap(%)\n8 30.0 10.0 20.0 25.00\n16 40.0 20.0 20.0 100.00\n"
    found = osu_nonblocking.read_nonblocking(table)
    assert found[8].communication_s == pytest.approx(20e-6) and found[8].exposed_s == pytest.approx(15e-6)
    assert found[16].exposed_s == pytest.approx(0)
    assert osu_nonblocking.read_nonblocking("# Size Avg Latency(us)\n8 1.0 2.0 3.0 4.0\n") == {}


def test_osu_s_size_is_one_part_where_a_buffer_has_a_part_per_rank(monkeypatch):
    monkeypatch.setattr(osu, "mpiexec", lambda *words: list(words))
    monkeypatch.setattr(osu, "find", lambda folder, name: folder / name)
    monkeypatch.setattr(osu, "launch", lambda line: Launch(0.1, "# v7.4\n# Size Avg P50\n4 0.5 0.25\n8 1.0 0.5\n"))
    opened, load = osu.Osu(Path("x"), (7, 4)), Load((8, 16), 10, 1)
    assert opened.measure("allgather", load) == {8: pytest.approx(0.25e-6), 16: pytest.approx(0.5e-6)}
    assert "4:8" in opened.command("alltoall", load) and "8:16" in opened.command("reducescatter", load)


def asked_of_imb(monkeypatch, operation, load):
    """Measure with a double of IMB, which takes 2 µs for each size. Return the listed sizes and the iterations of each."""
    asked = {}

    def launch(words):
        options = dict(pairwise(words))
        asked["sizes"] = Path(options["-msglen"]).read_text().split()
        asked["iterations"] = options["-iter"]
        return Launch(0.1, "t_avg[usec]\n" + "".join(f"{size} 1 0 0 2.0\n" for size in asked["sizes"]))

    monkeypatch.setattr(imb, "mpiexec", lambda *words: list(words))
    monkeypatch.setattr(imb, "launch", launch)
    times = imb.Imb(Path("x/bin/IMB-MPI1")).measure(operation, load)
    assert times == {size: pytest.approx(2e-6) for size in load.sizes}
    return asked["sizes"], asked["iterations"]


def test_imb_measures_a_size_in_blocks_of_which_the_first_warm_up(monkeypatch):
    head, line = IMB_COLLECTIVE.rpartition("\n            8 ")[0], "            8   50  0.1  0.9  {}\n"
    assert "t_avg[usec]" in head
    text = head + "\n" + "".join(line.format(mean) for mean in (90.0, 80.0, 1.0, 3.0, 2.0))
    assert imb.times(text, warming=2) == {8: pytest.approx(2e-6)}
    assert imb.times(text, warming=5) == {}
    assert asked_of_imb(monkeypatch, "allreduce", Load((8, 64), 1000, 200)) == (["8"] * 24 + ["64"] * 24, "50")
    assert asked_of_imb(monkeypatch, "allreduce", Load((8,), 60, 15)) == (["8"] * 25, "3")
    assert asked_of_imb(monkeypatch, "allreduce", Load((8,), 1, 0)) == (["8"] * 20, "1")


@pytest.mark.impi
@pytest.mark.long
def test_imb_of_the_wheel_measures(impi_python):
    script = (
        "import sys\nfrom pathlib import Path\n"
        "from tools.benchmarks.peers.imb import open_imb\nfrom tools.benchmarks.peers.load import Load\n"
        "opened = open_imb(Path(sys.prefix) / 'bin/IMB-MPI1')\n"
        "print(*sorted(opened.measure('alltoall', Load((8, 64), 40, 4))))"
    )
    done = subprocess.run([impi_python, "-c", script], capture_output=True, text=True, timeout=100, check=False, cwd=ROOT)
    assert (done.returncode, done.stdout) == (0, "8 64\n"), done.stderr


def test_our_samples_in_blocks():
    run = SimpleNamespace(array=lambda row, name: {"mean_s": np.array([1.0, 1.0, 50.0, 2.0, 3.0, 3.0])}[name])
    assert median_of_blocks(3, run, None) == 3.0
    assert median_of_blocks(20, run, None) == 2.5  # fewer samples than blocks: each is one


def test_imb_counts_the_bytes_of_one_part_and_finds_the_library_of_its_wheel(tmp_path, monkeypatch):
    sizes = {"allreduce": ["8", "16"], "alltoall": ["4", "8"], "allgather": ["4", "8"], "reducescatter": ["4", "8"]}
    for name, listed in sizes.items():
        assert list(dict.fromkeys(asked_of_imb(monkeypatch, name, Load((8, 16), 10, 1))[0])) == listed
    (tmp_path / "lib").mkdir()
    built = imb.Imb(tmp_path / "bin" / "IMB-MPI1")
    assert built.library() == []
    (tmp_path / "lib/libmpi.so.12").touch()
    assert built.library() == [f"LD_LIBRARY_PATH={tmp_path / 'lib'}"]


@given(st.lists(st.one_of(st.text(max_size=60), st.from_regex(r"[0-9]{1,9}(\s+[-+0-9.eEnaif_]{1,9}){0,9}", fullmatch=True)), max_size=12))
def test_garbage_is_no_time_and_no_traceback(garbage):
    text = "\n".join(garbage)
    for read, head in ((osu.times, ""), (osu.times, "P50 Messages/s\n"), (imb.times, "t_avg[usec]\n"), (gloo.times, "p50 (us)\n")):
        assert all(isinstance(size, int) and abs(value) < float("inf") for size, value in read(head + text).items())
    osu.version_of(text)


@given(st.integers(1, 2**40), st.lists(st.floats(0, 1e9), min_size=1, max_size=9))
def test_a_line_of_numbers_is_a_row_among_others(size, figures):
    line = " ".join([str(size), *map(repr, figures)])
    assert rows(f"# head\n{line}\n# foot {size}\n{size}\n") == [[float(size), *figures]]


def test_a_size_without_a_time_is_reported():
    assert wanted({8: 1.0, 16: 2.0}, [8], "x") == {8: 1.0}
    for times in ({}, {8: 0.0}, {8: -1.0}, {8: float("nan")}):
        with pytest.raises(LaunchFailed, match="x printed no time for 8 bytes"):
            wanted(times, [8], "x")


@pytest.mark.parametrize(("values", "equal"), [([100, 120, 110], True), ([100, 121, 110], False), ([65, 65, 260], False)])
def test_state_probes_agree_within_a_fifth(values, equal):
    assert agree(values) is equal


def readings(*values):
    return iter(values).__next__


def test_a_pair_during_which_the_machine_changed_is_repeated_in_the_same_order():
    probe = readings(65, 65, 65, 65, 260, 260, 260, 260, 260)
    ours, theirs = count(), count(100)
    found = take_turns(lambda: next(ours), lambda: next(theirs), probe, wanted=2, most=9)
    assert [(pair.ours, pair.theirs) for pair in found] == [(1, 101), (2, 102), (3, 103)]  # 0 and 100 only warmed up
    assert [pair.counts for pair in found] == [True, False, True]
    assert [pair.ours_first for pair in found] == [True, False, False]


def test_repetitions_have_an_end():
    found = take_turns(lambda: 1, lambda: 2, readings(*[65, 65, 260] * 5), wanted=3, most=5)
    assert len(found) == 5
    assert not any(pair.counts for pair in found)


def test_the_side_that_goes_first_runs_first():
    order = []
    take_turns(lambda: order.append("a"), lambda: order.append("b"), lambda: order.append("c") or 1.0, wanted=2, most=2)
    assert "".join(order) == "ab" + "cacbc" + "cbcac"


def test_a_ratio_is_collbench_s_time_over_the_peer_s_within_pairs():
    ours, theirs = [2.0, 4.0, 6.0, 8.0, 10.0, 12.0], [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    assert ratio(ours, theirs) == Span(2.0, 2.0, 2.0)
    assert difference(ours, theirs) == Span(3.5, 1.0, 6.0)
    assert difference([1.0], [3.0]) == Span(-2.0, None, None)


@pytest.mark.parametrize(("span", "verdict"), [
    (Span(1.00, 0.99, 1.02), "met"), (Span(1.01, 0.99, 1.03), "met by the median"), (Span(1.03, 1.01, 1.05), "missed by the median"),
    (Span(1.05, 1.03, 1.06), "MISSED"), (Span(1.00, None, None), "met by the median"), (Span(2.00, None, None), "missed by the median"),
])  # fmt: skip
def test_a_verdict_is_of_the_whole_interval_or_of_the_median(span, verdict):
    assert Target(1.02).judge(span, Span(9, 9, 9)) == verdict


TWICE, LITTLE, HALF, LESS = Span(2.0, 1.9, 2.1), Span(0.5e-7, 0.4e-7, 0.6e-7), Span(0.5, 0.4, 0.6), Span(-2e-7, -3e-7, -1.5e-7)


@pytest.mark.parametrize(("target", "spans", "verdict", "shown"), [
    (Target(1.1), (TWICE, LITTLE), "MISSED", "≤ 1.10"),
    (Target(1.1, or_seconds=1e-7), (TWICE, LITTLE), "met", "≤ 1.10 or ≤ +0.1 µs"),
    (Target(1.1), (HALF, LESS), "met", "≤ 1.10"),
    (Target(1.1, 0.9, or_seconds=1e-7), (HALF, LESS), "MISSED", "0.90 to 1.10 or ±0.1 µs"),  # too fast is no better
])  # fmt: skip
def test_the_easier_of_two_targets_counts(target, spans, verdict, shown):
    assert (target.judge(*spans), target.show()) == (verdict, shown)


def test_the_table_shows_pairs_and_repetitions():
    good, bad = (80.0, 81.0, 80.0), (80.0, 410.0, 80.0)
    pairs = [Pair({8: Ours(1.0e-6 + i * 1e-8)}, {8: 1e-6}, bad if i == 3 else good, i % 2 == 0) for i in range(8)]
    contest = Contest("x", "how", lambda: {}, lambda: {}, {8: Target(1.02)})
    [line] = lines(contest, pairs)
    assert line.cases()[:4] == ["x 8 B", "1.040", "1.000", "1.040 (1.000 to 1.070)"]
    assert line.cases()[5:] == ["≤ 1.02", "missed by the median (only 7 pairs)", "7", "1"]
    assert [one["counts"] for one in raw(pairs)] == [True] * 3 + [False] + [True] * 4


def test_a_contest_of_which_no_pair_counts_reports_it():
    contest = Contest("x", "How.", lambda: {8: Ours(1e-6)}, lambda: {8: 1e-6}, {8: Target(1.02)})
    outcome = compete(contest, wanted=1, most=2, probe=readings(65, 65, 260, 65, 65, 260))
    assert outcome.figures[0].cases()[1:] == ["no pair counts", "", "", "", "≤ 1.02", "", "0", "2"]
    assert "State probes 65 to 260 ns." in outcome.markdown()


@pytest.mark.parametrize(("held", "wanted_bytes", "ours", "alike"), [
    (36 << 20, 16 << 20, True, True), (0, 16 << 20, True, False), (4 << 20, 1 << 20, False, False),
])  # fmt: skip
def test_pages_that_are_not_alike_are_reported(held, wanted_bytes, ours, alike):
    said = sentence(held, wanted_bytes, ours, "OSU")
    assert said == "OSU held 36 MiB per process on huge pages." if alike else said.endswith("NOT as collbench.")


def test_both_sides_get_the_same_allocator_and_interface():
    assert any("hugetlb=1" in word for word in LARGE.environment())
    assert not any("hugetlb" in word for word in SMALL.environment())
    assert "GLOO_SOCKET_IFNAME=lo" in Load((8,), 1, 1).environment()


@pytest.mark.parametrize("peer", ["--osu", "--imb", "--gloo"])
def test_a_path_that_is_no_such_program_is_one_sentence(peer, tmp_path, capsys):
    assert main([peer, str(tmp_path)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_program_that_is_another_one_is_reported(tmp_path):
    other = tmp_path / "benchmark"
    other.write_text("#!/bin/sh\necho 8 8 8\n")
    other.chmod(0o755)
    with pytest.raises(UsageError, match="is not gloo's benchmark"):
        gloo.open_gloo(other)


def test_without_peers_nothing_is_measured_and_each_is_reported(capsys):
    assert main([]) == 1
    assert [line for line in capsys.readouterr().out.splitlines() if line] == [
        "osu: not measured: give --osu DIR", "imb: not measured: give --imb FILE", "gloo: not measured: give --gloo FILE",
    ]  # fmt: skip


@pytest.mark.parametrize("pairs", ["0", "-1", "x", "²"])
def test_a_number_of_pairs_is_one_or_more(pairs):
    with pytest.raises(SystemExit, match="2"):
        parser().parse_args(["--pairs", pairs])


def test_the_readme_s_commands_are_understood():
    text = (ROOT / "tools/benchmarks/peers/README.md").read_text()
    shown = re.findall(r"^python -m tools.benchmarks\.peers (.*)$", text, re.MULTILINE)
    assert len(shown) == 4
    for line in shown:
        parser().parse_args(shlex.split(line))
