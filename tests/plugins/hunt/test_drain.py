"""`--apply`: no node is drained without a verdict, above the limit or twice; an error is one sentence with the command to run."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from collbench.errors import RunFailed, UsageError
from collbench.plugins.hunt.drain import DEFAULT_CAP, Applied, apply, check_apply, lines_of, parse_cap
from collbench.plugins.hunt.managers import CommandOutcome, run_here
from collbench.plugins.hunt.protocol import CLEARED
from collbench.plugins.hunt.recommendation import recommendation, schema
from collbench.results.store import to_page
from tests.plugins.hunt.verdicts import about, recommended, suspect, verdict

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

    def __init__(self, nodes: int = 100, refuses: str = "", lies: bool = False, **reasons: str) -> None:
        self.reasons = {f"node{number:02}": "" for number in range(nodes)} | reasons
        self.refuses, self.lies, self.asked = refuses, lies, list[list[str]]()

    def __call__(self, words: Sequence[str], env: Mapping[str, str]) -> CommandOutcome:
        self.asked.append(list(words))
        if words[1] == "update":
            return self._update(*words[2:])
        wanted = words[5:] or list(self.reasons)
        return CommandOutcome(0, "".join(self._shown(name) for name in wanted if name in self.reasons))

    @property
    def drained(self) -> list[str]:
        return [name for name, reason in self.reasons.items() if reason]

    def _update(self, node: str, state: str, reason: str = "") -> CommandOutcome:
        if self.refuses:
            return CommandOutcome(1, why=self.refuses)
        if not self.lies:
            self.reasons[node.removeprefix("NodeName=")] = reason.removeprefix("Reason=") if state == "State=DRAIN" else ""
        return CommandOutcome(0)

    def _shown(self, name: str) -> str:
        reason = self.reasons[name]
        state = f"State=IDLE+DRAIN Weight=1 Reason={reason} [root@2026-11-22T03:15:00]" if reason else "State=IDLE Weight=1"
        return f"NodeName={name} Arch=x86_64 OS=Linux 6.1 {state}\n"


def applied(expected: dict[str, Any], cluster: Cluster, cap: str = DEFAULT_CAP) -> Applied:
    """Apply the drains and check that the entries fit the schema."""
    found = apply(expected, parse_cap(cap), {}, run=cluster)
    stored = json.loads(to_page({**expected, "applied": found.entries, "refused": found.refused or None}))
    Draft202012Validator(SCHEMA, format_checker=Draft202012Validator.FORMAT_CHECKER).validate(stored)
    return found


class TestCap:
    @pytest.mark.parametrize(
        ("text", "of", "most"),
        [
            ("2%", 512, 11), ("2%", 500, 10), ("2 %", 100, 2), ("2%", 8, 1), ("0.1%", 3, 1), ("100%", 7, 7), ("33.4%", 3, 2), ("3", 2, 3),
            ("1", 5000, 1),
        ],
    )  # fmt: skip
    def test_a_percentage_is_rounded_up_and_a_number_is_used_as_it_is(self, text: str, of: int, most: int) -> None:
        assert parse_cap(text).of(of) == most

    @pytest.mark.parametrize(
        "text", ["0", "0%", "0.0 %", "-1", "-2%", "101%", "100.1%", "", "%", "two", "2.5", "1e3", "nan%", "2%%", "٣", "9" * 10, "\x1b[2J"]
    )
    def test_an_invalid_cap_is_one_sentence(self, text: str) -> None:
        with pytest.raises(UsageError, match=r"^--max-drain .*2%") as error:
            parse_cap(text)
        assert str(error.value).isprintable()

    @given(st.text(max_size=8), st.integers(1, 10**6))
    def test_any_text_is_a_cap_of_at_least_one_or_a_sentence(self, text: str, nodes: int) -> None:
        try:
            assert parse_cap(text).of(nodes) >= 1
        except UsageError as error:
            assert "\n" not in str(error)


class TestApply:
    def test_a_confirmed_node_is_drained_with_its_reason_and_the_undo_command(self) -> None:
        actual, cluster, noted = recommended(), Cluster(), list[dict[str, Any]]()
        found = apply(actual, parse_cap("2%"), {}, noted.append, cluster)
        assert cluster.drained == ["node07"] and cluster.reasons["node07"] == actual["drains"][0]["reason"]
        assert found.undo == ["scontrol update NodeName=node07 State=RESUME"] and found.lines()[1].endswith(found.undo[0])
        assert noted[1:] == found.entries and [(each["action"], each["node"]) for each in noted] == [
            ("begun", "node07"),
            ("drained", "node07"),
        ]
        cluster(shlex.split(found.undo[0]), {})
        assert cluster.drained == []

    def test_above_the_limit_no_node_is_drained(self) -> None:
        cluster = Cluster()
        found = applied(recommended(suspect(), suspect("sender", 9), suspect("node", 2)), cluster)
        assert cluster.drained == [] and found.entries == [] and all(words[1] != "update" for words in cluster.asked)
        assert found.lines() == [found.refused]
        assert "3 nodes confirmed" in found.refused and "--max-drain 2% allows 2 of 100" in found.refused

    def test_up_to_the_limit_all_nodes_are_drained(self) -> None:
        cluster = Cluster()
        assert len(applied(recommended(suspect(), suspect("sender", 9)), cluster).undo) == 2
        assert cluster.drained == ["node07", "node09"]

    def test_nodes_that_collbench_drained_before_count_and_others_do_not(self) -> None:
        actual = recommended(suspect(), suspect("sender", 9))
        cluster = Cluster(node50=MINE)
        assert "2 nodes confirmed, 1 node already drained" in applied(actual, cluster).refused
        assert cluster.drained == ["node50"]
        assert applied(actual, Cluster(node50="disk", node51="fan [collbench] no"), "2").refused == ""

    def test_a_drained_node_keeps_its_reason(self) -> None:
        cluster = Cluster(node07="bad disk")
        found = applied(recommended(), cluster)
        assert len(found.lines()) == 1 and "node07 " in found.lines()[0] and "(bad disk)" in found.lines()[0] and found.undo == []
        assert cluster.reasons["node07"] == "bad disk" and found.entries[0]["action"] == "left"

    def test_a_drained_node_does_not_count_against_the_limit(self) -> None:
        cluster = Cluster(node07="bad disk")
        found = applied(recommended(suspect(), suspect("sender", 9)), cluster, "1")
        assert cluster.drained == ["node07", "node09"] and [each["action"] for each in found.entries] == ["left", "drained"]

    @pytest.mark.parametrize(
        ("expected", "words"),
        [
            (recommended(suspect(state=CLEARED)), "no slow "),
            (recommendation(verdict(suspect(), no_verdict="a node died"), about()), "no verdict"),
            (recommended(no_drain="a simulated backend"), "a simulated backend"),
            (recommended(suspect("path", 3, 9)), "in a node"),
            (recommended(manager=""), "neither Slurm nor Kubernetes"),
        ],
        ids=["cleared", "no verdict", "simulated", "path", "no manager"],
    )
    def test_without_a_node_to_drain_no_command_runs(self, expected: dict[str, Any], words: str) -> None:
        cluster = Cluster()
        (sentence,) = applied(expected, cluster).lines()
        assert sentence.startswith("no node is drained") and words in sentence and cluster.asked == []

    def test_no_verdict_drains_no_node_even_with_drains_in_the_recommendation(self) -> None:
        for result in ("no verdict", "nobody"):
            cluster = Cluster()
            assert apply({**recommended(), "result": result}, parse_cap("100%"), {}, run=cluster).entries == [] and cluster.asked == []

    def test_without_permission_the_error_has_the_command(self) -> None:
        actual = recommended()
        found = applied(actual, Cluster(refuses="slurm_update error: Access/permission denied"))
        (sentence,) = found.lines()
        assert found.undo == [] and "Access/permission denied" in sentence and sentence.endswith(actual["drains"][0]["line"])

    def test_the_state_of_the_node_counts_not_the_exit_code(self) -> None:
        (sentence,) = applied(recommended(), Cluster(lies=True)).lines()
        assert sentence.startswith("node07 is not drained")

        def lost(words: Sequence[str], env: Mapping[str, str]) -> CommandOutcome:  # it was done, but the answer is late
            return CommandOutcome(None, why="late") if cluster(words, env) and words[1] == "update" else cluster(words, env)

        cluster = Cluster()
        assert apply(recommended(), parse_cap("1"), {}, run=lost).undo == ["scontrol update NodeName=node07 State=RESUME"]

    def test_a_node_unknown_to_slurm_is_not_replaced_by_a_similar_one(self) -> None:
        actual = recommended(nodes={"node07": "node07.cluster.example"})
        cluster = Cluster()
        (sentence,) = applied(actual, cluster).lines()
        assert sentence.startswith("node07.cluster.example is not drained")
        assert cluster.drained == []

    def test_a_failed_drain_does_not_prevent_the_others(self) -> None:
        actual, cluster = recommended(suspect(), suspect("sender", 9), nodes={"node07": "nowhere"}), Cluster()
        assert [each["action"] for each in applied(actual, cluster).entries] == ["failed", "drained"]

    def test_a_drain_is_reported_even_if_it_can_no_longer_be_written(self) -> None:
        def full(entry: dict[str, Any]) -> None:
            if entry["action"] == "drained":
                raise RunFailed("results can no longer be written (No space left on device)")

        cluster = Cluster()
        with pytest.raises(RunFailed) as error:
            apply(recommended(suspect(), suspect("sender", 9)), parse_cap("2%"), {}, full, cluster)
        assert "No space left" in str(error.value) and str(error.value).endswith("scontrol update NodeName=node07 State=RESUME")
        assert cluster.drained == ["node07"]

    def test_a_drain_that_cannot_be_noted_before_is_not_started(self) -> None:
        def full(entry: dict[str, Any]) -> None:
            raise RunFailed("results can no longer be written (No space left on device)")

        cluster = Cluster()
        with pytest.raises(RunFailed, match=r"No space left.*no node"):
            apply(recommended(suspect()), parse_cap("2%"), {}, full, cluster)
        assert cluster.drained == []

    def test_an_interrupted_drain_was_noted_with_its_undo_command(self) -> None:
        noted = list[dict[str, Any]]()

        def interrupted(words: Sequence[str], env: Mapping[str, str]) -> CommandOutcome:
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

    def test_a_pod_on_an_unknown_node_is_not_drained(self) -> None:
        actual = recommended(manager="kubernetes", pods=True)

        def ask(words: Sequence[str], env: Mapping[str, str]) -> CommandOutcome:
            assert words[:3] == ["kubectl", "get", "nodes"]
            return CommandOutcome(0, "node07 \nnode08 true\n")

        found = apply(actual, parse_cap("2"), {}, run=ask)
        assert found.entries[0]["action"] == "failed" and found.lines()[0].startswith("node07 is not drained")

    @pytest.mark.parametrize("refuses", ["", "Access denied"])
    def test_two_hunts_at_the_same_time_do_not_exceed_the_limit_together(self, refuses: str) -> None:
        cluster = Cluster()

        def meanwhile(words: Sequence[str], env: Mapping[str, str]) -> CommandOutcome:
            if "State=DRAIN" in words:  # the other hunt drains its node after the first query
                cluster.reasons["node50"] = MINE
            if "State=RESUME" in words and refuses:
                return CommandOutcome(1, why=refuses)
            return cluster(words, env)

        found = apply(recommended(), parse_cap("1"), {}, run=meanwhile)
        assert "--max-drain 1 " in found.lines()[0]
        if refuses:
            assert refuses in found.lines()[0] and found.undo == ["scontrol update NodeName=node07 State=RESUME"]
            return
        assert cluster.drained == ["node50"] and found.undo == []
        assert len(found.lines()) == 1 and found.entries[0]["action"] == "left"

    def test_without_an_answer_of_slurm_no_node_is_drained(self) -> None:
        found = apply(
            recommended(), parse_cap("2%"), {}, run=lambda words, env: CommandOutcome(None, why="scontrol did not end within 20 s")
        )
        (sentence,) = found.lines()
        assert "20 s" in sentence and "recommendation.json" in sentence

    def test_an_altered_name_in_the_recommendation_reaches_no_command(self) -> None:
        actual = recommended()
        actual["drains"][0]["node"] = "ALL"
        cluster = Cluster(ALL="")
        assert applied(actual, cluster, "100%").entries[0]["action"] == "failed" and cluster.drained == []


@pytest.fixture
def kubernetes(tmp_path: Path) -> dict[str, str]:
    """Return an environment with a fake kubectl and three nodes."""
    (tmp_path / "kubectl").write_text(FAKE_KUBECTL)
    (tmp_path / "kubectl").chmod(0o755)
    (tmp_path / "nodes").write_text("node06\nnode07\nnode08\n")
    return {"PATH": f"{tmp_path}:/usr/bin:/bin", "KUBERNETES_SERVICE_HOST": "10.0.0.1"}


class TestFakeKubectl:
    """A program of that name that is not Kubernetes: its arguments, and the use of its answers."""

    @pytest.mark.system
    def test_a_node_is_cordoned_and_uncordoned(self, kubernetes: dict[str, str], tmp_path: Path) -> None:
        actual = recommended(manager="kubernetes", pods=True, nodes={"node07": "node07"})
        found = apply(actual, parse_cap("2%"), kubernetes)
        assert found.undo == ["kubectl uncordon node07"] and found.lines()[1].endswith(found.undo[0])
        assert (tmp_path / "nodes").read_text() == "node06\nnode07 true\nnode08\n"
        assert "C cordon node07\n" in (tmp_path / "nodes.asked").read_text()
        assert run_here(shlex.split(found.undo[0]), kubernetes).code == 0
        assert (tmp_path / "nodes").read_text() == "node06\nnode07\nnode08\n"

    @pytest.mark.system
    def test_every_cordoned_node_counts_since_kubernetes_stores_no_reason(self, kubernetes: dict[str, str], tmp_path: Path) -> None:
        (tmp_path / "nodes").write_text("node06 true\nnode07\nnode08\n")
        found = apply(recommended(manager="kubernetes"), parse_cap("1"), kubernetes)
        assert "1 node already cordoned" in found.refused and "--max-drain 1 allows 1 of 3" in found.refused
        assert (tmp_path / "nodes").read_text() == "node06 true\nnode07\nnode08\n"

    @pytest.mark.system
    def test_a_kubectl_that_answers_is_kubernetes(self, kubernetes: dict[str, str]) -> None:
        assert check_apply(kubernetes) == "kubernetes"
        assert check_apply({"PATH": kubernetes["PATH"].partition(":")[0] + ":/bin"}) == "kubernetes"


class TestBeforeTheFirstMeasurement:
    def test_neither(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError) as error:
            check_apply({"PATH": str(tmp_path)})
        assert "neither" in str(error.value)

    @pytest.mark.system
    def test_a_job_of_slurm_without_scontrol(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match=r"scontrol .*No such file"):
            check_apply({"PATH": str(tmp_path), "SLURM_JOB_ID": "1"})

    def test_outside_a_job_both_managers_are_ambiguous(self, tmp_path: Path) -> None:
        for name in ("scontrol", "kubectl"):
            (tmp_path / name).touch(0o755)
        answers = {"scontrol": CommandOutcome(0, "NodeName=n1 State=IDLE\n"), "kubectl": CommandOutcome(0, "n1 \n")}
        with pytest.raises(UsageError, match="both "):
            check_apply({"PATH": str(tmp_path)}, lambda words, env: answers[words[0]])
        assert check_apply({"PATH": str(tmp_path), "SLURM_JOB_ID": "7"}, lambda words, env: answers[words[0]]) == "slurm"

    def test_the_manager_that_answers_is_used(self, tmp_path: Path) -> None:
        for name in ("scontrol", "kubectl"):
            (tmp_path / name).touch(0o755)
        answers = {"scontrol": CommandOutcome(1, why="no configuration"), "kubectl": CommandOutcome(0, "n1 \n")}
        assert check_apply({"PATH": str(tmp_path)}, lambda words, env: answers[words[0]]) == "kubernetes"

    @pytest.mark.system
    @pytest.mark.skipif(not shutil.which("kubectl"), reason="kubectl is not installed")
    def test_a_real_kubectl_without_a_cluster_is_rejected(self, tmp_path: Path) -> None:
        folder = Path(shutil.which("kubectl") or "").parent
        (tmp_path / "kubectl").symlink_to(folder / "kubectl")
        with pytest.raises(UsageError, match=r"kubectl .*refused"):
            check_apply({"PATH": f"{tmp_path}", "HOME": str(tmp_path), "KUBECONFIG": "/dev/null"})


class TestCommands:
    @pytest.mark.system
    def test_the_last_line_of_a_failed_command_is_its_reason(self, tmp_path: Path) -> None:
        (tmp_path / "scontrol").write_text("#!/bin/sh\necho first >&2; printf 'then \\033[31mred\\n\\n' >&2; exit 3\n")
        (tmp_path / "scontrol").chmod(0o755)
        assert run_here(["scontrol"], {"PATH": f"{tmp_path}:/bin"}) == CommandOutcome(3, "", "then ?[31mred")

    @pytest.mark.system
    def test_a_command_has_a_time_limit(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("collbench.plugins.hunt.managers.TIMEOUT_S", 0.2)
        said = run_here(["sleep", "30"], dict(os.environ))
        assert said.code is None and "0.2 s" in said.why
