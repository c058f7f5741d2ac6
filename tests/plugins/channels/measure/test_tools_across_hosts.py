"""iperf3 beside ours under srun, over a link of 1 Gbit/s: both read what the link has; a tool that goes round the link is found out."""

import json
from pathlib import Path
from typing import Any

import pytest

from collbench.plugins.hunt.records import read_pairs
from collbench.results.reader import read_run
from tests.cli.command import PROGRAM, Finished, environment
from tests.conftest import cannot
from tests.testbeds import SlurmBed
from tools.benchmarks.trials.gallery import LINK_BYTES_PER_S, PAYLOAD

pytestmark = [pytest.mark.long, pytest.mark.slurm, pytest.mark.timeout(120)]

UNSET = {"COLLBENCH_ITERATIONS": "", "COLLBENCH_WARMUP": ""}
BURST, WINDOW_BYTES = 256 << 10, 16 << 20  # of `pairs`: 16 messages of 1 MiB
OURS_MOST = PAYLOAD * (1 + BURST / WINDOW_BYTES)  # while a window's answer is under way, the shaper saves up a burst
MOST = PAYLOAD * (1 + BURST / LINK_BYTES_PER_S)  # of a second: before it the shaper has saved up one burst


def under_srun(bed: SlurmBed, *words: str, env: dict[str, str] | None = None) -> Finished:
    done = bed.srun(["-N2", "--mpi=none"], [*PROGRAM, *words], 100, environment({**UNSET, **(env or {})}))
    if done.returncode == 2 and "is not installed" in done.stderr:
        cannot(done.stderr)
    assert done.returncode == 0, done.stderr
    return done


def test_pairs(slurm_hosts: SlurmBed, tmp_path: Path) -> None:
    words = ("--backend", "socket", "--max-time", "1", "--tools", "iperf3,fi_pingpong", "--out", str(tmp_path / "run"))
    done = under_srun(slurm_hosts, "pairs", *words)
    found = read_pairs(read_run(tmp_path / "run"))
    assert found and not found.warnings and all(row.na is None and row.nodes == 2 for row in found.external), found
    assert {row.flags for row in found.external} == {("their_tool", "unverified")}  # the counters of the links agree with the tools
    first, second = slurm_hosts.nodes
    ends = [(row.backend, row.evidence["from"], row.evidence["to"]) for row in found.external]
    assert ends == [(tool, a, b) for tool in ("iperf3", "fi_pingpong") for a, b in ((first, second), (second, first))]
    rates = [row.algbw_bytes_per_s for row in found.external if row.backend == "iperf3"]
    ours = found.matrix().bandwidth
    for rate, most in (*((rate, MOST) for rate in rates), (ours[0, 1], OURS_MOST), (ours[1, 0], OURS_MOST)):
        assert rate and 0.5 <= rate / LINK_BYTES_PER_S <= most * 1.002, (rates, ours)
    assert max(filter(None, rates)) / LINK_BYTES_PER_S >= 0.93  # a busy machine slows the others
    assert "over socket" in done.stdout


def test_probe_sets_iperf3_against_the_link(slurm_hosts: SlurmBed) -> None:
    words = ("--measure", "--max-time", "0.2", "--tools", "iperf3", "--format", "json")
    for _ in range(3):  # a busy machine slows one, or both, now and then
        read = sorted(row["percent"] for row in probed(slurm_hosts, *words))
        if read[0] >= 50 and read[-1] >= 97:
            break
    assert read[0] >= 50 and read[-1] >= 97, read


def probed(slurm_hosts: SlurmBed, *words: str) -> list[dict[str, Any]]:
    """Both directions, which are what the link can have."""
    rows = [row for row in json.loads(under_srun(slurm_hosts, "probe", *words).stdout)["channels"] if row["channel"] == "iperf3"]
    first, second = slurm_hosts.nodes
    assert [(row["from"], row["to"]) for row in rows] == [(first, second), (second, first)]
    for row in rows:
        assert row["limited_by"].startswith("NIC eth0 1 Gb/s, TCP") and row["of_bytes_per_s"] == pytest.approx(PAYLOAD * LINK_BYTES_PER_S)
        assert row["percent"] <= 100.3
    return rows


def test_a_tool_that_bypasses_the_link_is_detected(slurm_hosts: SlurmBed, tmp_path: Path) -> None:
    """UCX shares memory between namespaces of one machine: 7 GB/s over a link of 1 Gbit/s. Restricted to the link, it measures the link."""
    words = ("--backend", "socket", "--max-time", "0.1", "--tools", "ucx_perftest", "--timeout", "10", "--out")
    under_srun(slurm_hosts, "pairs", *words, str(tmp_path / "round"), env={"UCX_TLS": "posix,sysv,cma,tcp,self"})
    under_srun(slurm_hosts, "pairs", *words, str(tmp_path / "over"), env={"UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "eth0"})
    around, over = (read_pairs(read_run(tmp_path / name)) for name in ("round", "over"))
    assert around and over
    measured = [row for row in around.external if row.na is None]
    assert measured and all("other_path" in row.flags for row in measured)
    straight = [row for row in over.external if row.na is None and row.operation == "p2p_bandwidth"]
    assert straight and all("other_path" not in row.flags for row in straight)
    assert all(row.algbw_bytes_per_s and row.algbw_bytes_per_s / LINK_BYTES_PER_S <= MOST * 1.01 for row in straight)
