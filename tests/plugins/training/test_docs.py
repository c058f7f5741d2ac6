"""The pages about training name every regime."""

import re

from collbench.plugins.training.workloads.registry import every_regime
from tests.test_trust import DOCS, _rows


def test_every_regime_has_its_command() -> None:
    pages = (DOCS / "regimes.md").read_text(encoding="utf-8")
    assert set(re.findall(r"collbench workload ([a-z0-9-]+)", pages)) - {"all"} == set(every_regime())
    assert {row[0].strip("`") for row in _rows("guides/replay-my-training.md") if row[0].startswith("`") and "`--" not in row[0]} == set(
        every_regime()
    )
