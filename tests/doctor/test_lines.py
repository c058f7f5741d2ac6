"""The lines of `collbench doctor` in the corpus print and write what is stored."""

from __future__ import annotations

from tests.conftest import needs_all_plugins
from tests.corpus.replay import changed


@needs_all_plugins
def test_lines_of_doctor() -> None:
    assert not changed("doctor")
