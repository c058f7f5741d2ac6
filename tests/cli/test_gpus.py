"""Defaults and options on hosts with GPUs; no GPU is needed."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import replace

from collbench.backends import registry
from collbench.backends.backend import Available, Unavailable
from collbench.cli import request as requests
from collbench.errors import UsageError
from collbench.launch.info import LaunchInfo
from collbench.launch.slurm import RANKS_NOT_ENDED
from collbench.measuring.open_backends import agreed_backends
from collbench.measuring.request import Request
from collbench.operations.builtin.allreduce import ALLREDUCE
from collbench.operations.sweep import CPU, CUDA, BackendDefaults, Sweep

NCCL = BackendDefaults("cuda", "pipelined", "rotating", 1024, tuned=True)
ALONE = LaunchInfo("srun", 0, 2, 0, 1, "tcp://10.0.0.1", "t", advice=(RANKS_NOT_ENDED,))


def request(*backends: str, default: bool = False, **more: Any) -> Request:
    sweep = {key: more.pop(key) for key in ("algorithms", "registrations") if key in more}
    of = {"nccl": NCCL, "torch-nccl": CUDA}
    plan = Sweep((ALLREDUCE,), None, (), defaults=lambda name: of.get(name, CPU), **sweep)
    return Request("allreduce", plan, backends, frozenset() if default else frozenset(backends), **more)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that sets the number of visible GPUs, and whether nccl can be opened on them."""

    def set_to(number: int, answer: Available | Unavailable | None = None) -> None:
        monkeypatch.setattr(requests, "visible_gpus", lambda env: number)
        monkeypatch.setattr(registry, "backend_class", lambda name: SimpleNamespace(probe=lambda: answer))

    return set_to


@pytest.mark.parametrize(("number", "answer", "backends"), [
    (0, None, registry.DEFAULTS), (8, Available("NCCL 2.27"), ("nccl",)),
    (8, Unavailable("cupy is not installed", "pip install it"), ("nccl", *registry.DEFAULTS)),
])  # fmt: skip
def test_nccl_is_a_default_backend_on_hosts_with_gpus(number: int, answer: Any, backends: tuple[str, ...], seen: Any) -> None:
    seen(number, answer)
    assert requests.default_backends({}) == backends


@pytest.mark.parametrize(("views", "agreed"), [
    ([["mpi", "gloo"], ["mpi", "gloo"]], ("mpi", "gloo")), ([["nccl"], ["nccl"]], ("nccl",)),
    ([["mpi", "gloo"], ["nccl"]], ("mpi", "gloo", "nccl")), ([["nccl"], ["nccl", "mpi", "gloo"]], ("nccl", "mpi", "gloo")),
])  # fmt: skip
def test_hosts_with_and_without_gpus_use_the_same_backends(views: list[list[str]], agreed: tuple[str, ...]) -> None:
    world = cast(Any, SimpleNamespace(info=ALONE, allgather=lambda mine, what: views))
    assert agreed_backends(request(*views[0], default=True), world)[0] == agreed
    assert agreed_backends(request("mpi"), world)[0] == ("mpi",)


def test_ranks_of_one_host_exchange_no_backends() -> None:
    world = cast(Any, SimpleNamespace(info=LaunchInfo("local", 0, 2, 0, 2, "ipc://", "t")))
    assert agreed_backends(request("mpi", default=True), world)[0] == ("mpi",)


@pytest.mark.parametrize(("asked", "number", "ranks"), [
    (request("nccl"), 8, 8), (request("nccl", default=True), 1, 1), (request("torch-nccl", "mpi"), 4, 4),
    (request("nccl", gpus_per_process=4), 8, 2), (request("nccl", ranks=3), 8, 3), (request("nccl"), 0, 2), (request("mpi"), 1, 2),
    (request("mpi"), 4, 4), (request("nccl", "mpi", "gloo", default=True), 1, 2),
])  # fmt: skip
def test_processes_of_a_local_start(asked: Request, number: int, ranks: int, seen: Any) -> None:
    seen(number)
    assert requests.local_ranks(asked, {}) == ranks


@pytest.mark.parametrize(("asked", "number", "info", "ranks"), [
    (request("nccl"), 8, ALONE, 8), (request("nccl", gpus_per_process=2), 8, ALONE, 4), (request("nccl", gpus_per_process=8), 8, ALONE, 1),
    (request("nccl"), 1, ALONE, 1), (request("mpi"), 8, ALONE, 1), (request("nccl"), 8, LaunchInfo("srun", 0, 16, 0, 8, "tcp://h", "t"), 1),
    (request("nccl"), 8, LaunchInfo("torchrun", 0, 2, 0, 1, "tcp://h", "t"), 1),
    (request("nccl"), 8, LaunchInfo("kubernetes", 0, 2, 0, 1, "tcp://h", "t"), 8),
    (request("nccl"), 8, LaunchInfo("srun", 0, 2, 0, 1, "tcp://h", "t", facts={"worker": "1"}), 1),
])  # fmt: skip
def test_a_task_that_is_alone_on_its_node_uses_all_its_gpus(asked: Request, number: int, info: LaunchInfo, ranks: int, seen: Any) -> None:
    seen(number)
    assert requests.node_ranks(asked, info, {}) == ranks


@pytest.mark.parametrize(("asked", "gdr_check", "option"), [
    (request("mpi", algorithms=("ring",)), False, "--algorithms"),
    (request("torch-nccl", registrations=("none",)), False, "--registration"),
    (request("torch-nccl", gpus_per_process=2), False, "-g"), (request("mpi", "gloo", default=True), True, "--gdr-check"),
])  # fmt: skip
def test_options_of_nccl_are_rejected_without_nccl(asked: Request, gdr_check: bool, option: str) -> None:
    with pytest.raises(UsageError) as refused:
        replace(asked, gdr_check=gdr_check).check_options()
    assert str(refused.value).startswith(f"{option} ") and f"({', '.join(asked.backends)})" in str(refused.value)


def test_options_of_nccl_are_accepted_with_nccl() -> None:
    accepted = request("mpi", "nccl", algorithms=("ring",), registrations=("symmetric",), gpus_per_process=2, gdr_check=True)
    accepted.check_options()
    with pytest.raises(UsageError):  # nccl alone makes the difference
        replace(accepted, backends=("mpi",)).check_options()
    request("torch-nccl", gdr_check=True).check_options()
