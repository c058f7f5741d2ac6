# ruff: noqa: N802, N815 - the test double has the functions' names
"""NVML through a fake pynvml: the calls, their units, and that an error costs one fact, not the machine."""

import ctypes
from types import SimpleNamespace

import pytest

from collbench.machine.model import SWITCH, Gpu, GpuLink, Machine, PcieLink
from collbench.machine.readers import nvml

GPU, CPU, SWITCH_TYPE = 0, 1, 2


class FakeNVMLError(Exception):
    pass


class FabricInfo(ctypes.Structure):
    """nvmlGpuFabricInfo_t of nvml.h."""

    _fields_ = [
        ("clusterUuid", ctypes.c_uint8 * 16),
        ("status", ctypes.c_uint),
        ("cliqueId", ctypes.c_uint32),
        ("state", ctypes.c_uint8),
    ]


class FakePynvml:
    """FakePynvml([card, …]): a test double of pynvml with Fake cards. `errors` maps a function's name to the error that it raises."""

    NVMLError = FakeNVMLError
    NVML_FI_DEV_NVLINK_GET_SPEED = 164
    NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON = 90

    def __init__(self, cards, errors={}, peers={}):  # noqa: B006 - never changed
        self.cards, self.errors, self.peers, self.open = cards, errors, peers, 0

    def __getattribute__(self, name):
        errors = object.__getattribute__(self, "errors") if not name.startswith("__") and name != "errors" else {}
        if name in errors:

            def raises(*_):
                raise FakeNVMLError(errors[name])

            return raises
        return object.__getattribute__(self, name)

    def nvmlInit(self):
        self.open += 1

    def nvmlShutdown(self):
        self.open -= 1

    def nvmlSystemGetDriverVersion(self):
        return "570.86.10"

    def nvmlDeviceGetCount(self):
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index):
        if self.cards[index] is None:
            raise FakeNVMLError("GPU is lost")
        return self.cards[index]

    def nvmlDeviceGetPciInfo(self, card):
        return SimpleNamespace(busId=card.bus, pciDeviceId=0x233510DE)

    def nvmlDeviceGetCudaComputeCapability(self, card):
        return (9, 0)

    def nvmlDeviceGetMemoryInfo(self, card):
        return SimpleNamespace(total=150_754_820_096)

    def nvmlDeviceGetName(self, card):
        return card.name

    def nvmlDeviceGetUUID(self, card):
        return "GPU-" + card.bus[-7:]

    def nvmlDeviceGetCurrPcieLinkGeneration(self, card):
        return card.generation

    def nvmlDeviceGetCurrPcieLinkWidth(self, card):
        return 16

    def nvmlDeviceGetGpuMaxPcieLinkGeneration(self, card):
        return 5

    def nvmlDeviceGetMaxPcieLinkWidth(self, card):
        return 16

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


def test_a_gpu_with_the_facts_that_nvml_has():
    machine = nvml.read(FakePynvml([card("19", ["switch"] * 18)]))
    assert machine.sources == ("NVML",)
    assert machine.system.driver == "570.86.10"
    assert machine.gpus == (
        Gpu(
            key="0000:19:00.0",
            index=0,
            address="0000:19:00.0",
            vendor="nvidia",
            model="NVIDIA H200",
            architecture="sm_90",
            memory_bytes=150_754_820_096,
            links_off=0,
            uuid="GPU-19:00.0",
        ),
    )


def test_a_gpu_of_a_multi_node_nvlink_domain_has_its_clique():
    cluster = bytes(range(16))
    found = nvml.read(FakePynvml([card("19", ["switch"] * 18, cluster=cluster, clique=32766)])).gpus[0].clique
    assert found == "00010203-0405-0607-0809-0a0b0c0d0e0f/32766"


@pytest.mark.parametrize("facts", [{}, {"cluster": bytes(range(16)), "fabric_state": 2}, {"cluster": bytes(range(16)), "fabric_status": 3}])
def test_a_gpu_whose_fabric_is_not_ready_or_of_one_node_has_no_clique(facts):
    assert nvml.read(FakePynvml([card("19", **facts)])).gpus[0].clique is None


def test_a_driver_without_fabric_information_gives_no_clique_and_no_doubt():
    machine = nvml.read(FakePynvml([card("19")], {"nvmlDeviceGetGpuFabricInfo": "Not Supported"}))
    assert machine.gpus[0].clique is None
    assert not any("clique" in path for path in machine.unknown)


def test_an_idle_gpus_link_is_reported_as_it_is_now_and_as_the_gpu_could():
    device = nvml.read(FakePynvml([card("19")])).pci[0]
    assert device.link == PcieLink(2.5, 16, 32.0, 16)
    assert (device.address, device.kind, device.vendor_id, device.device_id) == ("0000:19:00.0", "gpu", 0x10DE, 0x2335)


def test_links_to_a_switch_are_summed_at_the_raw_speed_that_nvml_gives_in_megabytes():
    machine = nvml.read(FakePynvml([card("19", ["switch"] * 18), card("3b", ["switch"] * 18)]))
    assert machine.gpu_links == (
        GpuLink("0000:19:00.0", SWITCH, 18, "nvlink", 26.562e9),
        GpuLink("0000:3b:00.0", SWITCH, 18, "nvlink", 26.562e9),
    )
    assert machine.switched


def test_a_mesh_counts_the_links_to_each_peer():
    machine = nvml.read(
        FakePynvml([card("03", ["44"] * 4 + ["84"] * 4, 25000), card("44", ["03"] * 4, 25000), card("84", ["03"] * 4, 25000)])
    )
    assert machine.gpu_links[:2] == (
        GpuLink("0000:03:00.0", "0000:44:00.0", 4, "nvlink", 25e9),
        GpuLink("0000:03:00.0", "0000:84:00.0", 4, "nvlink", 25e9),
    )
    assert machine.links_of("0000:03:00.0") == 8
    assert not machine.switched


def test_links_that_are_off_are_counted_apart():
    """An H100 PCIe has 18 links, 12 of which its bridges use."""
    machine = nvml.read(FakePynvml([card("19", ["3b"] * 12 + [None] * 6), card("3b", ["19"] * 12 + [None] * 6)]))
    assert machine.gpus[0].links_off == 6
    assert machine.links_of("0000:19:00.0") == 12


def test_a_gpu_whose_links_are_all_off_has_none_and_that_is_known():
    machine = nvml.read(FakePynvml([card("19", [None] * 18)]))
    assert machine.links_of("0000:19:00.0") == 0
    assert machine.gpus[0].links_off == 18


def test_a_gpu_without_nvlink_has_an_unknown_number_with_the_reason():
    machine = nvml.read(FakePynvml([card("19", past_the_last="Not Supported")]))
    assert machine.links_of("0000:19:00.0") is None
    assert machine.gpus[0].links_off is None
    assert ": Not Supported" in machine.unknown["gpus/0000:19:00.0/links_off"]


def test_an_error_amid_the_links_leaves_no_half_count():
    machine = nvml.read(FakePynvml([card("19", ["switch"] * 5, past_the_last="GPU is lost")]))
    assert machine.gpu_links == ()
    assert machine.unknown["gpus/0000:19:00.0/links_off"].endswith("GPU is lost")


def test_a_peer_that_this_container_does_not_show_leaves_the_count_alone():
    assert nvml.read(FakePynvml([card("19", ["3b"] * 12)])).gpu_links == (GpuLink("0000:19:00.0", None, 12, "nvlink", 26.562e9),)


def test_links_to_a_cpu_are_no_links_between_gpus():
    machine = nvml.read(FakePynvml([card("04", ["cpu"] * 3 + ["05"] * 3, 25781), card("05", ["cpu"] * 3 + ["04"] * 3, 25781)]))
    assert machine.gpu_links[0] == GpuLink("0000:04:00.0", "0000:05:00.0", 3, "nvlink", 25.781e9)
    assert machine.links_of("0000:04:00.0") == 3


def test_an_older_driver_knows_one_speed_for_all_links():
    machine = nvml.read(FakePynvml([card("19", ["switch"] * 12, speeds={(90, 0): 25781})]))
    assert machine.gpu_links[0].bytes_per_s == 25.781e9


@pytest.mark.parametrize("speeds", [{}, {(164, 0): 10**18, (164, 1): 10**18}])
def test_a_speed_that_is_not_reported_or_cannot_be_is_unknown(speeds):
    machine = nvml.read(FakePynvml([card("19", ["switch"] * 2, speeds=speeds)]))
    assert machine.gpu_links[0].bytes_per_s is None
    assert "speed of an NVLink" in machine.unknown["gpu_links/0000:19:00.0>switch/bytes_per_s"]


def test_links_at_different_speeds_have_no_common_one_and_raise_a_doubt():
    machine = nvml.read(FakePynvml([card("19", ["switch"] * 2, speeds={(164, 0): 26562, (164, 1): 13281})]))
    assert machine.gpu_links[0].bytes_per_s is None
    assert len(machine.doubts) == 1 and "GPU 0000:19:00.0 run at different speeds, 13.281 to 26.562 GB/s" in machine.doubts[0]


def test_peer_access_uses_nvidia_smis_words():
    machine = nvml.read(FakePynvml([card("01"), card("c1")], peers={("01:00.0", "c1:00.0"): 2, ("c1:00.0", "01:00.0"): 1}))
    assert machine.peer_access == {("0000:01:00.0", "0000:c1:00.0"): "GNS", ("0000:c1:00.0", "0000:01:00.0"): "CNS"}


FACTS = {
    "nvmlDeviceGetName": ("gpus/0000:19:00.0/model", lambda m: m.gpus[0].model),
    "nvmlDeviceGetUUID": ("gpus/0000:19:00.0/uuid", lambda m: m.gpus[0].uuid),
    "nvmlDeviceGetMemoryInfo": ("gpus/0000:19:00.0/memory_bytes", lambda m: m.gpus[0].memory_bytes),
    "nvmlDeviceGetCudaComputeCapability": ("gpus/0000:19:00.0/architecture", lambda m: m.gpus[0].architecture),
    "nvmlDeviceGetCurrPcieLinkGeneration": ("pci/0000:19:00.0/link.speed_gt_per_s", lambda m: m.pci[0].link.speed_gt_per_s),
    "nvmlDeviceGetMaxPcieLinkWidth": ("pci/0000:19:00.0/link.max_width", lambda m: m.pci[0].link.max_width),
    "nvmlSystemGetDriverVersion": ("system/driver", lambda m: m.system.driver),
    "nvmlDeviceGetP2PStatus": ("peer_access/0000:19:00.0>0000:3b:00.0", lambda m: m.peer_access.get(("0000:19:00.0", "0000:3b:00.0"))),
}


@pytest.mark.parametrize("function", FACTS)
def test_one_error_costs_one_fact_and_is_its_reason(function):
    path, fact = FACTS[function]
    whole = nvml.read(FakePynvml([card("19", ["switch"] * 2), card("3b", ["switch"] * 2)]))
    less = nvml.read(FakePynvml([card("19", ["switch"] * 2), card("3b", ["switch"] * 2)], {function: "Insufficient Permissions"}))
    assert fact(whole) is not None
    assert fact(less) is None
    assert ": Insufficient Permissions" in less.unknown[path]
    assert [gpu.key for gpu in less.gpus] == ["0000:19:00.0", "0000:3b:00.0"]
    assert less.gpu_links == whole.gpu_links


def test_a_lost_gpu_is_listed_with_the_reason():
    machine = nvml.read(FakePynvml([card("19"), None]))
    assert [gpu.key for gpu in machine.gpus] == ["0000:19:00.0", "gpu1"]
    assert ": GPU is lost" in machine.unknown["gpus/gpu1/address"]


@pytest.mark.parametrize(
    ("error", "why"),
    [
        ("NVML Shared Library Not Found", "no NVIDIA driver: libnvidia-ml.so.1 is not there"),
        ("Driver Not Loaded", "the NVIDIA driver does not answer: Driver Not Loaded"),
        ("RM has detected an NVML/RM version mismatch.", "the NVIDIA driver does not answer: RM has detected an NVML/RM version mismatch."),
    ],
)
def test_without_a_driver_the_machine_is_empty_and_gives_the_reason(error, why):
    assert nvml.read(FakePynvml([], {"nvmlInit": error})) == Machine(unknown={"gpus": why})


def test_without_the_package_the_machine_is_empty_and_gives_the_reason(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pynvml", None)
    assert nvml.read().gpus == () and "nvidia-ml-py" in nvml.read().unknown["gpus"]


def test_nvml_is_closed_again():
    library = FakePynvml([card("19"), None])
    nvml.read(library)
    assert library.open == 0


def test_names_come_without_control_characters_and_may_be_bytes():
    assert nvml.read(FakePynvml([card("19", name=b"NVIDIA\x1b[31m H200")])).gpus[0].model == "NVIDIA?[31m H200"


def test_the_live_driver_or_the_reason_for_none():
    machine = nvml.read()
    assert machine.gpus or "NVIDIA driver" in machine.unknown["gpus"] or "not installed" in machine.unknown["gpus"]


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
