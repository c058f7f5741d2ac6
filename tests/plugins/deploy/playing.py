"""Playbooks, played by Ansible itself over the hosts of a bed: what takes ssh's place reaches them."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.cli.command import BIN, ROOT, environment
from tests.testbeds import Hosts
from tests.testbeds.bed import Finished

PLAY = BIN / "ansible-playbook"


def inventory(bed: Hosts, more: Sequence[str] = ()) -> str:
    """The bed's hosts in the group `nodes`, then others that are not there."""
    settings = {
        "ansible_ssh_executable": bed.rsh, "ansible_python_interpreter": str(BIN / "python"), "ansible_ssh_args": "''",
        "ansible_control_path": "none",
    }  # fmt: skip
    lines = ["[nodes]", *bed.names, *more, "[nodes:vars]", *(f"{name}={value}" for name, value in settings.items())]
    return "\n".join(lines) + "\n"


def play(
    bed: Hosts, folder: Path, playbook: Path, *words: str, more: Sequence[str] = (), forks: int = 5, env: Mapping[str, str] | None = None
) -> Finished:
    """Run the playbook with collbench in PATH; write nothing to the home folder of the user."""
    (folder / "hosts.ini").write_text(inventory(bed, more))
    quiet = {"ANSIBLE_NOCOLOR": "1", "ANSIBLE_HOME": f"{folder}/ansible", "ANSIBLE_PIPELINING": "1", "ANSIBLE_SSH_TRANSFER_METHOD": "piped"}
    found = {"PATH": f"{BIN}:/usr/sbin:/usr/bin:/sbin:/bin", "PYTHONPATH": str(ROOT), "HOME": str(folder)}
    line = [str(PLAY), "-i", str(folder / "hosts.ini"), "--forks", str(forks), *words, str(playbook)]
    return bed.call(["env", "-C", str(folder), *line], 100, environment({**quiet, **found, **(env or {})}))


def messages(done: Finished) -> dict[str, str]:
    """By host: the last sentence that it failed with, or could not be reached with."""
    found = re.findall(r"^(?:fatal|\[ERROR\]|failed): \[([^\]]+)\].*?=> (\{.*?\n?\})$", done.stdout, re.MULTILINE | re.DOTALL)
    return {host: str(json.loads(text).get("msg", "")) for host, text in found}
