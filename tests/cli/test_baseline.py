"""collbench baseline add, show, drop: as a user types them."""

from __future__ import annotations

import json
from pathlib import Path

from collbench.gate.reasons import LaunchesLeftOut
from tests.cli.command import one_sentence, run_here
from tests.gate.allocations import launch


def nights(folder: Path, count: int) -> list[str]:
    """Store the runs of so many allocations; the small case scatters by 1 %, the large one does not."""
    return [str(launch(folder / f"night-{n}", {8: 1e-6 * (1 + 0.01 * (n % 2)), 64 << 20: 0.1})) for n in range(count)]


def test_add_show_and_drop(tmp_path: Path) -> None:
    done = run_here(tmp_path, "baseline", "add", "base", *nights(tmp_path, 6))
    assert done.returncode == 0
    assert done.stdout.splitlines() == [f"base/night-{n}.allocation.jsonl" for n in range(6)]
    shown = run_here(tmp_path, "baseline", "show", "base").stdout.splitlines()
    assert shown[0] == "base: 6 allocations, 2 cases"
    assert "1 launch  node1, node2" in shown[1]
    assert [line.split() for line in shown[-2:]] == [
        ["allreduce", "8", "B", "nccl", "6", "1.005", "5.0", "%"],
        ["allreduce", "64", "MiB", "nccl", "6", "100000", "2.0", "%"],
    ]
    assert run_here(tmp_path, "baseline", "drop", "base", "night-3").returncode == 0
    assert run_here(tmp_path, "baseline", "show", "base").stdout.startswith("base: 5 allocations, 2 cases")


def test_show_prints_how_many_allocations_a_verdict_needs(tmp_path: Path) -> None:
    run_here(tmp_path, "baseline", "add", "base", *nights(tmp_path, 3))
    assert "add 1 more: collbench baseline add base RUN…" in run_here(tmp_path, "baseline", "show", "base").stdout
    run_here(tmp_path, "baseline", "add", "base", str(launch(tmp_path / "fourth", {8: 1e-6})))
    assert "thin baseline: " in run_here(tmp_path, "baseline", "show", "base").stdout


def test_json_has_an_object_for_each_case(tmp_path: Path) -> None:
    run_here(tmp_path, "baseline", "add", "base", *nights(tmp_path, 6))
    small, large = map(json.loads, run_here(tmp_path, "baseline", "show", "base", "--format", "json").stdout.splitlines())
    assert (small["operation"], small["size_bytes"], small["allocations"]) == ("allreduce", 8, 6)
    assert (round(large["time_s"], 9), round(large["visible_slowdown"], 6)) == (0.1, 0.02)


def test_show_lists_launches_in_another_machine_state(tmp_path: Path) -> None:
    odd = str(launch(tmp_path / "odd", {8: 4e-6, 64 << 20: 0.1}, canary_s={"before": 26e-8, "after": 26e-8}))
    run_here(tmp_path, "baseline", "add", "base", *nights(tmp_path, 5), odd)
    shown = run_here(tmp_path, "baseline", "show", "base").stdout.splitlines()
    assert LaunchesLeftOut("odd", 1, 1, "baseline").render() in shown
    assert any(line.startswith("thin baseline: ") for line in shown)
    assert shown[-2].split()[-4:] == ["5", "1.000", "5.0", "%"]


def test_bad_input_is_one_sentence(tmp_path: Path) -> None:
    runs = nights(tmp_path, 1)
    run_here(tmp_path, "baseline", "add", "base", *runs)
    assert "night-0" in one_sentence(run_here(tmp_path, "baseline", "add", "base", *runs))
    slowed = str(launch(tmp_path / "slow", {8: 1e-6}, flags=("slowed",)))
    assert "allocation slow " in one_sentence(run_here(tmp_path, "baseline", "add", "base", slowed))
    assert "nowhere " in one_sentence(run_here(tmp_path, "baseline", "add", "base", "nowhere"))
    assert "nowhere " in one_sentence(run_here(tmp_path, "baseline", "show", "nowhere"))
    assert "choose from night-0" in one_sentence(run_here(tmp_path, "baseline", "drop", "base", "night-9"))


def test_a_difference_needs_a_second_allocation(tmp_path: Path) -> None:
    run_here(tmp_path, "baseline", "add", "base", *nights(tmp_path, 2))
    actual = one_sentence(run_here(tmp_path, "baseline", "diff", "base", "night-0"))
    assert "collbench baseline diff base night-0 night-1" in actual


def test_add_prints_how_many_allocations_a_verdict_needs(tmp_path: Path) -> None:
    done = run_here(tmp_path, "baseline", "add", "base", *nights(tmp_path, 1))
    assert "needs 4" in done.stderr and done.stderr.endswith(" collbench baseline add base RUN…\n")
