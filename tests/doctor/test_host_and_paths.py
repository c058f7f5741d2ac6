"""CB24xx and CB2501 to CB2504: the host, doubtful sources, and the paths between GPUs and NICs."""

import pytest
from msgspec.structs import replace

from collbench.machine.doctor.examine import examine
from collbench.machine.model import Disagreement, Gpu, Machine, Nic, NumaNode, System
from tests.doctor.machines import Fault, changed, codes, with_system
from tests.machine.machines import dgx, laptop, mesh, pcie_box

GPUS, NICS = dgx().gpus, dgx().nics
NUMA_LOST = replace(dgx(), pci=tuple(replace(device, numa=None) for device in dgx().pci), gpus=(replace(GPUS[0], numa=None), *GPUS[1:]))
DOUBTFUL = replace(dgx(), doubts=("180000 Mb/s is not a speed of ports",), sources=("NCCL topology XML a.xml",))
DISAGREEING = replace(dgx(), disagreements=(Disagreement("gpus/gpu0/numa", "0", "Linux sysfs", "1", "a.xml"),))
HALF = replace(dgx(), nics=NICS[:2])
ONE_NEAR = Machine(gpus=GPUS[:2], nics=NICS[:1], paths={(GPUS[0].key, "mlx5_0"): "PIX", (GPUS[1].key, "mlx5_0"): "NODE"})
TWO_DOWN = changed(dgx(), "nics", "mlx5_0", ports=(replace(NICS[0].ports[0], state="down"),))
TWO_DOWN = changed(TWO_DOWN, "nics", "mlx5_1", ports=(replace(NICS[1].ports[0], state="down"),))
STAGED = with_system(dgx(), peer_memory=(), dma_buf=False)
AMD = replace(STAGED, gpus=tuple(replace(gpu, vendor="amd", model="MI300X") for gpu in GPUS), gpu_links=())
# A GB200 tray: GPUs and NICs at root ports of their own, which `topo -m` calls NODE; NCCL uses GPUDirect RDMA there.
TRAY = Machine("gb200", gpus=GPUS[:2], nics=NICS[:2], paths={(gpu.key, nic.key): "NODE" for gpu in GPUS[:2] for nic in NICS[:2]})
LONE = with_system(Machine("desk", gpus=GPUS[:1]), iommu="translating", virtualization="")
FAULTS = [
    Fault("little shared memory", "CB2401", "warning", with_system(dgx(), shm_bytes=64 << 20, container="docker"),
          ("/dev/shm has 64 MiB", "in a container (docker)")),
    Fault("a device at an unknown NUMA node", "CB2402", "note", NUMA_LOST, ("GPU 0000:18:00.0",)),
    Fault("a GPU at no PCI address", "CB2402", "note", replace(dgx(), gpus=(*GPUS, Gpu("gpu8", model="L4")))),
    Fault("a doubtful source", "CB2403", "note", DOUBTFUL, ("NCCL topology XML a.xml",)),
    Fault("sources that disagree", "CB2404", "note", DISAGREEING, ("\ngpus/gpu0/numa: 0 or 1?\n",)),
    Fault("NICs at the other socket", "CB2501", "warning", pcie_box(),
          ("\n2 GPUs reach a NIC only across sockets:", "GPU 2 (0000:81:00.0) is SYS away")),
    Fault("with NVLink to a GPU beside a NIC", "CB2501", "note", HALF),
    Fault("no NIC below the switch", "CB2502", "note", HALF),
    Fault("no NIC below the switch, by the paths", "CB2502", "note", ONE_NEAR, ("NODE away; GPU 0 (0000:18:00.0): PIX",)),
    Fault("a NIC that is down is not a near one", "CB2502", "note", TWO_DOWN, ("\n2 GPUs without a NIC ",)),
    Fault("no way for GPUDirect RDMA", "CB2503", "severe", STAGED,
          ("\nNICs cannot reach the memory of GPU 0 (0000:18:00.0), GPU 1", "dma-buf", "`modprobe nvidia_peermem`")),
    Fault("no way for GPUDirect RDMA on AMD", "CB2503", "severe", AMD, ("amdgpu",)),
    Fault("GPUs and NICs that meet at the host", "CB2504", "note", pcie_box(), ("\nmeasure with NCCL_NET_GDR_LEVEL=NODE:",)),
    Fault("GPUs and NICs that the paths put at the host", "CB2504", "note", TRAY),
]  # fmt: skip
# Only the matrix of `topo -m` is known.
MATRIX = Machine(
    gpus=tuple(Gpu(gpu.key, place) for place, gpu in enumerate(GPUS)), nics=tuple(Nic(nic.name, rdma=True) for nic in NICS),
    gpu_links=dgx().gpu_links,
    paths={(gpu.key, nic.key): "PIX" if place == other else "SYS" for place, gpu in enumerate(GPUS) for other, nic in enumerate(NICS)},
)  # fmt: skip
# The kernel shows all PCI devices, the driver two GPUs; no module of the host is seen.
CONTAINER = replace(with_system(STAGED, container="docker"), gpus=GPUS[:2], gpu_links=dgx().gpu_links[:2])
HEALTHY = {
    "enough shared memory": with_system(dgx(), shm_bytes=1 << 30), "unknown shared memory": with_system(dgx(), shm_bytes=None),
    "dma-buf": with_system(dgx(), peer_memory=(), dma_buf=True), "unknown modules": with_system(dgx(), peer_memory=None, dma_buf=None),
    "modules in a container": with_system(STAGED, container="docker"), "a container with two of eight GPUs": CONTAINER,
    "a matrix alone": MATRIX, "a mesh": mesh(), "a laptop": laptop(),
    "Grace reaches the NICs of its CPU over C2C": with_system(TRAY, architecture="aarch64"),
    "an IOMMU before a single GPU without RDMA": LONE,
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=[each.name for each in FAULTS])
def test_a_fault_is_found(fault: Fault) -> None:
    fault.check()


@pytest.mark.parametrize("machine", HEALTHY.values(), ids=HEALTHY)
def test_what_is_no_fault(machine: Machine) -> None:
    assert not codes(machine)


@pytest.mark.parametrize("machine", [with_system(NUMA_LOST, virtualization="kvm"), replace(NUMA_LOST, numa_nodes=dgx().numa_nodes[:1])])
def test_a_numa_node_is_not_missed_in_a_virtual_machine_and_with_one_node(machine: Machine) -> None:
    assert "CB2402" not in codes(machine)


def test_many_doubts_are_cut() -> None:
    assert codes(replace(dgx(), doubts=tuple(f"doubt {number}" for number in range(100)))) == ["CB2403"] * 11


def test_an_iommu_before_a_gpu_and_a_nic() -> None:
    assert codes(replace(LONE, nics=NICS[:1])) == ["CB2106"]
    assert codes(TRAY) == ["CB2504"]


@pytest.mark.parametrize(("nodes", "sockets", "nic_node", "gpu_nodes", "found"), [
    pytest.param(8, 2, 4, (1, 5), ["sockets: GPU 0"], id="NPS4: GPU 1 is at another node of the NIC's socket"),
    pytest.param(8, None, 4, (1, 5), ["sockets: GPU 0"], id="as NCCL's topology file, without sockets"),
    pytest.param(4, 2, 3, (2, 0), ["sockets: GPU 1"], id="SNC2"),
    pytest.param(2, 2, 1, (0, 1), ["sockets: GPU 0"], id="a node for each socket"),
    pytest.param(4, 1, 3, (0, 1), [], id="NPS4 of one socket"),
    pytest.param(2, None, 1, (0,), ["NUMA nodes: GPU 0"], id="without known sockets"),
])  # fmt: skip
def test_gpus_of_the_nics_socket_are_not_across_sockets(nodes, sockets, nic_node, gpu_nodes, found) -> None:
    gpus = tuple(Gpu(f"gpu{number}", index=number, numa=node) for number, node in enumerate(gpu_nodes))
    paths = {(gpu.key, "mlx5_0"): "PIX" if gpu.numa == nic_node else "SYS" for gpu in gpus}
    numa_nodes = tuple(NumaNode(number, cpus=f"{number}") for number in range(nodes))
    nics = (Nic("mlx5_0", rdma=True, numa=nic_node),)
    machine = Machine(gpus=gpus, nics=nics, paths=paths, numa_nodes=numa_nodes, system=System(sockets=sockets))
    what = [finding.what for finding in examine([machine]) if finding.code == "CB2501"]
    assert what == [f"1 GPU reach a NIC only across {across}" for across in found]
