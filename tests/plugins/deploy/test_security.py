"""Attacks 75 to 92: hostile words in each option of `emit` that takes text, for every kind of file."""

import ast
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from collbench.plugins.deploy.kinds import kinds
from tests.cli.command import run_here
from tests.plugins.deploy.test_every_kind import NEEDED, Playbook, played

OPTIONS = {
    **{75: "name", 76: "program", 77: "runs", 78: "env", 79: "group", 80: "image", 81: "namespace", 82: "volume", 83: "rdma"},
    **{84: "module", 85: "hosts", 86: "interface", 87: "system", 88: "account", 89: "qos", 90: "gpu-type", 91: "endpoint", 92: "partition"},
}
WORDS = (
    "x$(touch injected)", "x`touch injected`;touch injected|touch injected", "x'\"; touch injected; '\"$(HOME)",
    "x{{ lookup('pipe', 'touch injected') }}", "x\ntouch injected\n#SBATCH --wrap=injected",
)  # fmt: skip
FORMS = {"env": "HOSTILE={}", "rdma": "{}=1"}


def texts(part: Any) -> Iterator[str]:
    if isinstance(part, str):
        yield part
    for each in [*part, *part.values()] if isinstance(part, dict) else part if isinstance(part, list) else ():
        yield from texts(each)


@pytest.mark.long
@pytest.mark.parametrize(("number", "option"), OPTIONS.items(), ids=[f"{number} {option}" for number, option in OPTIONS.items()])
def test_no_word_runs(number: int, option: str, tmp_path: Path) -> None:
    accepted = 0
    for kind in kinds().values():
        needed = [word for name, value in NEEDED.get(kind.name, {}).items() if name != option for word in (f"--{name}", value)]
        for at, word in enumerate(WORDS):
            actual = [f"--{option}", FORMS.get(option, "{}").format(word)]
            done = run_here(tmp_path, "emit", kind.name, "--nodes", "2", *needed, *actual, "--", "allreduce")
            if done.returncode == 2:
                assert done.stdout == "" and done.stderr.count("\n") == 1, done.stderr
                continue
            assert done.returncode == 0 and "\n" not in word, done.stderr
            accepted += 1
            _harmless(done.stdout, tmp_path / f"{kind.name}-{at}")
    assert not [*tmp_path.rglob("injected")]
    assert accepted or number not in (76, 77, 78)  # these take any text that can be printed


def _harmless(text: str, folder: Path) -> None:
    folder.mkdir()
    if text.startswith("#!"):
        subprocess.run(["bash", "-n"], input=text, text=True, check=True, timeout=20)
        with suppress(AssertionError):  # such as cd into a folder that is not there: what ran before that is what counts
            played(text, folder)
        assert "\n#SBATCH --wrap" not in text
    elif "import reframe" in text:
        calls = [ast.unparse(node.func) for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
        assert not [name for name in calls if "system" in name or "exec" in name or "eval" in name]
    else:
        for document in yaml.load_all(text, Loader=Playbook):
            assert not [one for one in texts(document) if "lookup('pipe'" in one and not one.startswith("\0") and "ansible" in text]
