"""Completion of `collbench emit`."""

from pathlib import Path

from collbench.plugins.deploy.kinds import kinds
from tests.cli import test_completion
from tests.cli.test_completion import offered

bash_script = test_completion.bash_script  # a fixture


def test_bash_offers_every_kind(bash_script: Path) -> None:
    assert offered(bash_script, "collbench emit ") == {*kinds()}
