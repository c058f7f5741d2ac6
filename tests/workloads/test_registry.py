"""Regimes are found by their files."""

import subprocess
import sys

import pytest

from collbench.errors import UsageError
from collbench.workloads.registry import regime_named, regimes


def test_the_seven_regimes_in_their_order():
    assert list(regimes()) == [
        "data-parallel", "hierarchical", "parameter-server", "pipeline", "tensor-parallel", "expert-parallel", "fsdp",
    ]  # fmt: skip
    assert all(name == regime.name and regime.summary for name, regime in regimes().items())


def test_by_name_also_as_python_writes_it():
    assert regime_named(" Data_Parallel ") is regimes()["data-parallel"]


@pytest.mark.parametrize("name", ["ddp", "", "data\nparallel"])
def test_an_unknown_one_is_one_printable_sentence_with_the_choices(name):
    with pytest.raises(UsageError, match=r"data-parallel, hierarchical, .*, fsdp") as caught:
        regime_named(name)
    assert str(caught.value).isprintable()


def test_finding_them_imports_no_numpy():
    code = "import sys, collbench.workloads.registry as r; r.regimes(); print({'numpy', 'torch', 'mpi4py'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "set()\n"
