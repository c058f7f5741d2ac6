"""Expected times per size by NCCL's constants: values computed by hand, monotonicity, and a published sweep of a healthy machine."""

import json
from itertools import pairwise

import pytest

from collbench import peak
from collbench.errors import UsageError
from collbench.machine.peak.floors import floors_of, parse_share, render
from collbench.machine.peak.job import nodes_of
from collbench.machine.peak.node import Job, UserOverride, parse_nic
from collbench.machine.peak.time_model import OPERATIONS, expected_times, why_no_model
from tests.cli.command import run_here
from tests.peak.made import call_peak

K, M, G = 2**10, 2**20, 2**30
# GB/s of bus bandwidth of all-reduce on 8 H100 with NVLS, by size (powers of two), from
# https://github.com/Azure/AI-benchmarking-guide/blob/f350e7e65b82cfcb9220b32b582bc34342d9c1a6/Azure%20Results/ND_H100_v5_results.md
H100 = {16 * K: 0.95, M: 43.70, 4 * M: 128.73, 16 * M: 234.45, 64 * M: 361.78, 256 * M: 423.38, 512 * M: 438.46, G: 466.35, 8 * G: 478.87}


def job(nodes=1, gpus=8, nvlink=450, nic="8x400Gb", domain=None):
    given = UserOverride(parse_nic(nic) if nic else None, nvlink * 1e9 if nvlink else None)
    return Job(nodes_of([], given, nodes, gpus, domain))


def call(*argv):
    return call_peak("allreduce", "--gpus-per-node", "8", "--nvlink", "450", *argv)


@pytest.mark.parametrize(("case", "of", "microseconds", "how"), [
    # 6.6 + 14 hops of 0.6, and 1 KiB·1.75 at LL's most on one node of H100, 141 GB/s
    ((K, "allreduce"), {}, 6.6 + 14 * 0.6 + K * 1.75 / 141e3, "ring/LL"),
    # 25, and the bytes at 18·20.6 GB/s · 0.85 · 15/16
    ((G, "allreduce"), {}, 25 + G / (18 * 20.6e3 * 0.85 * 15 / 16), "NVLS/Simple"),
    # 12 nodes: 25 + 2·3 levels of 20.9, and the bytes at 8 NICs of 48 GB/s
    ((G, "allreduce"), {"nodes": 12}, 25 + 6 * 20.9 + G * 2 * 95 / 96 / 384e3, "NVLS tree/Simple"),
    # 12 nodes, 8 bytes: 6.8 + 2·(7 hops of 0.6 + 3 levels of 5.0), and the bytes at LL's most on several nodes
    ((8, "allreduce"), {"nodes": 12}, 6.8 + 2 * (7 * 0.6 + 3 * 5.0) + 16 / 20.4e3, "tree/LL"),
    # Four A100: a ring, since their switches do not reduce data: 8.4 + 6 hops of 3.4
    ((8 * G, "allreduce"), {"gpus": 4, "nvlink": 300}, 8.4 + 6 * 3.4 + 8 * G * 1.5 / 240e3, "ring/Simple"),
    # All-gather on two nodes: 14 of 15 steps inside, of at least 3 µs
    ((16 * G, "allgather"), {"nodes": 2}, 8.4 + 14 * 3.4 + 14 + 16 * G * 15 / 16 / 384e3, "ring/Simple"),
    # A ring on two and on three nodes: hops of 1.0 inside and 2.7 between, and LL's most on two nodes and on more
    ((M, "allreduce", ("ring", "LL")), {"nodes": 2}, 6.6 + 28 + 2 * 2.7 + M * 15 / 8 / 39e3, "ring/LL"),
    ((M, "allreduce", ("ring", "LL")), {"nodes": 3}, 6.6 + 42 + 4 * 2.7 + M * 23 / 12 / 20.4e3, "ring/LL"),
    # From 1 KiB per rank on, the latency of Simple between nodes is 1.4 times as long
    ((16 * K, "allreduce", ("ring", "Simple")), {"nodes": 2}, 1.4 * (8.4 + 28 * 3.4 + 28) + 16 * K * 15 / 8 / 384e3, "ring/Simple"),
    ((8 * K, "allreduce", ("ring", "Simple")), {"nodes": 2}, 8.4 + 28 * 3.4 + 28 + 8 * K * 15 / 8 / 384e3, "ring/Simple"),
    # An NVLS tree reaches 65 % of its 554 GB/s at 1 MiB on Blackwell, and all of it on Hopper
    ((M, "allreduce", ("nvls_tree", None)), {"nodes": 2, "nvlink": 900}, 66.8 + M * 15 / 8 / 554e3 / 0.65, "NVLS tree/Simple"),
    ((M, "allreduce", ("NVLSTree", None)), {"nodes": 2}, 66.8 + M * 15 / 8 / 554e3, "NVLS tree/Simple"),
])  # fmt: skip
def test_times_computed_by_hand(case, of, microseconds, how):
    size, operation, *forced = case
    (found,) = expected_times(operation, job(**of), [size], *forced)
    assert (found.seconds * 1e6, found.how) == (pytest.approx(microseconds, rel=1e-3), how)


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("of", [
    {}, {"nodes": 2}, {"nodes": 12}, {"nodes": 9, "gpus": 1, "nvlink": None}, {"nodes": 4, "nvlink": 900},
    {"nodes": 36, "gpus": 4, "nvlink": 900, "nic": "4x400Gb", "domain": 72}, {"gpus": 2, "nvlink": 300},
])  # fmt: skip
def test_a_larger_size_takes_longer_and_approaches_the_expected_rate(operation, of):
    times = expected_times(operation, job(**of), [round(2 ** (step / 2)) for step in range(6, 84)])
    assert all(first.seconds <= second.seconds for first, second in pairwise(times))
    assert times[-1].plateau_percent == pytest.approx(100, abs=0.5)
    assert max(row.plateau_percent for row in times) <= 100.001


def test_a_published_sweep_stays_below_the_model_and_meets_the_floors():
    for row in expected_times("allreduce", job(), list(H100)):
        assert H100[row.size_bytes] <= row.busbw_bytes_per_s / 1e9
    for row in floors_of("allreduce", job(), peak("allreduce", gpus_per_node=8, nvlink_bytes_per_s=450e9), 0.85, [512 * M, G, 8 * G]):
        assert row.gb_per_s <= H100[row.size_bytes]


def test_no_floor_for_sizes_at_which_healthy_machines_differ_and_a_published_result_below_it_is_a_warning():
    found = peak("allreduce", gpus_per_node=8, nvlink_bytes_per_s=450e9)
    with pytest.raises(UsageError, match="16 MiB reaches 69 %"):
        floors_of("allreduce", job(), found, 0.85, [16 * M, G])
    reasons = floors_of("allreduce", job(), found, 0.95, None)[0].reasons
    assert [("warning" in reason, "ring algorithm" in reason) for reason in reasons[1:]] == [(True, False), (False, True), (True, False)]


@pytest.mark.parametrize(("operation", "of"), [
    ("alltoall", {}), ("broadcast", {}), ("allreduce", {"nvlink": 448}), ("allreduce", {"gpus": 1, "nodes": 2, "nic": None}),
], ids=["alltoall", "broadcast", "RCCL", "no constants"])  # fmt: skip
def test_no_model_without_constants(operation, of):
    assert why_no_model(operation, job(**of)) is not None


def test_forms_of_floors():
    found = peak("allreduce", gpus_per_node=8, nvlink_bytes_per_s=450e9)
    floors = floors_of("allreduce", job(), found, 0.8, None)
    text = {form: render(floors, "allreduce", job(), form) for form in ("nhc", "nvcre", "reframe", "json")}
    assert text["nhc"].splitlines()[-1] == " * || check_nccl_allreduce 413.4 1 16G"
    assert all(line.startswith("#") for line in text["nhc"].splitlines()[:-1]) and "NCCL's constants" in text["nhc"]
    assert 'busBandwidthGBps: "value >= 413.4"' in text["nvcre"] and "testScale: intra-node" in text["nvcre"]
    names: dict = {}
    exec(text["reframe"], names)
    expected, lower, upper, unit = names["reference"]["*"]["allreduce_16G_busbw"]
    assert expected * (1 + lower) == pytest.approx(413.4, abs=0.2)
    assert (upper, unit) == (None, "GB/s")
    assert json.loads(text["json"])["floors"][0]["floor_bytes_per_s"] == 413.4e9


def test_many_racks_read_as_not_saturated(capsys, tmp_path):
    """20 racks of NVL72 reach 406 GB/s with 16 GiB, 12 MB per rank: the 2 × 1,439 steps of a ring with LL128 take 5.6 of 57 ms."""
    argv = ["--nodes", "360", "--gpus-per-node", "4", "--nvlink", "900", "--nic", "4x400Gb/s", "--nvlink-domain", "72"]
    page = tmp_path / "page.html"
    call(*argv, "--sizes", "16G", "--measured", "406", "--html", str(page))
    sentence = "not saturated: 16 GiB is 11.4 MiB for each of 1,440 ranks, with which a ring reaches 83 % of its rate by NCCL's model"
    assert sentence in " ".join(capsys.readouterr().out.split())
    assert sentence in page.read_text().replace("&#39;", "'")
    (one,) = expected_times("allreduce", job(nodes=360, gpus=4, nvlink=900, nic="4x400Gb", domain=72), [16 * G])
    latency_s = 14e-6 + (2 * 1439 - 2 * 19) * 1.9e-6 + 2 * 19 * 4e-6
    moved_s = 16 * G * 2 * 1439 / 1440 / 732e9
    assert one.ring_percent == pytest.approx(100 * moved_s / (moved_s / 0.92 + latency_s), rel=1e-3)


def test_a_saturated_size_says_nothing(capsys):
    call("--sizes", "8G", "--measured", "478.87")
    assert "saturated" not in capsys.readouterr().out


@pytest.mark.parametrize("text", ["0", "101%", "x", "", "-5", "nan"])
def test_shares_that_are_not_valid(text):
    with pytest.raises(UsageError, match="--floor"):
        parse_share(text)


def test_command_and_api_agree(capsys, tmp_path):
    of_api = peak("allreduce", gpus_per_node=8, nvlink_bytes_per_s=450e9, sizes=[16 * M]).sizes[0]
    call("--sizes", "16M", "--measured", "234.45", "--format", "json", "--html", str(tmp_path / "page.html"))
    found = json.loads(capsys.readouterr().out)
    assert found["sizes"][0]["seconds"] == of_api.seconds
    assert found["percent_of_size"] == pytest.approx(100 * 234.45e9 / of_api.busbw_bytes_per_s)
    assert "NVLS/Simple" in (tmp_path / "page.html").read_text()
    call("--sizes", "16M", "--format", "csv")
    header, row = capsys.readouterr().out.splitlines()
    assert dict(zip(header.split(","), row.split(","), strict=True))["expected_time_s"] == str(of_api.seconds)


def test_sizes_of_measuring_commands_are_not_those_of_peak(tmp_path):
    (tmp_path / "config.toml").write_text('sizes = "8,1K"\n')
    env = {"COLLBENCH_SIZES": "8,1K", "COLLBENCH_CONFIG": str(tmp_path / "config.toml")}
    done = run_here(tmp_path, "peak", "alltoall", "--gpus-per-node", "8", "--nvlink", "450", "--format", "json", env=env)
    assert (done.returncode, done.stderr) == (0, "") and json.loads(done.stdout)["sizes"] == []


@pytest.mark.parametrize("argv", [
    ("--emit", "nhc"), ("--format", "csv"), ("--sizes", "1M,2M", "--measured", "4"), ("--floor", "85%", "--measured", "4"),
    ("--nodes", "2", "--nic", "8x400Gb", "--floor", "85%", "--emit", "nhc"), ("--ceiling", "400", "--sizes", "1M"),
])  # fmt: skip
def test_options_that_do_not_go_together(argv):
    with pytest.raises(UsageError):
        call(*argv)
