"""The node hooks in a folder of their own, and a Slurm that calls them."""

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.cli.command import BIN, run_here
from tests.slurm.made_up import SLURM, doubles, said
from tests.testbeds import SlurmBed
from tests.testbeds.bed import Finished

COMMON = "node_common.sh"
SCONTROL = 'echo "$*" >>asked; [[ $* != *show* ]] || echo "NodeName=node1 State={state} Reason=none"'


def copies(folder: Path, *names: str) -> Path:
    """These scripts and what they share, in the folder."""
    folder.mkdir(exist_ok=True)
    for name in (COMMON, *names):
        shutil.copy(SLURM / name, folder)
    return folder


def called(folder: Path, script: str, *more: str, conf: str, path: str, env: Mapping[str, str] | None = None) -> Finished:
    """Run a hook as slurmd does, with these settings in its folder; `path` and the working folder of the doubles are settings too."""
    copies(folder, script)
    (folder / "node_check.conf").write_text(f"export PATH={shlex.quote(path)}\ncd {shlex.quote(str(folder))}\n{conf}\n")
    line = ["/usr/bin/timeout", "30", str(folder / script), *more]
    own = {"SLURMD_NODENAME": "node1", **(env or {})}
    return subprocess.run(line, cwd=folder, env=own, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)


def with_doubles(folder: Path, state: str = "IDLE", scontrol: str = "", **commands: str) -> str:
    """A PATH with these doubles and one of scontrol, which writes what it is asked into `asked`."""
    return doubles(folder, scontrol=scontrol or SCONTROL.format(state=state), **commands)


def asked(folder: Path) -> str:
    path = folder / "asked"
    return path.read_text() if path.exists() else ""


def node(bed: SlurmBed, name: str) -> tuple[str, str]:
    actual = bed.call(["scontrol", "--oneliner", "show", "node", name]).stdout
    state, reason = re.search(r" State=(\S+)", actual), re.search(r" Reason=(.*?) \[", actual)
    assert state, actual
    return state[1], reason[1] if reason else ""


def snapshot(folder: Path, name: str, *, with_lost_nic: bool) -> Path:
    """What this machine has, or that and a NIC more: FOLDER/NAME.json."""
    actual = run_here(folder, "probe", "--format", "json")
    assert actual.returncode == 0, said(actual)
    document = json.loads(actual.stdout)
    if with_lost_nic:
        document["machines"][0]["nics"].append(LOST_NIC)
    path = folder / f"{name}.json"
    path.write_text(json.dumps(document))
    return path


LOST_NIC: dict[str, object] = {
    "name": "mlx5_9", "address": "0000:7f:00.0", "model": None, "rdma": True, "numa": None, "ports": [], "interfaces": [], "virtual": None,
    "firmware": None, "gdr": None, "guid": None,
}  # fmt: skip


class Hooked(SlurmBed):
    """Slurm with collbench's Prolog and Epilog, copied into the test bed's folder; `talk` has their output, starts and ends."""

    def _configure(self) -> None:
        super()._configure()
        hooks = copies(self.folder / "hooks", "node_probe.sh", "node_epilog.sh", "node_check.sh")
        settings = [
            f"COLLBENCH={BIN}/collbench", f"KEEP={hooks}/keep-$node", f"GOOD={hooks}/%n.json",
            f"export SLURM_CONF={self.folder}/slurm.conf",
        ]  # fmt: skip
        (hooks / "node_check.conf").write_text("\n".join([*settings, 'DRAIN_FOR="CB2701 CB2702"', 'EPILOG_SIGNALS="9 11"', ""]))
        conf = self.folder / "slurm.conf"
        text = conf.read_text().replace("sched_interval=1", "sched_interval=1,bf_interval=1")
        for name in ("prolog", "epilog"):
            script, hook = self.folder / name, "node_probe.sh" if name == "prolog" else "node_epilog.sh"
            stamp = f'echo "$SLURM_JOB_ID $SLURMD_NODENAME {name} {{}} $EPOCHREALTIME" >>{self.folder}/stamps'
            lines = [
                "#!/bin/bash", stamp.format("begins"), f"{hooks}/{hook} 2>>{self.folder}/talk", "code=$?", stamp.format("ends"),
                "exit $code",
            ]  # fmt: skip
            script.write_text("\n".join([*lines, ""]))
            script.chmod(0o755)
            text += f"{name.title()}={script}\n"
        conf.write_text(f"{text}PrologFlags=Alloc\n")

    @property
    def talk(self) -> str:
        path = self.folder / "talk"
        return path.read_text() if path.exists() else ""

    def seconds(self, hook: str) -> list[float]:
        began: dict[tuple[str, str], float] = {}
        found = []
        for line in (self.folder / "stamps").read_text().splitlines():
            job, name, which, what, when = line.split()
            if which == hook and what == "begins":
                began[job, name] = float(when)
            elif which == hook:
                found.append(float(when) - began[job, name])
        return found


Hook = Callable[..., Finished]
