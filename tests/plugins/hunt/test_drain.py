"""`--apply`: no node is drained without a verdict, above the limit or twice; an error is one sentence with the command to run."""

import json
import os
import shlex
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from collbench.errors import RunFailed, UsageError
from collbench.plugins.hunt.drain import apply, check_apply, lines_of, parse_cap
from collbench.plugins.hunt.managers import CommandOutcome, run_here
from collbench.plugins.hunt.protocol import CLEARED
from collbench.plugins.hunt.recommendation import recommendation, schema
from collbench.results.store import to_page
from tests.plugins.hunt.verdicts import about, recommended, suspect, undo_lines, verdict

SCHEMA = schema()
MINE = "[collbench] CB6101 earlier"
# A test double, as its name and its output show: no Kubernetes runs here.
FAKE_KUBECTL = """\
#!/bin/bash
# A fake kubectl: nodes are lines "NAME" or "NAME true" of the file beside it.
nodes=$(dirname "$0")/nodes
echo "$LC_ALL $*" >>"$nodes.asked"
case $1 in
get) [[ $3 == --* ]] && cat "$nodes" || grep -w "^$3" "$nodes" ;;
cordon) grep -qw "^$2" "$nodes" || { echo "fake kubectl: nodes \\"$2\\" not found" >&2; exit 1; }
    sed -i "s/^$2\\$/$2 true/" "$nodes" ;;
uncordon) sed -i "s/^$2 true\\$/$2/" "$nodes" ;;
esac
"""


class Cluster:
    """A double of Slurm's commands, within this process: an update fails with `refuses`, or has no effect with `lies`."""

    def __init__(self, nodes=100, refuses="", lies=False, **reasons):
        self.reasons = {f"node{number:02}": "" for number in range(nodes)} | reasons
        self.refuses, self.lies, self.asked = refuses, lies, []

    def __call__(self, words, env):
        self.asked.append(list(words))
        if words[1] == "update":
            return self._update(*words[2:])
        wanted = words[5:] or list(self.reasons)
        return CommandOutcome(0, "".join(self._shown(name) for name in wanted if name in self.reasons))

    @property
    def drained(self):
        return [name for name, reason in self.reasons.items() if reason]

    def _update(self, node, state, reason=""):
        if self.refuses:
            return CommandOutcome(1, why=self.refuses)
        if not self.lies:
            self.reasons[node.removeprefix("NodeName=")] = reason.removeprefix("Reason=") if state == "State=DRAIN" else ""
        return CommandOutcome(0)

    def _shown(self, name):
        reason = self.reasons[name]
        state = f"State=IDLE+DRAIN Weight=1 Reason={reason} [root@2026-11-22T03:15:00]" if reason else "State=IDLE Weight=1"
        return f"NodeName={name} Arch=x86_64 OS=Linux 6.1 {state}\n"


def applied(expected, cluster, cap="2%"):
    """Apply the drains and check that the entries fit the schema."""
    found = apply(expected, parse_cap(cap), {}, run=cluster)
    stored = json.loads(to_page({**expected, "applied": found.entries, "refused": found.refused or None}))
    Draft202012Validator(SCHEMA, format_checker=Draft202012Validator.FORMAT_CHECKER).validate(stored)
    return found


class TestCap:
    @pytest.mark.parametrize(("text", "of", "most"), [
        ("2%", 512, 11), ("2%", 500, 10), ("2 %", 100, 2), ("2%", 8, 1), ("0.1%", 3, 1), ("100%", 7, 7), ("33.4%", 3, 2), ("3", 2, 3),
        ("1", 5000, 1),
    ])  # fmt: skip
    def test_a_percentage_is_rounded_up_and_a_number_is_used_as_it_is(self, text, of, most):
        assert parse_cap(text).of(of) == most

    @pytest.mark.parametrize(
        "text", ["0", "0%", "0.0 %", "-1", "-2%", "101%", "100.1%", "", "%", "two", "2.5", "1e3", "nan%", "2%%", "٣", "9" * 10, "\x1b[2J"]
    )
    def test_an_invalid_cap_is_one_sentence(self, text):
        with pytest.raises(UsageError, match=r"^--max-drain .*2%") as error:
            parse_cap(text)
        assert str(error.value).isprintable()

    @given(st.text(max_size=8), st.integers(1, 10**6))
    def test_any_text_is_a_cap_of_at_least_one_or_a_sentence(self, text, nodes):
        try:
            assert parse_cap(text).of(nodes) >= 1
        except UsageError as error:
            assert "\n" not in str(error)


class TestApply:
    def test_a_confirmed_node_is_drained_with_its_reason_and_the_undo_command(self):
        actual, cluster, noted = recommended(), Cluster(), []
        found = apply(actual, parse_cap("2%"), {}, noted.append, cluster)
        assert cluster.drained == ["node07"] and cluster.reasons["node07"] == actual["drains"][0]["reason"]
        assert undo_lines(found) == ["scontrol update NodeName=node07 State=RESUME"] and found.lines()[1].endswith(undo_lines(found)[0])
        assert noted[1:] == found.entries
        assert [(each["action"], each["node"]) for each in noted] == [("begun", "node07"), ("drained", "node07")]
        cluster(shlex.split(undo_lines(found)[0]), {})
        assert cluster.drained == []

    def test_up_to_the_limit_all_nodes_are_drained_and_above_it_none(self):
        cluster = Cluster()
        found = applied(recommended(suspect(), suspect("sender", 9), suspect("node", 2)), cluster)
        assert cluster.drained == [] and found.entries == [] and all(words[1] != "update" for words in cluster.asked)
        assert found.lines() == [found.refused]
        assert "3 nodes confirmed" in found.refused and "--max-drain 2% allows 2 of 100" in found.refused
        cluster = Cluster()
        assert len(undo_lines(applied(recommended(suspect(), suspect("sender", 9)), cluster))) == 2
        assert cluster.drained == ["node07", "node09"]
        actual = recommended(suspect(), suspect("sender", 9))
        cluster = Cluster(node50=MINE)
        assert "2 nodes confirmed, 1 node already drained" in applied(actual, cluster).refused
        assert cluster.drained == ["node50"]
        assert applied(actual, Cluster(node50="disk", node51="fan [collbench] no"), "2").refused == ""

    def test_a_drained_node_keeps_its_reason_and_does_not_count_against_the_limit(self):
        cluster = Cluster(node07="bad disk")
        found = applied(recommended(), cluster)
        assert len(found.lines()) == 1 and "node07 " in found.lines()[0] and "(bad disk)" in found.lines()[0] and undo_lines(found) == []
        assert cluster.reasons["node07"] == "bad disk" and found.entries[0]["action"] == "left"
        cluster = Cluster(node07="bad disk")
        found = applied(recommended(suspect(), suspect("sender", 9)), cluster, "1")
        assert cluster.drained == ["node07", "node09"] and [each["action"] for each in found.entries] == ["left", "drained"]

    @pytest.mark.parametrize(("expected", "words"), [
        (recommended(suspect(state=CLEARED)), "no slow "), (recommended(suspect(state="inconclusive")), "no verdict"),
        (recommendation(verdict(suspect(), no_verdict="a node died"), about()), "no verdict"),
        (recommended(no_drain="a simulated backend"), "a simulated backend"), (recommended(suspect("path", 3, 9)), "in a node"),
        (recommended(manager=""), "neither Slurm nor Kubernetes"),
    ], ids=["cleared", "inconclusive", "no verdict", "simulated", "path", "no manager"])  # fmt: skip
    def test_without_a_node_to_drain_no_command_runs(self, expected, words):
        cluster = Cluster()
        (sentence,) = applied(expected, cluster).lines()
        assert sentence.startswith("no node is drained") and words in sentence and cluster.asked == []

    def test_without_a_verdict_or_a_changed_state_no_node_counts_as_drained(self):
        for result in ("no verdict", "nobody"):
            cluster = Cluster()
            assert apply({**recommended(), "result": result}, parse_cap("100%"), {}, run=cluster).entries == [] and cluster.asked == []
        (sentence,) = applied(recommended(), Cluster(lies=True)).lines()
        assert sentence.startswith("node07 is not drained")

        def lost(words, env):  # it was done, but the answer is late
            return CommandOutcome(None, why="late") if cluster(words, env) and words[1] == "update" else cluster(words, env)

        cluster = Cluster()
        assert undo_lines(apply(recommended(), parse_cap("1"), {}, run=lost)) == ["scontrol update NodeName=node07 State=RESUME"]

    def test_what_cannot_be_drained_is_reported_and_does_not_prevent_the_others(self):
        actual = recommended()
        found = applied(actual, Cluster(refuses="slurm_update error: Access/permission denied"))
        (sentence,) = found.lines()
        assert undo_lines(found) == [] and "Access/permission denied" in sentence and sentence.endswith(actual["drains"][0]["line"])
        actual = recommended(nodes={"node07": "node07.cluster.example"})
        cluster = Cluster()
        (sentence,) = applied(actual, cluster).lines()
        assert sentence.startswith("node07.cluster.example is not drained")
        assert cluster.drained == []
        actual, cluster = recommended(suspect(), suspect("sender", 9), nodes={"node07": "nowhere"}), Cluster()
        assert [each["action"] for each in applied(actual, cluster).entries] == ["failed", "drained"]
        actual = recommended()
        actual["drains"][0]["node"] = "ALL"
        cluster = Cluster(ALL="")
        assert applied(actual, cluster, "100%").entries[0]["action"] == "failed" and cluster.drained == []
        actual = recommended(manager="kubernetes", pods=True)

        def ask(words, env):
            assert words[:3] == ["kubectl", "get", "nodes"]
            return CommandOutcome(0, "node07 \nnode08 true\n")

        found = apply(actual, parse_cap("2"), {}, run=ask)
        assert found.entries[0]["action"] == "failed" and found.lines()[0].startswith("node07 is not drained")
        late = CommandOutcome(None, why="scontrol did not end within 20 s")
        (sentence,) = apply(recommended(), parse_cap("2%"), {}, run=lambda words, env: late).lines()
        assert "20 s" in sentence and "recommendation.json" in sentence

    @pytest.mark.parametrize(("actions", "words", "drained"), [
        (["drained"], r"No space left.*scontrol update NodeName=node07 State=RESUME$", ["node07"]),
        (["begun", "drained"], r"No space left.*no node", []),
    ], ids=["after it", "before it"])  # fmt: skip
    def test_a_drain_that_cannot_be_noted_is_reported_or_not_started(self, actions, words, drained):
        def full(entry):
            if entry["action"] in actions:
                raise RunFailed("results can no longer be written (No space left on device)")

        cluster = Cluster()
        with pytest.raises(RunFailed, match=words):
            apply(recommended(suspect(), suspect("sender", 9)), parse_cap("2%"), {}, full, cluster)
        assert cluster.drained == drained

    def test_an_interrupted_drain_was_noted_with_its_undo_command(self):
        noted = []

        def interrupted(words, env):
            if words[1] == "update":
                raise KeyboardInterrupt
            return cluster(words, env)

        actual, cluster = recommended(suspect()), Cluster()
        with pytest.raises(KeyboardInterrupt):
            apply(actual, parse_cap("2%"), {}, noted.append, interrupted)
        assert [(each["action"], each["undo"]) for each in noted] == [("begun", "scontrol update NodeName=node07 State=RESUME")]
        assert lines_of(noted)[1].endswith(noted[0]["undo"])
        stored = json.loads(to_page({**actual, "applied": noted}))
        Draft202012Validator(SCHEMA, format_checker=Draft202012Validator.FORMAT_CHECKER).validate(stored)

    @pytest.mark.parametrize("refuses", ["", "Access denied"])
    def test_two_hunts_at_the_same_time_do_not_exceed_the_limit_together(self, refuses):
        cluster = Cluster()

        def meanwhile(words, env):
            if "State=DRAIN" in words:  # the other hunt drains its node after the first query
                cluster.reasons["node50"] = MINE
            if "State=RESUME" in words and refuses:
                return CommandOutcome(1, why=refuses)
            return cluster(words, env)

        found = apply(recommended(), parse_cap("1"), {}, run=meanwhile)
        assert "--max-drain 1 " in found.lines()[0]
        if refuses:
            assert refuses in found.lines()[0] and undo_lines(found) == ["scontrol update NodeName=node07 State=RESUME"]
            return
        assert cluster.drained == ["node50"] and undo_lines(found) == []
        assert len(found.lines()) == 1 and found.entries[0]["action"] == "left"


@pytest.fixture
def kubernetes(tmp_path):
    """Return an environment with a fake kubectl and three nodes."""
    (tmp_path / "kubectl").write_text(FAKE_KUBECTL)
    (tmp_path / "kubectl").chmod(0o755)
    (tmp_path / "nodes").write_text("node06\nnode07\nnode08\n")
    return {"PATH": f"{tmp_path}:/usr/bin:/bin", "KUBERNETES_SERVICE_HOST": "10.0.0.1"}


class TestFakeKubectl:
    """A program of that name that is not Kubernetes: its arguments, and the use of its answers."""

    @pytest.mark.system
    def test_a_node_is_cordoned_and_uncordoned(self, kubernetes, tmp_path):
        actual = recommended(manager="kubernetes", pods=True, nodes={"node07": "node07"})
        found = apply(actual, parse_cap("2%"), kubernetes)
        assert undo_lines(found) == ["kubectl uncordon node07"] and found.lines()[1].endswith(undo_lines(found)[0])
        assert (tmp_path / "nodes").read_text() == "node06\nnode07 true\nnode08\n"
        assert "C cordon node07\n" in (tmp_path / "nodes.asked").read_text()
        assert run_here(shlex.split(undo_lines(found)[0]), kubernetes).code == 0
        assert (tmp_path / "nodes").read_text() == "node06\nnode07\nnode08\n"

    @pytest.mark.system
    def test_every_cordoned_node_counts_since_kubernetes_stores_no_reason(self, kubernetes, tmp_path):
        (tmp_path / "nodes").write_text("node06 true\nnode07\nnode08\n")
        found = apply(recommended(manager="kubernetes"), parse_cap("1"), kubernetes)
        assert "1 node already cordoned" in found.refused and "--max-drain 1 allows 1 of 3" in found.refused
        assert (tmp_path / "nodes").read_text() == "node06 true\nnode07\nnode08\n"

    @pytest.mark.system
    def test_a_kubectl_that_answers_is_kubernetes(self, kubernetes):
        assert check_apply(kubernetes) == "kubernetes"
        assert check_apply({"PATH": kubernetes["PATH"].partition(":")[0] + ":/bin"}) == "kubernetes"


class TestBeforeTheFirstMeasurement:
    def test_the_manager_that_answers_or_started_the_job_is_used(self, tmp_path):
        with pytest.raises(UsageError) as error:
            check_apply({"PATH": str(tmp_path)})
        assert "neither" in str(error.value)
        for name in ("scontrol", "kubectl"):
            (tmp_path / name).touch(0o755)
        answers = {"scontrol": CommandOutcome(0, "NodeName=n1 State=IDLE\n"), "kubectl": CommandOutcome(0, "n1 \n")}
        with pytest.raises(UsageError, match="both "):
            check_apply({"PATH": str(tmp_path)}, lambda words, env: answers[words[0]])
        assert check_apply({"PATH": str(tmp_path), "SLURM_JOB_ID": "7"}, lambda words, env: answers[words[0]]) == "slurm"
        answers = {"scontrol": CommandOutcome(1, why="no configuration"), "kubectl": CommandOutcome(0, "n1 \n")}
        assert check_apply({"PATH": str(tmp_path)}, lambda words, env: answers[words[0]]) == "kubernetes"

    @pytest.mark.system
    def test_a_job_of_slurm_without_scontrol(self, tmp_path):
        with pytest.raises(UsageError, match=r"scontrol .*No such file"):
            check_apply({"PATH": str(tmp_path), "SLURM_JOB_ID": "1"})

    @pytest.mark.system
    @pytest.mark.skipif(not shutil.which("kubectl"), reason="kubectl is not installed")
    def test_a_real_kubectl_without_a_cluster_is_rejected(self, tmp_path):
        folder = Path(shutil.which("kubectl") or "").parent
        (tmp_path / "kubectl").symlink_to(folder / "kubectl")
        with pytest.raises(UsageError, match=r"kubectl .*refused"):
            check_apply({"PATH": f"{tmp_path}", "HOME": str(tmp_path), "KUBECONFIG": "/dev/null"})


class TestCommands:
    @pytest.mark.system
    def test_the_last_line_of_a_failed_command_is_its_reason(self, tmp_path):
        (tmp_path / "scontrol").write_text("#!/bin/sh\necho first >&2; printf 'then \\033[31mred\\n\\n' >&2; exit 3\n")
        (tmp_path / "scontrol").chmod(0o755)
        assert run_here(["scontrol"], {"PATH": f"{tmp_path}:/bin"}) == CommandOutcome(3, "", "then ?[31mred")

    @pytest.mark.system
    def test_a_command_has_a_time_limit(self, tmp_path, monkeypatch):
        monkeypatch.setattr("collbench.plugins.hunt.managers.TIMEOUT_S", 0.2)
        said = run_here(["sleep", "30"], dict(os.environ))
        assert said.code is None and "0.2 s" in said.why
