"""A Slurm of six nodes, and a baseline measured in a job of it."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cli.command import ROOT
from tests.conftest import enter
from tests.slurm.made_up import ANNOUNCED, Cluster, baseline, said, settings, suite
from tests.testbeds import SlurmBed


@pytest.fixture(scope="session")
def bed() -> Iterator[SlurmBed]:
    """Three allocations of two nodes have no node in common here."""
    with ExitStack() as stack:
        yield enter(stack, SlurmBed(nodes=6))


@pytest.fixture(scope="session")
def cluster(bed: SlurmBed, tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    """What gate.sbatch measured by hand is the baseline of the other tests."""
    folder: Path = tmp_path_factory.mktemp("cluster")
    script = f"{ROOT}/slurm/gate.sbatch {folder}/real {suite(folder)} 1"
    done = bed.sbatch(f"bash {script}", ["-N2", "--ntasks-per-node=1", "--exclusive"], env=settings())
    assert done.returncode == 0, said(done)
    announced = folder / "changes.toml"
    announced.write_text(ANNOUNCED)
    return Cluster(bed, baseline(folder / "good", folder / "real"), folder / "small.toml", announced)
