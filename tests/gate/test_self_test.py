"""How far the rule can be trusted: the seeded simulation finds what it should, and seldom alarms; the table of the protocol."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from collbench.errors import UsageError
from collbench.gate.noise import Cluster, Noise, read_noise, usual_scheme
from collbench.gate.self_test import Outcome, self_test


def test_the_usual_cluster_has_the_cells_of_the_protocol() -> None:
    scheme = usual_scheme()
    assert len(scheme.of) == 336
    assert np.bincount(scheme.classes[scheme.of]).tolist() == [144, 72, 120]


def test_the_same_seed_gives_the_same_table_and_another_one_another() -> None:
    one, again, other = (list(self_test(Noise(), usual_scheme(), 12, seed)) for seed in (4, 4, 5))
    assert one == again
    assert one != other


def test_the_rule_seldom_alarms_and_finds_what_it_promises() -> None:
    """Of 60 trials each: bounds that chance passes less than once in a thousand runs, were the rates those of the protocol."""
    nothing, cell_5, cell_10, group_2, group_5, everything = (each.share for each in self_test(Noise(), usual_scheme(), 60, seed=1))
    assert nothing <= 0.05
    assert cell_5 >= 0.68
    assert cell_10 >= 0.88
    assert 0.40 <= group_2 <= 0.90
    assert group_5 >= 0.93
    assert everything >= 0.78


@pytest.mark.long
def test_the_table_of_the_protocol_comes_out() -> None:
    """A/A at most 0.6 %, a large group's 5 % at least 98 %, all cells' 2 % at least 85 %."""
    nothing, _, _, _, group_5, everything = self_test(Noise(), usual_scheme(), 2000, seed=2)
    assert nothing.share <= 0.006
    assert group_5.share >= 0.98
    assert everything.share >= 0.85


def test_a_cluster_without_noise_is_always_the_same() -> None:
    silent = Noise((0.0,) * 3, 1, (0.0,) * 3, (0.0,) * 3, 0, 0, 0, 0, 0, 0, 0, 0)
    cluster = Cluster.draw(silent, usual_scheme(), np.random.default_rng(0))
    assert not cluster.allocations(3, 2, np.random.default_rng(1)).any()


def test_drift_makes_each_allocation_slower_than_the_one_before() -> None:
    noise = Noise((0.0,) * 3, 1, (0.0,) * 3, (0.0,) * 3, 0, 0, 0, 0, 0, 0, 0, 0, drift=0.01)
    cluster = Cluster.draw(noise, usual_scheme(), np.random.default_rng(0))
    assert cluster.allocations(3, 1, np.random.default_rng(1), first=6)[:, 0] == pytest.approx([0.06, 0.07, 0.08])


def test_missing_cells_are_missing() -> None:
    cluster = Cluster.draw(Noise(missing=0.3), usual_scheme(), np.random.default_rng(0))
    assert 0.2 < np.isnan(cluster.allocations(6, 1, np.random.default_rng(1))).mean() < 0.4


def test_the_interval_holds_at_the_ends() -> None:
    assert Outcome("", True, 0, 100).interval == pytest.approx((0, 0.0370), abs=1e-4)
    assert Outcome("", True, 100, 100).interval == pytest.approx((0.9630, 1), abs=1e-4)
    assert Outcome("", True, 50, 100).interval == pytest.approx((0.4038, 0.5962), abs=1e-4)


class TestNoiseFile:
    def test_what_it_leaves_out_is_as_usual(self, tmp_path: Path) -> None:
        (tmp_path / "noise.toml").write_text("launch = [0.05, 0.04, 0.02]\nmissing = 0.3\n")
        assert read_noise(tmp_path / "noise.toml") == Noise(launch=(0.05, 0.04, 0.02), missing=0.3)

    @pytest.mark.parametrize(
        ("text", "told"),
        [
            ("launhc = 1", "'launhc' is unknown: choose from iteration, iterations, launch"),
            ("launch = [1, 2]", "'launch' is [1, 2], where a list of three numbers from 0 to 10"),
            ("launch = 0.1", "'launch' is 0.1, where a list of three numbers"),
            ("iterations = 0", "'iterations' is 0, where a whole number above 0 is wanted"),
            ("drift = -1", "'drift' is -1, where a number from 0 to 10 is wanted"),
            ("drift = nan", "'drift' is nan, where a number from 0 to 10 is wanted"),
            ("drift = true", "'drift' is True, where a number from 0 to 10 is wanted"),
            ("drift =", "cannot be read"),
        ],
    )
    def test_nonsense_is_named(self, tmp_path: Path, text: str, told: str) -> None:
        (tmp_path / "noise.toml").write_text(text)
        with pytest.raises(UsageError) as caught:
            read_noise(tmp_path / "noise.toml")
        assert told in str(caught.value)

    def test_a_file_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="No such file or directory"):
            read_noise(tmp_path / "missing.toml")
