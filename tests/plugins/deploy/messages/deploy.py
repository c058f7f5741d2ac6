"""Recommendations and drains of a hunt, the submission of emitted files, and settings that a kind of file does not have."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from collbench.errors import RunFailed, UsageError
from collbench.plugins.deploy import job
from collbench.plugins.deploy.job import LauncherKind, Value, job_of, submit, write
from collbench.plugins.deploy.kinds import kinds
from collbench.plugins.hunt import drain
from collbench.plugins.hunt.drain import CODES, CommandOutcome, apply, check_apply, lines, lines_of, parse_cap, recommendation
from collbench.plugins.hunt.protocol import CLEARED, INCONCLUSIVE
from tests.messages import Message
from tests.plugins.hunt.test_drain import MINE, Cluster
from tests.plugins.hunt.verdicts import about, recommended, suspect, verdict

IMAGE = "registry/collbench:1"
QUEUE = LauncherKind("some", "a kind", ".x", (), lambda job: "", submit=("take", "-"), start="take FILE")
BY_HAND = LauncherKind("other", "a kind", ".x", (), lambda job: "", start="play FILE")


def shown(expected: dict[str, Any]) -> Message:
    return lambda: "\n".join(lines(expected))


def advice(*suspects: Any, **changes: Any) -> Message:
    return lambda: "\n".join(each["advice"] for each in recommended(*suspects, **changes)["suspects"])


def reason(kind: str) -> Message:
    return lambda: recommended(suspect(kind))["drains"][0]["reason"]


def no_line(**changes: Any) -> Message:
    return lambda: recommended(**changes)["drains"][0]["no_line"]


def drained(
    expected: dict[str, Any], cluster: Callable[[Sequence[str], Mapping[str, str]], CommandOutcome] | None = None, cap: str = "2%"
) -> Message:
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


def full_disk(action: str) -> Message:
    def full(entry: dict[str, Any]) -> None:
        if entry["action"] == action:
            raise RunFailed("results can no longer be written (No space left on device)")

    return lambda: apply(recommended(), parse_cap("2%"), {}, full, Cluster())


def two_hunts(refuses: str) -> Message:
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


def manager(answers: dict[str, CommandOutcome], **env: str) -> Message:
    """The error of `--apply` with programs that answer so."""

    def checked() -> str:
        with TemporaryDirectory() as folder:
            for name in answers:
                Path(folder, name).touch(0o755)
            return check_apply({"PATH": folder, **env}, lambda words, env: answers[words[0]])

    return checked


def submitted(kind: LauncherKind, script: str | None) -> Message:
    """The error of a submission to a command with this script; None: the command is missing."""

    def run() -> str:
        with TemporaryDirectory() as folder, patch.object(job, "_TIMEOUT_S", 0.2):
            if script is not None:
                Path(folder, "take").write_text(script, encoding="utf-8")
                Path(folder, "take").chmod(0o755)
            return submit(kind, "text", {"PATH": f"{folder}:/usr/bin:/bin"})

    return run


def written() -> None:
    with TemporaryDirectory() as folder, patch("pathlib.Path.__str__", lambda path: path.name):
        Path(folder, "job").touch()
        write(Path(folder, "job"), "text")


def emitted(launcher: str, line: str = "allreduce", /, **settings: Value) -> Message:
    """The error of a file for this launcher with these settings."""
    found = {name.replace("_", "-"): value for name, value in settings.items()}
    return lambda: kinds()[launcher].render(job_of(kinds()[launcher], tuple(line.split()), found))


def kubernetes(**settings: Value) -> Message:
    return emitted("kubernetes", **{"image": IMAGE, **settings})


def altered() -> str:
    """The error of a stored recommendation with another command."""
    actual = recommended()
    with TemporaryDirectory() as folder:
        drain.store(Path(folder), {**actual, "drains": [{**actual["drains"][0], "line": "curl evil | sh"}]})
        try:
            return str(drain.read(Path(folder)))
        except UsageError as error:
            return str(error).replace(folder, "run")


UP = {"scontrol": CommandOutcome(0, "NodeName=n1 State=IDLE\n"), "kubectl": CommandOutcome(0, "n1 \n")}
MESSAGES: dict[str, Message] = {
    "recommendation": shown(recommended(suspect(part="the interface eth1"))),
    "recommendation, path": shown(recommended(suspect("path", 3, 9))),
    "recommendation, unknown manager": shown(recommended(manager="")),
    "recommendation, not to be drained": shown(recommended(no_drain="backend simulated simulates its ranks")),
    "recommendation, no verdict": shown(recommendation(verdict(suspect(), no_verdict="2 of 3 nodes died"), about())),
    **{f"reason, {kind}": reason(kind) for kind in CODES if kind != "path"},
    **{f"advice, {kind}": advice(suspect(kind)) for kind in CODES if kind != "path"},
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
    "submit, refused": submitted(QUEUE, "#!/bin/sh\necho 'error: no partition' >&2; exit 1\n"),
    "submit, exit code": submitted(QUEUE, "#!/bin/sh\nexit 3\n"),
    "submit, no command": submitted(QUEUE, None),
    "submit, not supported": submitted(BY_HAND, None),
    "submit, no end": submitted(QUEUE, "#!/bin/sh\nexec sleep 5\n"),
    "setting of another kind": emitted("torchrun", partition="h100"),
    "mpirun, binding": emitted("mpirun", cpus_per_rank=2, bind="numa"),
    "ansible, rank": emitted("ansible", env=("RANK=3",)),
    "ansible, format": emitted("ansible", "probe --format table"),
    "ansible, files": emitted("ansible", "probe --gather x.tar"),
    "slurm, image of each rank": emitted("slurm", image="a/b:1", container="apptainer"),
    "slurm, container without an image": emitted("slurm", container="pyxis"),
    "slurm, Apptainer file": emitted("slurm", image="a.sif", container="pyxis"),
    "slurm, mount": emitted("slurm", image="a/b", runs="a:b"),
    "kubernetes, no image": emitted("kubernetes"),
    "kubernetes, image": kubernetes(image="./c.sif"),
    "kubernetes, name": kubernetes(name="Bench_1"),
    "kubernetes, long name": kubernetes(name="a" * 80, nodes=100),
    "kubernetes, device twice": kubernetes(rdma=("a/b=1", "a/b=2")),
    "kubernetes, huge pages": kubernetes(hugepages=("2Mi=1Gi",)),
    "kubernetes, TrainJob": kubernetes(kind="trainjob", pull_policy="Never"),
    "kubernetes, runtime": kubernetes(runtime="torch"),
    "kubernetes, variable": kubernetes(env=("MASTER_ADDR=x",)),
    "an altered recommendation": altered,
}
