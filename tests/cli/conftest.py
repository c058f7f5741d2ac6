"""What the tests of options share."""

from collections.abc import Callable
from pathlib import Path

import pytest

from collbench.cli import main, start
from collbench.measuring.request import Request
from tests.cli.command import environment


@pytest.fixture
def request_of(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Request]:
    """Return a function that makes the request of a command line under some variables, in an empty folder, without a start."""
    made: list[Request] = []
    monkeypatch.setattr(start, "begin", lambda started, info: started.launch.check_options() or made.append(started.launch) or 0)
    monkeypatch.chdir(tmp_path)

    def ask(line: str, **variables: str) -> Request:
        plain = {k: v for k, v in environment().items() if not k.startswith("COLLBENCH_")}
        monkeypatch.setattr("os.environ", {**plain, **variables})
        assert main.run(line.split()) == 0
        return made[-1]

    return ask
