"""`collbench hunt --groups`: what is rejected before the first measurement, what is stored, and how a finding is shown."""

import json
from shutil import which
from types import SimpleNamespace

import pytest

from collbench.plugins.groups import facts
from collbench.plugins.hunt import progress
from collbench.plugins.hunt.kind import HUNT
from collbench.plugins.hunt.protocol import CONFIRMED, TRUNK, Suspect
from collbench.plugins.hunt.recommendation import lines
from collbench.plugins.hunt.records import HuntAbout, StoredHunt, StoredVerdict
from collbench.plugins.hunt.text import SUSPECTS
from collbench.reason import decode
from tests.cli.command import one_sentence, run
from tests.plugins.hunt.test_listening import ABOUT, typed
from tests.plugins.hunt.verdicts import recommended

PART = facts.BetweenGroups("leaf1", "leaf2", CONFIRMED, 0.71, 6, 6, cleared=4)
FOUND = Suspect(TRUNK, (0, 1, 2, 3), CONFIRMED, 0.71, 0.69, 0.73, evidence=(facts.NodesCleared(4, 4), facts.OnlyTwoGroups()), part=PART)
SENTENCE = "between leaf1 and leaf2: 71 % of the others (6 of 6 pairs), the nodes are cleared"


@pytest.mark.system
@pytest.mark.parametrize(("typed", "value"), [
    (("--groups", "missing.conf"), "missing.conf"), (("--groups", "slurm"), "scontrol"),
    (("--groups", "latency", "--method", "groups"), "--method groups"), (("--groups", "nvlink"), "NVLink"),
], ids=["file", "slurm", "method", "nvlink"])  # fmt: skip
def test_an_impossible_source_is_rejected_before_the_first_measurement(typed, value, tmp_path, tmp_path_factory):
    bare = tmp_path_factory.mktemp("bin")  # no scontrol
    (bare / "timeout").symlink_to(which("timeout") or "")
    done = run(tmp_path, "hunt", "--backend", "simulated", "--ranks", "8", *typed, env={"PATH": str(bare)})
    assert value in one_sentence(done) and list(tmp_path.iterdir()) == []


@pytest.mark.system
def test_a_plan_has_the_stage_and_a_hunt_stores_its_source(tmp_path):
    words = ("hunt", "--backend", "simulated", "--ranks", "8", "--size", "16K", "--window", "2", "--groups", "latency")
    planned = run(tmp_path, *words, "--dry-run", "--format", "json")
    assert planned.returncode == 0, planned.stderr
    assert '"groups"' in planned.stdout
    done = run(tmp_path, *words, "--out", "run")
    assert done.returncode == 0, done.stderr
    info = json.loads((tmp_path / "run/run.json").read_text())
    (note,) = [fact for fact in info["hunt"]["verdict"]["note_facts"] if fact["kind"] == "no_groups_found"]
    assert decode(note, facts.NoGroupsFound) == facts.NoGroupsFound()


def test_a_stage_needs_the_plug_in(monkeypatch):
    monkeypatch.setattr(progress, "hooks_of", lambda hook: [])
    with pytest.raises(progress.UsageError, match="plug-in 'groups'"):
        progress.options_of(typed(groups="latency"), ABOUT)


def test_a_confirmed_path_drains_no_node_is_shown_with_its_groups_and_marks_no_link():
    document = recommended(FOUND)
    (suspect,) = document["suspects"]
    assert (suspect["code"], suspect["kind"], suspect["part"], document["drains"]) == ("CB6108", "trunk", SENTENCE, [])
    assert any(SENTENCE in line and "do not drain" in line for line in lines(document))
    stored = {"result": CONFIRMED, "notes": [], "suspects": [FOUND.as_json()]}
    hunt = StoredHunt({"places": list("abcd"), "hosts": list("abcd"), "verdict": stored}, [])
    material = SimpleNamespace(of_kind=lambda name: [(None, hunt)])
    (row,) = SUSPECTS.records(hunt)
    assert (row.code, row.kind, row.part, row.ratio) == ("CB6108", "trunk", SENTENCE, 0.71)
    assert isinstance(hunt.shown, HuntAbout) and isinstance(hunt.shown.verdict, StoredVerdict)
    assert list(HUNT.slow_links(material)) == []
    (concern,) = HUNT.concerns(material)
    assert SENTENCE in concern.what
