"""The summary of a log: typed, as text, and in JSON."""

import pytest

from collbench.machine.readers.nccl_log import read
from collbench.plugins.joblogs.summary import CountedChoice, GpuDirect, Hca, LinkLayer, gpudirect_of, summarize, summary_lines

LOG = """\
# nccl-tests version 2.17.6 nccl-headers=22803 nccl-library=22803
n1:7:8 [0] NCCL INFO NCCL version 2.28.3+cuda12.9
n1:7:8 [0] NCCL INFO NCCL_IB_HCA set by environment to mlx5
n1:7:8 [0] NCCL INFO NET/Plugin: Loaded net plugin IBplug v10 (v10)
n1:7:8 [0] NCCL INFO PROFILER/Plugin: Could not find: libnccl-profiler.so
n1:7:8 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB/SHARP [1]mlx5_1:1/IB/SHARP [2]mlx5_2:1/RoCE [RO]; OOB eth0:10.0.0.1<0>
n1:7:8 [0] NCCL INFO Using network IB
n1:7:8 [0] NCCL INFO NVLS multicast support is available on dev 0
n1:7:8 [0] NCCL INFO comm 0x5 rank 0 nRanks 16 nNodes 2 localRanks 8 localRank 0 MNNVL 0
n1:7:8 [0] NCCL INFO Channel 00/0 : 8[0] -> 0[0] [receive] via NET/IB/0/GDRDMA
n1:7:8 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0/GDRDMA
n2:7:8 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM
n1:7:8 [0] NCCL INFO 16 coll channels, 16 collnet channels, 24 nvls channels, 32 p2p channels, 2 p2p channels per peer
n1:7:8 [0] NCCL INFO AllReduce: 1024 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..7}
n1:7:8 [0] NCCL INFO AllReduce: 8388608 Bytes -> Algo NVLS proto SIMPLE channel{Lo..Hi}={0..7}
n1:7:8 [0] NCCL INFO AllReduce: 8388608 Bytes -> Algo NVLS proto SIMPLE channel{Lo..Hi}={0..7}
"""


def test_the_facts_of_a_log_and_what_it_does_not_show() -> None:
    found = summarize(read(LOG, "nccl.log"))
    assert (found.library, found.version, found.release, found.network) == ("NCCL", "2.28.3", "2.28.3+cuda12.9", "IB")
    assert found.hcas[0] == Hca(0, "mlx5_0", 1, LinkLayer.INFINIBAND, sharp=True)
    assert found.hcas[2] == Hca(2, "mlx5_2", 1, LinkLayer.ROCE)
    assert (found.ranks, found.nodes, found.local_ranks, found.hosts) == (16, 2, 8, ("n1", "n2"))
    assert (found.gpudirect, found.nvls, found.multi_node_nvlink, found.collnet) == (GpuDirect.IN_USE, True, False, False)
    assert found.channels == {"coll": 16, "collnet": 16, "nvls": 24, "p2p": 32}
    assert found.choices == (CountedChoice("AllReduce", "NVLS", "SIMPLE", 2), CountedChoice("AllReduce", "RING", "LL", 1))
    assert found.settings == {"NCCL_IB_HCA": "mlx5"}
    assert found.plugins == {"network": "IBplug v10 (v10)", "profiler": "absent"}
    assert list(summary_lines(summarize(read(LOG, "nccl.log")))) == [
        "nccl.log: NCCL 2.28.3+cuda12.9 · 16 ranks on 2 nodes",
        "  network: IB on mlx5_0:1 and mlx5_1:1 (InfiniBand); mlx5_2:1 (RoCE), with SHARP · GPUDirect RDMA: in use",
        "  NVLS: available, 24 channels · algorithms: AllReduce NVLS/SIMPLE (2) and AllReduce RING/LL (1)",
        "  connections: NET/IB/0/GDRDMA (2) and P2P/CUMEM (1)",
        "  set: NCCL_IB_HCA=mlx5",
        "  network plug-in: IBplug v10 (v10)",
    ]
    found = summarize(read("n1:7:8 [0] NCCL INFO Trees [0] 1/-1/-1->0->-1", "cut.log"))
    assert (found.version, found.network, found.ranks, found.nodes, found.nvls, found.hcas) == (None, None, None, None, None, ())
    assert list(summary_lines(found)) == [
        "cut.log: NCCL version unknown · ranks unknown; lines of 1 host",
        "  network: unknown · GPUDirect RDMA: unknown (no RDMA connection in the log)",
        "  NVLS: unknown · algorithms: unknown (NCCL_DEBUG_SUBSYS=INIT,NET,TUNING prints them)",
    ]


def listing(*ranks: tuple[int, int, str]) -> str:
    lines = [
        f"#  Rank {rank:2d} Group {group:2d} Pid   4000 on {host:>10} device  0 [0000:05:00] NVIDIA H100" for rank, group, host in ranks
    ]
    return "\n".join(["# Using devices", *lines, "n1:7:8 [0] NCCL INFO Using network IB"])


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        ([(0, 0, "n1"), (1, 0, "n1"), (2, 0, "n2"), (3, 0, "n2")], (4, 2)),
        ([(rank, 0, "n1") for rank in range(8)], (8, 1)),
        ([(rank, rank // 4, f"n{rank // 4}") for rank in range(8)], (4, 1)),  # two groups, each on its own host
        ([(4, 0, "n2"), (5, 0, "n2")], (None, None)),  # the list is cut
    ],
)
def test_ranks_that_nccl_tests_lists(ranks: list[tuple[int, int, str]], expected: tuple[int | None, int | None]) -> None:
    found = summarize(read(listing(*ranks), "nccl.log"))
    assert (found.ranks, found.nodes) == expected


SEND, RECEIVE = ("Channel 00/0 : 0[0] -> 2[0] [send] via NET/IB/0/GDRDMA", "Channel 00/0 : 2[0] -> 0[0] [receive] via NET/IB/0/GDRDMA")
STAGED = SEND.removesuffix("/GDRDMA")


@pytest.mark.parametrize(
    ("messages", "state"),
    [
        ([SEND, RECEIVE], GpuDirect.IN_USE),
        ([SEND], GpuDirect.ONE_DIRECTION),
        ([SEND, RECEIVE, STAGED, STAGED], GpuDirect.PARTLY),
        ([STAGED, STAGED], GpuDirect.STAGED),
        (["Using network Socket"], GpuDirect.NOT_APPLICABLE),
        (["Using network IB", "NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'"], GpuDirect.DISABLED),
        (["Using network IB"], GpuDirect.UNKNOWN),
    ],
)
def test_gpudirect(messages: list[str], state: GpuDirect) -> None:
    assert gpudirect_of(read("\n".join(f"n1:7:8 [0] NCCL INFO {message}" for message in messages), "x")) is state


def test_libfabric_is_named_by_its_provider() -> None:
    lines = ["NET/OFI Initializing aws-ofi-nccl 1.21.1", "NET/OFI Using Libfabric version 2.3",
             "NET/OFI Selected provider is cxi, fabric is cxi (found 2 nics)", "Connected all rings, use ring PXN 0 GDR 1"]  # fmt: skip
    found = summarize(read("\n".join(f"n1:7:8 [0] NCCL INFO {line}" for line in lines), "cxi.log"))
    assert (found.network, found.provider, found.releases) == (None, "cxi", {"aws-ofi-nccl": "1.21.1", "libfabric": "2.3"})
    assert found.rings is not None and found.rings == {"pxn": False, "gdr": True}
    text = "\n".join(summary_lines(found))
    assert "network: libfabric (provider cxi)" in text
    assert "aws-ofi-nccl 1.21.1 · libfabric 2.3 · rings: PXN off, GPUDirect RDMA on" in text
