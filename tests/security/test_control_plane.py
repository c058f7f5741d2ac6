"""Attacks 9, 12 to 15 and 17 to 19: secrets, listening addresses, and what the code never calls."""

import ast
import json
import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from collbench.control.security import secret_of
from collbench.errors import UsageError
from collbench.launch.spawn import start_local
from tests.cli.command import BIN, ROOT, running, start
from tests.control.ends_here import launch
from tests.control.test_secret import info

WILDCARDS = {"0.0.0.0", "::"}
LOOK = (
    "import json, os, pathlib, sys\n"
    "folder = pathlib.Path(os.environ['COLLBENCH_LOCAL'])\n"
    "modes = {path.name: path.stat().st_mode & 0o777 for path in [folder, *folder.rglob('*')]}\n"
    "pathlib.Path(sys.argv[1]).write_text(json.dumps([modes, folder.name]))\n"
)


@pytest.mark.contract
def test_9_the_folder_of_a_launch_is_private(tmp_path: Path) -> None:
    program = [sys.executable, "-c", LOOK, str(tmp_path / "seen")]
    assert start_local([], 1, env=os.environ, program=program) == 0
    modes, name = json.loads((tmp_path / "seen").read_text())
    assert modes.pop(name) == 0o700 and modes and set(modes.values()) <= {0o600, 0o700}


@pytest.mark.contract
def test_12_rank_0_listens_at_the_meetings_address_alone() -> None:
    with launch() as here:
        here.hub()
        found = {each.laddr.ip for each in psutil.Process().net_connections() if each.status == "LISTEN" and each.laddr.port == here.port}
    assert found == {"127.0.0.1"}


NEVER = {"eval", "exec", "os.system", "os.popen", "pickle.load", "pickle.loads", "yaml.load", "marshal.loads", "subprocess.getoutput"}
NOWHERE = {"pickle", "shelve", "dill", "marshal"}


def parsed(pattern: str) -> Iterator[tuple[Path, ast.AST]]:
    """Yield every AST node of the package's files with text that matches the pattern."""
    for path in sorted((ROOT / "collbench").rglob("*.py")):
        text = path.read_text()
        if re.search(pattern, text):
            yield from ((path, node) for node in ast.walk(ast.parse(text)))


def test_13_nothing_that_is_read_is_executed() -> None:
    for path, node in parsed(r"\b(eval|exec|system|popen|loads?|getoutput)\(|shell|pickle|shelve|dill|marshal"):
        if isinstance(node, ast.Call):
            assert ast.unparse(node.func) not in NEVER and "shell" not in {key.arg for key in node.keywords}, f"{path}:{node.lineno}"
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names = {node.module} if isinstance(node, ast.ImportFrom) else {alias.name for alias in node.names}
            # tests/plugins/traces/test_flight_recorder.py shows that this module loads plain values only
            allowed = {"pickle"} if path.name == "pickled_dump.py" else set()
            assert not (names & NOWHERE) - allowed, f"{path}:{node.lineno}"


def test_every_python_that_collbench_starts_ignores_the_current_folder() -> None:
    """Attacks 93 and 94, in the code: `sys.executable` is followed by -P."""
    for path, node in parsed(r"sys\.executable"):
        if isinstance(node, ast.List | ast.Tuple) and node.elts and ast.unparse(node.elts[0]) == "sys.executable":
            assert ast.unparse(node.elts[1]) == "'-P'", f"{path}:{node.lineno}"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
@pytest.mark.parametrize("held", [None, "sixteen or more letters"], ids=["14 an empty folder", "15 with a secret of another user"])
def test_a_folder_of_another_user_is_rejected(held: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    folder = tmp_path / f"collbench-{os.geteuid()}"
    folder.mkdir(mode=0o777)
    if held:
        (folder / "secret").write_text(held)
        (folder / "secret").chmod(0o600)
        os.chown(folder / "secret", 12345, -1)
    os.chown(folder, 12345, -1)
    with pytest.raises(UsageError, match=f"collbench-{os.geteuid()}"):
        secret_of(info(local_ranks=2), {})


@pytest.mark.long
def test_17_to_19_torchs_store_of_one_host_is_not_open_to_other_hosts(tmp_path: Path) -> None:
    """Other users of the same host can still reach it: docs/reference/ports.md lists the open ports."""
    process = start(tmp_path, "allreduce", "--backend", "gloo", "--sizes", "64-1M", "--max-time", "1", program=(str(BIN / "collbench"),))
    seen: set[str] = set()
    end = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < end:
        for number in running(tmp_path):
            with suppress(psutil.Error):
                found = psutil.Process(number).net_connections()
                seen |= {each.laddr.ip for each in found if each.status == psutil.CONN_LISTEN and each.laddr}
        time.sleep(0.05)
    assert process.wait(30) == 0, (tmp_path / "stderr").read_text()
    assert seen and not seen & WILDCARDS
