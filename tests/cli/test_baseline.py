"""collbench baseline add, show, drop: as a user types them."""

from __future__ import annotations

import json
from pathlib import Path

from collbench.gate.reasons import LaunchesLeftOut
from tests.cli.command import one_sentence, run_here
from tests.gate.allocations import launch


def nights(folder: Path, count: int) -> list[str]:
    """Runs of so many allocations whose small case scatters by 1 %, and whose large one does not."""
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


def test_show_says_how_much_is_missing_for_a_verdict(tmp_path: Path) -> None:
    run_here(tmp_path, "baseline", "add", "base", *nights(tmp_path, 3))
    assert "for a verdict; add 1 more: collbench baseline add base RUN…" in run_here(tmp_path, "baseline", "show", "base").stdout
    run_here(tmp_path, "baseline", "add", "base", str(launch(tmp_path / "fourth", {8: 1e-6})))
    assert "thin baseline: use 6 allocations or more for reliable limits" in run_here(tmp_path, "baseline", "show", "base").stdout


def test_json_has_an_object_for_each_case(tmp_path: Path) -> None:
    run_here(tmp_path, "baseline", "add", "base", *nights(tmp_path, 6))
    small, large = map(json.loads, run_here(tmp_path, "baseline", "show", "base", "--format", "json").stdout.splitlines())
    assert (small["operation"], small["size_bytes"], small["allocations"]) == ("allreduce", 8, 6)
    assert (round(large["time_s"], 9), round(large["visible_slowdown"], 6)) == (0.1, 0.02)


def test_show_tells_which_launches_say_nothing_of_the_usual_state(tmp_path: Path) -> None:
    odd = str(launch(tmp_path / "odd", {8: 4e-6, 64 << 20: 0.1}, canary_s={"before": 26e-8, "after": 26e-8}))
    run_here(tmp_path, "baseline", "add", "base", *nights(tmp_path, 5), odd)
    shown = run_here(tmp_path, "baseline", "show", "base").stdout.splitlines()
    assert LaunchesLeftOut("odd", 1, 1, "baseline").render() in shown
    assert "thin baseline: use 6 allocations or more for reliable limits" in shown
    assert shown[-2].split()[-4:] == ["5", "1.000", "5.0", "%"]


def test_bad_input_is_one_sentence(tmp_path: Path) -> None:
    runs = nights(tmp_path, 1)
    run_here(tmp_path, "baseline", "add", "base", *runs)
    assert ": drop it there" in one_sentence(run_here(tmp_path, "baseline", "add", "base", *runs))
    slowed = str(launch(tmp_path / "slow", {8: 1e-6}, flags=("slowed",)))
    assert "allocation slow was slowed on purpose" in one_sentence(run_here(tmp_path, "baseline", "add", "base", slowed))
    assert "nowhere is not a run folder" in one_sentence(run_here(tmp_path, "baseline", "add", "base", "nowhere"))
    assert "nowhere is not a baseline" in one_sentence(run_here(tmp_path, "baseline", "show", "nowhere"))
    assert "choose from night-0" in one_sentence(run_here(tmp_path, "baseline", "drop", "base", "nobody"))


def test_a_difference_to_nothing_names_the_second_one(tmp_path: Path) -> None:
    run_here(tmp_path, "baseline", "add", "base", *nights(tmp_path, 2))
    told = one_sentence(run_here(tmp_path, "baseline", "diff", "base", "night-0"))
    assert "a second one: collbench baseline diff base night-0 night-1" in told


def test_adding_says_how_many_are_wanted(tmp_path: Path) -> None:
    done = run_here(tmp_path, "baseline", "add", "base", *nights(tmp_path, 1))
    assert done.stderr == "collbench: base has 1 allocation; a verdict needs 4, better 6: collbench baseline add base RUN…\n"
