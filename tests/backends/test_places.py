"""Which GPUs a process drives, and the error if ranks and GPUs do not fit together."""

import pytest

from collbench.backends.gpu_memory import ProcessPlace, chosen_gpus, may_share, shared, trouble

A, B, C, D = (f"0000:{bus}:00.0" for bus in ("1b", "43", "52", "9d"))


def place(driven, visible=(A, B), host="node1", **more):
    return ProcessPlace(host, tuple(visible), tuple(driven), **more)


@pytest.mark.parametrize(("sharing", "local_rank", "local_ranks", "k", "visible", "chosen"), [
    (False, 0, 2, 1, 2, [0]), (False, 1, 2, 1, 2, [1]), (False, 3, 4, 1, 8, [3]), (False, 1, 2, 4, 8, [4, 5, 6, 7]),
    (False, 0, 1, 4, 8, [0, 1, 2, 3]), (False, 5, 8, 1, 1, [0]),  # bound: each process sees its own
    (False, 1, 2, 2, 2, [0, 1]), (False, 1, 2, 2, 3, [0, 1]), (False, 0, 1, 2, 1, [0]),  # too few: `trouble` reports it
    (False, 0, 1, 1, 0, []), (True, 3, 4, 1, 2, [1]), (True, 1, 4, 1, 1, [0]), (True, 0, 4, 2, 1, [0, 0]), (True, 0, 4, 1, 0, []),
])  # fmt: skip
def test_a_process_takes_its_part_or_all_and_ranks_that_may_share_go_round(*, sharing, local_rank, local_ranks, k, visible, chosen):
    assert chosen_gpus(local_rank, local_ranks, k, visible, sharing=sharing) == chosen


@pytest.mark.parametrize(("env", "answer"), [
    ({}, (False, "")), ({"NCCL_MULTI_RANK_GPU_ENABLE": "1"}, (True, "")), ({"NCCL_MULTI_RANK_GPU_ENABLE": "0"}, (False, "")),
    ({"NCCL_HOSTID": "a"}, (False, "a")),
])  # fmt: skip
def test_what_lets_ranks_share_is_in_the_environment(env, answer):
    assert may_share(env) == answer


@pytest.mark.parametrize(("places", "k"), [
    ([place([A]), place([B])], 1), ([place([A, B])], 2), ([place([A], [A]), place([B], [B])], 1),
    ([place([A]), place([A], host="node2")], 1), ([place([A]), place([B]), place([A], host="node2")], 1),
    ([place([A], alone=(A,)), place([B], alone=(B,))], 1),
])  # fmt: skip
def test_one_rank_per_gpu_is_fine(places, k):
    assert trouble(places, k) is None
    assert not shared(places)


ON_2 = [place([A], host="node2"), place([A], [A], host="node2"), place([A], host="node2")]
SEVERAL = [
    place([A, B], [A, B, C]), place([C, D], [C, D]), place([B, A], [A, B, C, D], host="node2"), place([D, A], [A, D], host="node2"),
]  # fmt: skip
ALONE = [place([A], [A], shares=True, alone=(A,)), place([A], [A], shares=True, alone=(A,))]
SAME_ID = [place([A], [A], host_id="same"), place([A], [A], host_id="same")]
TOO_MANY = (
    "more ranks than GPUs: 3 ranks on host {}, which shows them 2 GPUs: start one rank per GPU (--ranks, or the launcher's tasks per "
    "node), or let all of them see more (CUDA_VISIBLE_DEVICES)"
)
SAME_GPU = (
    f"ranks {{}} drive the same GPU, {A} of host {{}}, and NCCL takes one rank per GPU: let each process see its own "
    "(srun --gpus-per-task=1, or CUDA_VISIBLE_DEVICES per rank), or all of them see all GPUs"
)
TROUBLE = {
    "more ranks than GPUs": ([place([A])] * 3, 1, TOO_MANY.format("node1")),
    "too few on one host": ([place([A]), place([B]), *ON_2], 1, TOO_MANY.format("node2")),
    "drives more than it sees": ([place([A], [A]), place([B, C], [B, C, D])], 2,
        "a process on host node1 drives 2 ranks and sees 1 GPU: let it see as many (CUDA_VISIBLE_DEVICES, srun --gpus-per-task)"),
    "two ranks on one GPU": ([place([B], [B], host="node0"), place([A]), place([A])], 1, SAME_GPU.format("1 and 2", "node1")),
    "ranks of the job where processes drive several": (SEVERAL, 2, SAME_GPU.format("5 and 7", "node2")),
    "an exclusive GPU takes one process": (ALONE, 1,
        f"ranks 0 and 1 share GPU {A} of host node1, which is in exclusive mode and takes one process only: set it to the default mode "
        f"(nvidia-smi -i {A} -c 0), or give each rank a GPU of its own"),
    "half an agreement": ([place([A], shares=True), place([A])], 1, SAME_GPU.format("0 and 1", "node1")),
    "one ID for both": (SAME_ID, 1, SAME_GPU.format("0 and 1", "node1")),
    "an ID for one process": ([place([A, A], [A], host_id="one")], 2, SAME_GPU.format("0 and 1", "node1")),
}  # fmt: skip


@pytest.mark.parametrize(("places", "k", "sentence"), TROUBLE.values(), ids=TROUBLE)
def test_ranks_and_gpus_that_do_not_fit_are_named_with_the_remedy(places, k, sentence):
    assert trouble(places, k) == sentence


@pytest.mark.parametrize("places", [
    [place([A], [A], shares=True), place([A], [A], shares=True)], [place([A, A], [A], shares=True)],
    [place([A], [A], host_id="one"), place([A], [A], host_id="two")],
    [place([A, A], [A], shares=True, alone=(A,))],  # several ranks of one process
])  # fmt: skip
def test_ranks_share_a_gpu_where_the_user_lets_them(places):
    assert trouble(places, len(places[0].driven)) is None
    assert shared(places)


def test_a_place_survives_the_control_plane():
    stored = {"host": "node1", "visible": [A, B], "driven": [A], "alone": [A], "shares": False, "host_id": "x"}
    assert ProcessPlace.from_json(stored) == place([A], alone=(A,), host_id="x")
