"""`collbench baseline`: its output for many hosts, and the next command that it prints."""

from __future__ import annotations

from pathlib import Path

from collbench.gating.baseline import Baseline
from collbench.report.baseline import after_adding, baseline_lines, hosts_of
from tests.gate.judging import allocation


def on(*names: str) -> dict[str, dict[str, str]]:
    return {"hosts": {"names": ", ".join(names)}}


def test_few_hosts_by_name_and_many_by_number() -> None:
    assert hosts_of(allocation("a", facts=on("node1", "node2"))) == "node1, node2"
    assert hosts_of(allocation("a", facts=on(*(f"node{n:03}" for n in range(512))))) == "512 hosts, node000 to node511"
    assert hosts_of(allocation("a", facts={})) == "hosts unknown"


def test_no_line_is_as_long_as_a_cluster() -> None:
    wide = [allocation(f"good-{n}", facts=on(*(f"node{n:03}.cluster.example.org" for n in range(512)))) for n in range(4)]
    assert max(len(line.text) for line in baseline_lines(Baseline(Path("base"), wide), "table")) < 140


def test_after_adding_the_next_command_is_reported() -> None:
    assert after_adding(Path("my base"), 1) == (
        "my base has 1 allocation; a verdict needs 4, better 6: collbench baseline add 'my base' RUN…"
    )
    assert after_adding(Path("base"), 4) == "base has 4 allocations (better 6); detectable slowdowns: collbench baseline show base"
    assert after_adding(Path("base"), 6) == "base has 6 allocations; detectable slowdowns: collbench baseline show base"
