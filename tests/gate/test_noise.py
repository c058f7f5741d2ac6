"""Simulated clusters, and the files that define their noise."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from collbench.errors import UsageError
from collbench.gate.self_test import Cluster, Noise, default_scheme, noises, read_noise

SILENT = Noise((0.0,) * 3, 1, (0.0,) * 3, (0.0,) * 3, 0, 0, 0, 0, 0, 0, 0, 0)


def drawn(noise: Noise) -> Cluster:
    return Cluster.draw(noise, default_scheme(), np.random.default_rng(0))


def test_the_usual_cluster_has_the_cases_of_the_protocol() -> None:
    scheme = default_scheme()
    assert len(scheme.of) == 336
    assert np.bincount(scheme.classes[scheme.of]).tolist() == [144, 72, 120]


def test_a_cluster_without_noise_is_always_the_same() -> None:
    assert not drawn(SILENT).allocations(3, 2, np.random.default_rng(1)).any()
    assert not drawn(SILENT).pairs(2, 5, np.random.default_rng(1)).any()


def test_drift_makes_each_allocation_slower_than_the_one_before() -> None:
    cluster = drawn(replace(SILENT, drift=0.01))
    assert cluster.allocations(3, 1, np.random.default_rng(1), first=6)[:, 0] == pytest.approx([0.07, 0.08, 0.09])


def test_the_slow_drift_of_a_cluster_continues() -> None:
    cluster = drawn(replace(SILENT, walk=0.01))
    whole = cluster.allocations(9, 1, np.random.default_rng(1))
    assert cluster.allocations(3, 1, np.random.default_rng(2), first=6) == pytest.approx(whole[6:])
    assert 0.003 < float(np.abs(np.diff(whole[:, 0])).mean()) < 0.02
    assert (whole == whole[:, :1]).all()


def test_pairs_of_launches_have_no_noise_of_allocations() -> None:
    cluster = drawn(replace(SILENT, allocation=(0.5, 0.5, 0.5), allocation_common=0.5, drift=0.5, walk=0.5))
    assert cluster.pairs(2, 5, np.random.default_rng(1)).shape == (2, 5, 336)
    assert not cluster.pairs(2, 5, np.random.default_rng(1)).any()


def test_missing_cases_are_missing_in_all_launches_of_an_allocation() -> None:
    cluster = drawn(Noise(missing=0.3))
    assert 0.2 < np.isnan(cluster.allocations(6, 1, np.random.default_rng(1))).mean() < 0.4
    lacking = np.isnan(cluster.pairs(2, 5, np.random.default_rng(1)))
    assert 0.2 < lacking.mean() < 0.4
    assert (lacking == lacking[:, :1]).all()


def test_some_cases_have_two_speeds() -> None:
    """Half of the cases, in a fifth of their launches, by 10 %."""
    times = drawn(replace(SILENT, bimodal=0.5, slow_share=0.2, slow_by=0.1)).launches(1, 400, np.random.default_rng(1))[0]
    assert np.unique(times).tolist() == pytest.approx([0, np.log(1.1)])
    shares = (times > 0).mean(axis=0)
    assert 0.4 < (shares > 0).mean() < 0.6
    assert shares[shares > 0].mean() == pytest.approx(0.2, abs=0.02)


def test_the_harsher_ones_are_named_and_read() -> None:
    assert list(noises()) == ["bimodal", "drift", "harsh", "missing", "wander"]
    assert read_noise(Path("drift")) == Noise(drift=0.003)
    assert read_noise(Path("wander")) == Noise(walk=0.004)
    assert read_noise(Path("missing")) == Noise(missing=0.3)
    assert read_noise(Path("bimodal")) == Noise(bimodal=0.4, slow_share=0.3, slow_by=0.15)
    assert read_noise(Path("harsh")).launch == (0.06, 0.04, 0.012)


class TestFile:
    def test_missing_keys_of_a_file_have_their_defaults(self, tmp_path: Path) -> None:
        (tmp_path / "noise.toml").write_text("launch = [0.05, 0.04, 0.02]\nmissing = 0.3\n")
        assert read_noise(tmp_path / "noise.toml") == Noise(launch=(0.05, 0.04, 0.02), missing=0.3)

    @pytest.mark.parametrize(
        ("text", "value"),
        [
            ("launhc = 1", "'launhc'"),
            ("launch = [1, 2]", "'launch' is [1, 2]"),
            ("launch = 0.1", "'launch' is 0.1"),
            ("iterations = 0", "'iterations' is 0"),
            ("drift = -1", "'drift' is -1"),
            ("drift = nan", "'drift' is nan"),
            ("drift = true", "'drift' is True"),
            ("drift =", "noise.toml"),
        ],
    )
    def test_an_invalid_file_is_rejected(self, tmp_path: Path, text: str, value: str) -> None:
        (tmp_path / "noise.toml").write_text(text)
        with pytest.raises(UsageError) as caught:
            read_noise(tmp_path / "noise.toml")
        assert value in str(caught.value)

    def test_a_missing_file(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="bimodal, drift, harsh, missing, wander"):
            read_noise(tmp_path / "none.toml")
