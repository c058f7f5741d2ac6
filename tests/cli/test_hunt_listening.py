"""What rank 0 makes of the options of a hunt, what it tells the hunt of a round, and what it does with the verdict."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from collbench.cli.hunt_listening import HuntListening, answer_of, options_of
from collbench.errors import RunFailed, UsageError
from collbench.hunt.asks import Answer, Figure
from collbench.hunt.verdict import CONFIRMED, Suspect, Verdict
from tests.hunt.test_cover import FAT_TREE, nodes
from tests.results.test_hunts import a_round

NAMES = tuple(nodes(16))
ABOUT: dict[str, Any] = {
    "places": list(NAMES), "by": "node", "backend": "mpi", "virtual": False, "no_groups": None, "ranks_per_place": 2,
    "nics": ["eth0", "eth1"], "nodes": [], "max_time_s": 0.5, "promised": 9, "ceiling": None,
}  # fmt: skip
SICK = Verdict(NAMES, (Suspect("node", (3,), CONFIRMED, 0.5, partners=(0, 1)),), {"sweep": 8}, 20)


def typed(**changes: Any) -> argparse.Namespace:
    known = {
        "method": "auto", "rounds": None, "budget": 600.0, "max_time": 0.5, "seed": None, "no_growing": False, "no_isolation": False,
        "cover_links": None, "apply": False, "max_drain": "2%", "allocation": None, "slowed": [], "format": "table", "color": "never",
        "quiet": True,
    }  # fmt: skip
    return argparse.Namespace(**{**known, **changes})


def test_the_budget_bounds_the_rounds_of_three_measurements_each() -> None:
    options, crossed = options_of(typed(), ABOUT)
    assert (options.most_rounds, options.method, options.growing, options.isolate, options.seed) == (400, "auto", True, True, 0)
    assert (options.can_inside, options.nics, options.cover, crossed) == (True, ("eth0", "eth1"), None, {})
    assert options_of(typed(budget=0.1), ABOUT)[0].most_rounds == 1
    assert options_of(typed(max_time=2.0, seed=7, no_growing=True, no_isolation=True), ABOUT)[0].most_rounds == 100


def test_without_a_reduction_there_are_pairs_alone() -> None:
    about = {**ABOUT, "no_groups": "socket has p2p only"}
    options, _ = options_of(typed(), about)
    assert (options.method, options.growing, options.can_inside, options.isolate) == ("pairs", False, False, True)
    with pytest.raises(UsageError, match=r"^--method groups reduces over groups, and socket has p2p only: choose another --backend"):
        options_of(typed(method="groups"), about)


def test_a_file_of_links_chooses_the_pairs_and_says_what_they_cross() -> None:
    options, told = options_of(typed(cover_links=FAT_TREE), ABOUT)
    assert options.cover and all(a < b for a, b in options.cover)
    assert options.leaf_of and len(options.leaf_of) == 16 and len(set(options.leaf_of)) > 1
    assert "cables" in told["crossed"][0] and told["uncovered"] == []
    with pytest.raises(UsageError, match=r"^--cover-links chooses pairs, and --method groups measures none"):
        options_of(typed(cover_links=FAT_TREE, method="groups"), ABOUT)


def test_a_round_is_told_figure_by_figure() -> None:
    one = a_round(speed_bytes_per_s=(1e9, None), wrong=(0, 3), na=(None, "gone"), flags=("simulated",))
    assert answer_of(one) == Answer(
        (Figure(1e9, 1e9, 1e-6, 1e9, 1e9, 0, None), Figure(None, 1e9, 1e-6, 1e9, 1e9, 3, "gone")), ("simulated",)
    )  # fmt: skip


def concluded(arguments: argparse.Namespace, about: dict[str, Any] = ABOUT) -> HuntListening:
    """One whose hunt has come to its verdict."""
    listening = HuntListening(arguments)
    listening._verdict = SICK
    listening.verdict(about)
    return listening


def events(into: list[Any]) -> Any:
    return lambda kind, **facts: into.append((kind, facts))


def test_the_verdict_is_kept_and_what_to_do_about_it_written(tmp_path: Path) -> None:
    listening = concluded(typed())
    listening.act(tmp_path, events([]))
    told = json.loads((tmp_path / "recommendation.json").read_text())
    assert (told["result"], [each["node"] for each in told["drains"]], told["applied"]) == ("confirmed", [NAMES[3]], [])
    assert any(f"scontrol update NodeName={NAMES[3]} State=DRAIN" in line for line in listening._advice)


@pytest.mark.parametrize(
    ("arguments", "about", "why"),
    [
        (typed(), {**ABOUT, "virtual": True, "backend": "simulated"}, "the ranks of simulated are made up"),
        (typed(slowed=["by=10%"]), ABOUT, "ranks were slowed on purpose (--slowed)"),
    ],
    ids=["made up", "slowed"],
)
def test_whom_we_made_slow_ourselves_is_not_drained(arguments: argparse.Namespace, about: Any, why: str, tmp_path: Path) -> None:
    concluded(arguments, about).act(tmp_path, events([]))
    told = json.loads((tmp_path / "recommendation.json").read_text())
    assert (told["no_drain"], told["drains"]) == (why, [])


def test_apply_drains_keeps_what_it_did_and_says_how_to_undo_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there: dict[str, Any] = {}

    def apply(told: Any, cap: Any, env: Any, note: Any) -> Any:
        there.update(stored=(tmp_path / "recommendation.json").is_file(), cap=cap.text)
        note({"node": NAMES[3], "action": "drained"})
        return argparse.Namespace(as_json=lambda: [{"node": NAMES[3]}], lines=lambda: ["undo it with: this"], refused="")

    monkeypatch.setattr("collbench.hunt.drain.apply", apply)
    kept: list[Any] = []
    listening = concluded(typed(apply=True, max_drain="3"))
    listening.act(tmp_path, events(kept))
    assert there == {"stored": True, "cap": "3"} and kept == [("drain", {"node": NAMES[3], "action": "drained"})]
    assert json.loads((tmp_path / "recommendation.json").read_text())["applied"] == [{"node": NAMES[3]}]
    assert listening._advice[-1] == "undo it with: this"


def test_a_folder_that_cannot_be_written_is_a_failure_with_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match=r"gone: recommendation.json cannot be written \(No such file or directory\)"):
        concluded(typed()).act(tmp_path / "gone", events([]))


def test_nothing_asks_who_could_drain_unless_somebody_is_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(env: Any) -> str:
        raise UsageError("nobody drains here")

    monkeypatch.setattr("collbench.hunt.drain.check_apply", refuse)
    planned = HuntListening(typed()).plan(ABOUT)
    assert planned["promised"] > 0 and planned["seed"] == 0
    with pytest.raises(UsageError, match=r"^nobody drains here$"):
        HuntListening(typed(apply=True)).plan(ABOUT)
