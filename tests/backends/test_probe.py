"""Which backends are available: the query never raises and never loads a library; what a backend does not support has a reason."""

import subprocess
import sys
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from collbench.backends import mpi, torch_distributed
from collbench.backends.backend import Available, Backend, Unavailable, unsupported_reason
from collbench.backends.mpi import MpiBackend, library_name, misfit
from collbench.backends.nccl.backend import NcclBackend
from collbench.backends.registry import backend_class, backend_names
from collbench.backends.simulated import SimulatedBackend
from collbench.backends.torch_distributed import GlooBackend, TorchNcclBackend
from collbench.backends.unavailable import LibraryNotFound, NotInstalled
from collbench.errors import UsageError
from collbench.operations.builtin.allreduce import ALLREDUCE
from collbench.operations.builtin.broadcast import BROADCAST
from collbench.operations.builtin.p2p import P2P_LATENCY
from collbench.operations.unsupported import (
    DeviceUnsupported,
    DtypeUnsupported,
    LimitExceeded,
    NoInPlaceForm,
    OperationUnsupported,
    OptionUnsupported,
    RedopUndefined,
    RedopUnsupported,
    TooFewRanks,
)
from collbench.reason import Text
from tests.helpers import make_case

OWN = {"mpi": MpiBackend, "gloo": GlooBackend, "nccl": NcclBackend, "torch-nccl": TorchNcclBackend, "simulated": SimulatedBackend}


def test_the_known_ones_and_an_unknown_one_lists_them():
    assert backend_names()[:5] == list(OWN)
    assert [backend_class(name) for name in OWN] == list(OWN.values())
    assert all(isinstance(kind(), Backend) and kind.name == name for name, kind in OWN.items())
    assert isinstance(SimulatedBackend.probe(), Available)
    with pytest.raises(UsageError, match=r"backend 'ncll' is unknown: did you mean nccl\?"):
        backend_class("ncll")
    with pytest.raises(UsageError, match=r"backend 'quux' .*mpi, gloo, nccl, torch-nccl, simulated, socket, "):
        backend_class("quux")


@pytest.mark.parametrize(("module", "backend", "missing"), [(torch_distributed, GlooBackend, "torch"), (mpi, MpiBackend, "mpi4py")])
def test_a_missing_package_is_unavailable_with_its_remedy(monkeypatch, module, backend, missing):
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    found = backend.probe()
    assert isinstance(found, Unavailable)
    assert isinstance(found.fact, NotInstalled) and found.fact.package == missing
    assert "pip install" in found.remedy


def test_mpi4py_without_a_library_is_unavailable(monkeypatch):
    fact = LibraryNotFound("MPI", "cannot load libmpi.so", "pip install 'collbench[mpich]'")

    def no_library():
        raise mpi.MpiNotFound(fact)

    monkeypatch.setattr(mpi, "find_spec", lambda name: True)
    monkeypatch.setattr(mpi, "load_mpi", no_library)
    assert MpiBackend.probe() == Unavailable.because(fact)


@pytest.mark.contract
@pytest.mark.parametrize("name", OWN)
def test_asking_imports_neither_torch_nor_cupy_and_starts_no_mpi(name):
    code = f"""
import sys
from collbench.backends.registry import backend_class
answer = backend_class("{name}").probe()
started = "mpi4py.MPI" in sys.modules and sys.modules["mpi4py.MPI"].Is_initialized()
print(type(answer).__name__, {{"torch", "cupy"}} & set(sys.modules), started)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout in ("Available set() False\n", "Unavailable set() False\n")


class FakeMpi:
    """The part of mpi4py.MPI that `supports` looks at: MPICH without bfloat16, with float16."""

    DATATYPE_NULL, FLOAT, FLOAT16_T, BFLOAT16_T, INT8_T, INT16_T = -1, 1, 2, -1, 3, 4

    def get_vendor(self):
        return "MPICH", (5, 0, 2)


@pytest.mark.parametrize(("large_count", "operation", "case", "reason"), [
    (False, ALLREDUCE, make_case(), None), (False, ALLREDUCE, make_case("float16"), None),
    (False, ALLREDUCE, make_case(redop="avg"), RedopUnsupported("MPI", "avg")),
    (False, ALLREDUCE, make_case("bfloat16"), DtypeUnsupported("MPICH 5.0.2", "bfloat16")),
    (False, BROADCAST, make_case("bfloat16", redop=None, root=0), None),  # moving carries any type as bytes
    (False, ALLREDUCE, make_case("int8", 2**31),
        LimitExceeded("MPICH 5.0.2", "elements per call (it has no large-count functions)", 2**31 - 1)),
    (False, ALLREDUCE, make_case("int8", 2**31 - 1), None), (True, ALLREDUCE, make_case("int8", 2**31), None),
])  # fmt: skip
def test_what_mpi_cannot_do(large_count, operation, case, reason):
    assert library_name(FakeMpi()) == "MPICH 5.0.2"
    library = SimpleNamespace(MPI_Allreduce_c=1) if large_count else SimpleNamespace()
    assert misfit(FakeMpi(), library, operation, case, 2) == reason


@pytest.mark.parametrize(("operation", "changes", "reason"), [
    (ALLREDUCE, {}, None),
    (ALLREDUCE, {"in_place": False}, OperationUnsupported("gloo", "allreduce", "in place")),
    (BROADCAST, {"in_place": False, "redop": None}, OperationUnsupported("gloo", "broadcast", "in place")),
    (ALLREDUCE, {"device": "cuda"}, DeviceUnsupported("gloo", "cuda", ("cpu",))),
    (ALLREDUCE, {"mode": "graph"}, OptionUnsupported(("--mode graph",), "CPUs", "GPUs")),
    (ALLREDUCE, {"redop": "band"}, RedopUndefined("band", "float32")), (P2P_LATENCY, {"redop": None}, NoInPlaceForm("p2p_latency")),
    (replace(ALLREDUCE, steps={}), {}, OperationUnsupported("gloo", "allreduce")),
    (replace(ALLREDUCE, needs=lambda n, case: f"needs a power of two, not {n}"), {}, Text("needs a power of two, not 3")),
])  # fmt: skip
def test_what_all_backends_have_in_common(operation, changes, reason):
    backend = GlooBackend()
    backend.ranks = 3
    assert unsupported_reason(backend, operation, make_case(**{"in_place": True, **changes})) == reason
    alone = SimulatedBackend()
    alone.ranks = 1
    assert unsupported_reason(alone, P2P_LATENCY, make_case(redop=None)) == TooFewRanks("p2p_latency")
