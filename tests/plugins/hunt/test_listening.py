"""Rank 0 of a hunt: its options, the results of its rounds, the files and drains that follow its verdict, and its messages."""

import errno
import json
import signal
from functools import partial
from types import SimpleNamespace

import pytest

from collbench.backends.slowing import parse_slowing
from collbench.errors import Interrupted, RunFailed, UsageError
from collbench.measuring.request import Budget, Request
from collbench.measuring.session import Plan
from collbench.operations.sweep import Sweep
from collbench.plugins.hunt import drain
from collbench.plugins.hunt.managers import CommandOutcome
from collbench.plugins.hunt.places import HuntRequest
from collbench.plugins.hunt.progress import HuntProgressPrinter, options_of
from collbench.plugins.hunt.protocol import CONFIRMED, GroupFigure, HuntVerdict, RoundResult, Suspect, result_of
from collbench.plugins.hunt.records import HuntRound
from collbench.report.progress import Output
from tests.helpers import said
from tests.plugins.hunt.test_cover import FAT_TREE, nodes
from tests.plugins.hunt.test_records import a_round

NAMES = tuple(nodes(16))
ABOUT = {
    "places": list(NAMES), "by": "node", "backend": "mpi", "virtual": False, "no_groups": None, "ranks_per_place": 2,
    "nics": ["eth0", "eth1"], "nodes": [], "max_time_s": 0.5, "promised": 9, "ceiling": None,
}  # fmt: skip
FAULTY, TWO = (
    HuntVerdict(NAMES, tuple(Suspect("node", (place,), CONFIRMED, 0.5, partners=(0, 1)) for place in places), {"sweep": 8}, 20)
    for places in ((3,), (3, 5))
)
OUTPUT = Output(color="never")


def typed(max_time_s=0.5, seed=0, slowed=(), **changes):
    launch = Request("hunt", Sweep((), None, ()), ("mpi",), budget=Budget(max_time_s), seed=seed, slowed=parse_slowing(slowed))
    return HuntRequest(launch, **changes)


def test_options_are_those_of_request_and_launch_and_a_file_of_links_chooses_the_pairs():
    options, crossed = options_of(typed(), ABOUT)
    assert (options.most_rounds, options.method, options.growing, options.isolate, options.seed) == (400, "auto", True, True, 0)
    assert (options.can_inside, options.nics, options.cover, crossed) == (True, ("eth0", "eth1"), None, {})
    assert options_of(typed(budget_s=0.1), ABOUT)[0].most_rounds == 1
    assert options_of(typed(max_time_s=2.0, seed=7, growing=False, isolate=False), ABOUT)[0].most_rounds == 100
    about = {**ABOUT, "no_groups": "socket has p2p only"}
    options, _ = options_of(typed(), about)
    assert (options.method, options.growing, options.can_inside, options.isolate) == ("pairs", False, False, True)
    assert said(lambda: options_of(typed(method="groups"), about)) == (
        "--method groups needs all-reduce, but socket has p2p only: choose another --backend, or --method pairs"
    )
    options, actual = options_of(typed(cover_links=FAT_TREE), ABOUT)
    assert options.cover and all(a < b for a, b in options.cover)
    assert options.leaf_of and len(options.leaf_of) == 16 and len(set(options.leaf_of)) > 1
    assert "cables" in actual["crossed"][0] and actual["uncovered"] == []
    assert said(lambda: options_of(typed(cover_links=FAT_TREE, method="groups"), ABOUT)) == (
        "--cover-links needs pairs, which --method groups does not measure: omit one of them"
    )


def test_the_result_of_a_round_has_the_figures_of_each_pair():
    one = a_round(speed_bytes_per_s=(1e9, None), wrong=(0, 3), na=(None, "gone"), flags=("simulated",))
    assert result_of(one) == RoundResult(
        (GroupFigure(1e9, 1e9, 1e-6, 1e9, 1e9, 0, None), GroupFigure(None, 1e9, 1e-6, 1e9, 1e9, 3, "gone")), ("simulated",)
    )  # fmt: skip


def concluded(request, about=ABOUT, verdict=FAULTY):
    """Return the listener of a hunt that has its verdict."""
    listening = HuntProgressPrinter(OUTPUT, request)
    listening._verdict = verdict
    listening.verdict([], about)
    return listening


def unheard(kind, **facts):
    """Take an event that the test does not look at."""


def recommended(folder):
    return json.loads((folder / "recommendation.json").read_text())


def test_the_verdict_and_the_recommendation_are_stored_and_printed_or_a_failure_is_one_sentence(tmp_path, capsys):
    listening = concluded(typed())
    listening.act(tmp_path, unheard)
    actual = recommended(tmp_path)
    assert (actual["result"], [each["node"] for each in actual["drains"]], actual["applied"]) == ("confirmed", [NAMES[3]], [])
    listening.end()
    assert f"scontrol update NodeName={NAMES[3]} State=DRAIN" in capsys.readouterr().out
    assert said(lambda: concluded(typed()).act(tmp_path / "gone", unheard)) == (
        f"{tmp_path}/gone: cannot write recommendation.json (No such file or directory): check the folder and its disk"
    )
    listening = concluded(typed(apply=True, slowed=("by=10%",)))
    listening.act(tmp_path, unheard)
    actual = recommended(tmp_path)
    assert actual["applied"] == [] and "--slowed" in actual["refused"]
    listening.end()
    assert capsys.readouterr().out.endswith(f"{actual['refused']}\n")


@pytest.mark.parametrize(("request_of_hunt", "about", "value"), [
    (typed(), {**ABOUT, "virtual": True, "backend": "simulated"}, "backend simulated simulates its ranks"),
    (typed(slowed=("by=10%",)), ABOUT, "ranks were slowed on purpose (--slowed)"),
], ids=["simulated", "slowed"])  # fmt: skip
def test_simulated_and_slowed_ranks_are_not_drained(request_of_hunt, about, value, tmp_path):
    concluded(request_of_hunt, about).act(tmp_path, unheard)
    actual = recommended(tmp_path)
    assert (actual["no_drain"], actual["drains"]) == (value, [])


@pytest.mark.parametrize(("flag", "value"), [
    ("oversubscribed", "more ranks than cores were running: start fewer"),
    ("shared_gpu", "several ranks used one GPU: start one rank per GPU"), ("few_samples", None),
])  # fmt: skip
def test_no_node_is_drained_for_how_the_launch_was_started(flag, value, tmp_path):
    listening = HuntProgressPrinter(OUTPUT, typed())
    listening.begin(Plan(9, {"hunt": {**ABOUT, **listening.plan(ABOUT)}}), str(tmp_path))
    last = []
    while asked := listening.next(last):
        n = len(asked.groups)
        each, none = (1e9,) * n, (None,) * n
        last = [HuntRound(0, asked.kind, "sweep", "", asked.groups, each, each, (1e-6,) * n, none, none, (0,) * n, none,
                          flags=() if last else (flag,))]  # fmt: skip
        listening.record(last[0], None)
    listening._verdict = FAULTY
    listening.verdict([], ABOUT)
    listening.act(tmp_path, unheard)
    actual = recommended(tmp_path)
    assert (actual["no_drain"], len(actual["drains"])) == (value, 0 if value else 1)


def test_apply_drains_and_stores_the_drains_and_prints_their_undo_command(tmp_path, monkeypatch, capsys):
    there = {}

    def apply(expected, cap, env, note):
        there.update(stored=(tmp_path / "recommendation.json").is_file(), cap=cap.text)
        for action in ("begun", "drained"):
            note({"node": NAMES[3], "action": action})
        return SimpleNamespace(lines=lambda: ["undo it with: this"], refused="")

    monkeypatch.setattr("collbench.plugins.hunt.drain.apply", apply)
    kept = []
    listening = concluded(typed(apply=True, max_drain="3"))
    listening.act(tmp_path, lambda kind, **facts: kept.append((kind, facts)))
    assert there == {"stored": True, "cap": "3"}
    assert kept == [("drain", {"node": NAMES[3], "action": action}) for action in ("begun", "drained")]
    assert recommended(tmp_path)["applied"] == [{"node": NAMES[3], "action": "drained"}]
    listening.end()
    assert capsys.readouterr().out.endswith("undo it with: this\n")


@pytest.fixture
def drained(monkeypatch):
    """A double of Slurm that drains the given nodes; Ctrl-C ends it before the second node."""
    out = set()

    def ask(words, env):
        if "update" not in words:
            nodes = "\n".join(f"NodeName={name} State=IDLE{'+DRAIN' * (name in out)}" for name in NAMES if name in words or len(words) == 5)
            return CommandOutcome(0, nodes)
        if out:
            raise Interrupted(signal.SIGINT)
        out.add(words[2].removeprefix("NodeName="))
        return CommandOutcome(0)

    monkeypatch.setattr("collbench.plugins.hunt.drain.apply", partial(drain.apply, run=ask))
    monkeypatch.setenv("SLURM_JOB_ID", "7")


def test_a_drain_before_ctrl_c_is_stored_with_its_undo_command(drained, tmp_path):
    with pytest.raises(Interrupted):
        concluded(typed(apply=True, max_drain="3"), verdict=TWO).act(tmp_path, unheard)
    applied = recommended(tmp_path)["applied"]
    assert [(each["node"], each["action"], each["undo"]) for each in applied] == [
        (NAMES[place], action, f"scontrol update NodeName={NAMES[place]} State=RESUME") for place, action in ((3, "drained"), (5, "begun"))
    ]


def test_the_error_of_a_full_disk_after_a_drain_has_the_undo_command(drained, tmp_path, monkeypatch):
    def full(folder, expected):
        if expected["applied"] and expected["applied"][-1]["action"] == "drained":
            raise OSError(errno.ENOSPC, "No space left on device")
        return folder / "recommendation.json"

    monkeypatch.setattr("collbench.plugins.hunt.recommendation.store", full)
    with pytest.raises(RunFailed, match=rf"No space left on device.*scontrol update NodeName={NAMES[3]} State=RESUME"):
        concluded(typed(apply=True)).act(tmp_path, unheard)


def test_only_apply_checks_whether_nodes_can_be_drained(monkeypatch):
    def refuse(env):
        raise UsageError("no cluster manager")

    monkeypatch.setattr("collbench.plugins.hunt.drain.check_apply", refuse)
    planned = HuntProgressPrinter(OUTPUT, typed()).plan(ABOUT)
    assert planned["promised"] > 0 and planned["seed"] == 0
    with pytest.raises(UsageError, match="no cluster manager"):
        HuntProgressPrinter(OUTPUT, typed(apply=True)).plan(ABOUT)
