# ruff: noqa: N802, N815 - the test double has the functions' names
"""NVML through a fake pynvml: the calls, their units, and that an error costs one fact, not the machine."""

import ctypes
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from collbench.machine.model import SWITCH, Gpu, GpuLink, Machine, PcieLink
from collbench.machine.readers import nvml

GPU, CPU, SWITCH_TYPE = 0, 1, 2


class FakeNVMLError(Exception):
    pass


class FabricInfo(ctypes.Structure):
    """nvmlGpuFabricInfo_t of nvml.h."""

    _fields_ = [("clusterUuid", ctypes.c_uint8 * 16), ("status", ctypes.c_uint), ("cliqueId", ctypes.c_uint32), ("state", ctypes.c_uint8)]


class FakePynvml:
    """FakePynvml([card, …]): a test double of pynvml with Fake cards. `errors` maps a function's name to the error that it raises."""

    NVMLError = FakeNVMLError
    NVML_FI_DEV_NVLINK_GET_SPEED = 164
    NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON = 90

    def __init__(self, cards, errors={}, peers={}):  # noqa: B006 - never changed
        self.cards, self.peers, self.open = cards, peers, 0
        for name, error in errors.items():
            setattr(self, name, Mock(side_effect=FakeNVMLError(error)))

    def nvmlInit(self):
        self.open += 1

    def nvmlShutdown(self):
        self.open -= 1

    def nvmlDeviceGetCount(self):
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index):
        if self.cards[index] is None:
            raise FakeNVMLError("GPU is lost")
        return self.cards[index]

    nvmlSystemGetDriverVersion = staticmethod(lambda: "570.86.10")
    nvmlDeviceGetPciInfo = staticmethod(lambda card: SimpleNamespace(busId=card.bus, pciDeviceId=0x233510DE))
    nvmlDeviceGetCudaComputeCapability = staticmethod(lambda card: (9, 0))
    nvmlDeviceGetMemoryInfo = staticmethod(lambda card: SimpleNamespace(total=150_754_820_096))
    nvmlDeviceGetName = staticmethod(lambda card: card.name)
    nvmlDeviceGetUUID = staticmethod(lambda card: "GPU-" + card.bus[-7:])
    nvmlDeviceGetCurrPcieLinkGeneration = staticmethod(lambda card: card.generation)
    nvmlDeviceGetCurrPcieLinkWidth = staticmethod(lambda card: 16)
    nvmlDeviceGetGpuMaxPcieLinkGeneration = staticmethod(lambda card: 5)
    nvmlDeviceGetMaxPcieLinkWidth = staticmethod(lambda card: 16)

    def nvmlDeviceGetNvLinkState(self, card, link):
        if link >= len(card.links):
            raise FakeNVMLError(card.past_the_last)
        return int(card.links[link] is not None)

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, card, link):
        return {"switch": SWITCH_TYPE, "cpu": CPU}.get(card.links[link], GPU)

    def nvmlDeviceGetNvLinkRemotePciInfo(self, card, link):
        return SimpleNamespace(busId=card.links[link])

    def nvmlDeviceGetFieldValues(self, card, fields):
        number, link = fields[0] if isinstance(fields[0], tuple) else (fields[0], 0)
        speed = card.speeds.get((number, link))
        return [SimpleNamespace(valueType=1, nvmlReturn=0 if speed else 3, value=SimpleNamespace(uiVal=speed or 0))]

    c_nvmlGpuFabricInfo_t = FabricInfo

    def nvmlDeviceGetGpuFabricInfo(self, card, pointer):
        info = ctypes.cast(pointer, ctypes.POINTER(FabricInfo)).contents
        info.clusterUuid[:] = card.cluster
        info.cliqueId, info.state, info.status = card.clique, card.fabric_state, card.fabric_status

    def nvmlDeviceGetP2PStatus(self, a, b, what):
        return self.peers.get((a.bus[-7:], b.bus[-7:]), 0)


def card(bus, links=(), mbps=26562, **changes):
    """A Fake H200 on a bus; `links` gives what is at each NVLink's far end: "switch", "cpu", a bus, or None for a link that is off."""
    speeds = {(164, link): mbps for link in range(len(links))}
    facts = {"bus": f"00000000:{bus}:00.0", "name": "NVIDIA H200", "generation": 1, "past_the_last": "Invalid Argument", "speeds": speeds}
    facts |= {"cluster": bytes(16), "clique": 0, "fabric_state": 3, "fabric_status": 0}
    return SimpleNamespace(**{**facts, **changes}, links=[f"00000000:{end}:00.0" if end and len(end) == 2 else end for end in links])


KEY, LINKS_OFF = "0000:19:00.0", "gpus/0000:19:00.0/links_off"
CLUSTER = bytes(range(16))


def link(b, count, speed=26.562e9, a=KEY):
    return GpuLink(a, b, count, "nvlink", speed)


def test_a_gpu_with_the_facts_that_nvml_has():
    machine = nvml.read(FakePynvml([card("19", ["switch"] * 18)]))
    assert (machine.sources, machine.system.driver) == (("NVML",), "570.86.10")
    facts = {"address": KEY, "vendor": "nvidia", "model": "NVIDIA H200", "architecture": "sm_90", "memory_bytes": 150_754_820_096}
    assert machine.gpus == (Gpu(KEY, 0, **facts, links_off=0, uuid="GPU-19:00.0"),)
    (device,) = machine.pci  # an idle GPU's link as it is now and as the GPU could
    assert (device.address, device.kind, device.vendor_id, device.device_id) == (KEY, "gpu", 0x10DE, 0x2335)
    assert device.link == PcieLink(2.5, 16, 32.0, 16)


@pytest.mark.parametrize(("facts", "errors", "clique"), [
    ({"cluster": CLUSTER, "clique": 32766}, {}, "00010203-0405-0607-0809-0a0b0c0d0e0f/32766"),
    ({}, {}, None), ({"cluster": CLUSTER, "fabric_state": 2}, {}, None), ({"cluster": CLUSTER, "fabric_status": 3}, {}, None),
    ({}, {"nvmlDeviceGetGpuFabricInfo": "Not Supported"}, None),
])  # fmt: skip
def test_a_gpu_of_a_multi_node_nvlink_domain_has_its_clique_once_its_fabric_is_ready(facts, errors, clique):
    machine = nvml.read(FakePynvml([card("19", **facts)], errors))
    assert machine.gpus[0].clique == clique
    assert not any("clique" in path for path in machine.unknown)


ALL = ["switch"] * 2
NO_SPEED = ("gpu_links/0000:19:00.0>switch/bytes_per_s", "speed of an NVLink")
# The cards; of the first one its links, how many there are and how many are off; which fact is unknown, or doubted, and why.
LINKS = {
    "to a switch, summed, at the raw speed in MB/s": ([card("19", ["switch"] * 18)], [link(SWITCH, 18)], 18, 0, None),
    "to each peer of a mesh": ([card("19", ["44"] * 4 + ["84"] * 4, 25000), card("44"), card("84")],
        [link("0000:44:00.0", 4, 25e9), link("0000:84:00.0", 4, 25e9)], 8, 0, None),
    "partly off, as of an H100 PCIe with bridges": ([card("19", ["3b"] * 12 + [None] * 6), card("3b")], [link("0000:3b:00.0", 12)], 12, 6,
        None),
    "all off, which is known": ([card("19", [None] * 18)], [link(None, 0, None)], 0, 18, None),
    "not supported": ([card("19", past_the_last="Not Supported")], [], None, None, (LINKS_OFF, ": Not Supported")),
    "no half count after an error": ([card("19", ALL, past_the_last="GPU is lost")], [], None, None, (LINKS_OFF, "GPU is lost")),
    "to a peer that this container does not show": ([card("19", ["3b"] * 12)], [link(None, 12)], 12, 0, None),
    "to a CPU, not between GPUs": ([card("19", ["cpu"] * 3 + ["05"] * 3, 25781), card("05")], [link("0000:05:00.0", 3, 25.781e9)], 3, 0,
        None),
    "one speed for all, of an older driver": ([card("19", ALL, speeds={(90, 0): 25781})], [link(SWITCH, 2, 25.781e9)], 2, 0, None),
    "no speed": ([card("19", ALL, speeds={})], [link(SWITCH, 2, None)], 2, 0, NO_SPEED),
    "a speed that cannot be": ([card("19", ALL, 10**18)], [link(SWITCH, 2, None)], 2, 0, NO_SPEED),
    "different speeds": ([card("19", ALL, speeds={(164, 0): 26562, (164, 1): 13281})], [link(SWITCH, 2, None)], 2, 0,
        ("doubt", "GPU 0000:19:00.0 run at different speeds, 13.281 to 26.562 GB/s")),
}  # fmt: skip


@pytest.mark.parametrize(("cards", "links", "count", "off", "why"), LINKS.values(), ids=LINKS)
def test_links(cards, links, count, off, why):
    machine = nvml.read(FakePynvml(cards))
    assert [each for each in machine.gpu_links if each.a == KEY] == links
    assert (machine.links_of(KEY), machine.gpus[0].links_off) == (count, off)
    assert machine.switched is (SWITCH in [each.b for each in links])
    path, text = why or ("", "")
    assert text in (machine.doubts[0] if path == "doubt" else machine.unknown[path] if path else "")
    assert len(machine.doubts) == (path == "doubt")


KEYS = (KEY, "0000:3b:00.0")
FACTS = {
    "nvmlDeviceGetName": ("gpus/0000:19:00.0/model", lambda m: m.gpus[0].model),
    "nvmlDeviceGetUUID": ("gpus/0000:19:00.0/uuid", lambda m: m.gpus[0].uuid),
    "nvmlDeviceGetMemoryInfo": ("gpus/0000:19:00.0/memory_bytes", lambda m: m.gpus[0].memory_bytes),
    "nvmlDeviceGetCudaComputeCapability": ("gpus/0000:19:00.0/architecture", lambda m: m.gpus[0].architecture),
    "nvmlDeviceGetCurrPcieLinkGeneration": ("pci/0000:19:00.0/link.speed_gt_per_s", lambda m: m.pci[0].link.speed_gt_per_s),
    "nvmlDeviceGetMaxPcieLinkWidth": ("pci/0000:19:00.0/link.max_width", lambda m: m.pci[0].link.max_width),
    "nvmlSystemGetDriverVersion": ("system/driver", lambda m: m.system.driver),
    "nvmlDeviceGetP2PStatus": ("peer_access/0000:19:00.0>0000:3b:00.0", lambda m: m.peer_access.get(KEYS)),
}


@pytest.mark.parametrize("function", FACTS)
def test_one_error_costs_one_fact_and_is_its_reason(function):
    path, fact = FACTS[function]
    cards = [card("19", ["switch"] * 2), card("3b", ["switch"] * 2)]
    whole, less = nvml.read(FakePynvml(cards)), nvml.read(FakePynvml(cards, {function: "Insufficient Permissions"}))
    assert fact(whole) is not None
    assert fact(less) is None
    assert ": Insufficient Permissions" in less.unknown[path]
    assert tuple(gpu.key for gpu in less.gpus) == KEYS
    assert less.gpu_links == whole.gpu_links


def test_a_lost_gpu_is_listed_with_the_reason_and_nvml_is_closed_again():
    library = FakePynvml([card("19", name=b"NVIDIA\x1b[31m H200"), None])
    machine = nvml.read(library)
    assert library.open == 0
    assert [(gpu.key, gpu.model) for gpu in machine.gpus] == [(KEY, "NVIDIA?[31m H200"), ("gpu1", None)]
    assert ": GPU is lost" in machine.unknown["gpus/gpu1/address"]


def test_peer_access_uses_nvidia_smis_words():
    machine = nvml.read(FakePynvml([card("01"), card("c1")], peers={("01:00.0", "c1:00.0"): 2, ("c1:00.0", "01:00.0"): 1}))
    assert machine.peer_access == {("0000:01:00.0", "0000:c1:00.0"): "GNS", ("0000:c1:00.0", "0000:01:00.0"): "CNS"}


def test_the_live_driver_or_the_reason_for_none_and_without_the_package_the_reason(monkeypatch):
    machine = nvml.read()
    assert machine.gpus or "NVIDIA driver" in machine.unknown["gpus"] or "not installed" in machine.unknown["gpus"]
    monkeypatch.setattr(nvml, "CDLL", lambda name: None)  # the driver is there
    monkeypatch.setitem(__import__("sys").modules, "pynvml", None)
    assert nvml.read().gpus == () and "nvidia-ml-py" in nvml.read().unknown["gpus"]


@pytest.mark.parametrize(("error", "why"), [
    ("NVML Shared Library Not Found", "no NVIDIA driver: libnvidia-ml.so.1 is not there"),
    ("Driver Not Loaded", "the NVIDIA driver does not answer: Driver Not Loaded"),
    ("RM has detected an NVML/RM version mismatch.", "the NVIDIA driver does not answer: RM has detected an NVML/RM version mismatch."),
])  # fmt: skip
def test_without_a_driver_the_machine_is_empty_and_gives_the_reason(error, why):
    assert nvml.read(FakePynvml([], {"nvmlInit": error})) == Machine(unknown={"gpus": why})


def test_pynvml_has_every_name_that_is_asked_for():
    """The test double has the library's functions."""
    pynvml = pytest.importorskip("pynvml")
    names = [name for name in vars(FakePynvml) if name.startswith(("nvml", "NVML_"))]
    assert len(names) > 15
    for name in names:
        assert hasattr(pynvml, name), name
    assert [name for name, _ in pynvml.c_nvmlGpuFabricInfo_t._fields_] == [name for name, _ in FabricInfo._fields_]
    assert ctypes.sizeof(pynvml.c_nvmlGpuFabricInfo_t) == ctypes.sizeof(FabricInfo)
    assert pynvml.NVML_FI_DEV_NVLINK_GET_SPEED == FakePynvml.NVML_FI_DEV_NVLINK_GET_SPEED
