"""Completion of `collbench emit`."""

from pathlib import Path

import pytest

from collbench.plugins.deploy.kinds import kinds
from tests.plugins.completion import test_completion
from tests.plugins.completion.test_completion import offered

pytestmark = pytest.mark.system

bash_script = test_completion.bash_script  # a fixture


def test_bash_offers_every_kind(bash_script: Path) -> None:
    assert offered(bash_script, "collbench emit ") == {*kinds()}
