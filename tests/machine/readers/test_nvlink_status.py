"""`nvidia-smi nvlink -s`: links that are up with their printed speed, links that are not, and lists that cannot be right."""

import pytest

from collbench.machine.model import Gpu, GpuLink
from collbench.machine.readers import smi
from collbench.machine.readers.text import Unreadable

UUID = "GPU-0123abcd-0000-1111-2222-333344445555"


def status(links: int = 12, off: tuple[int, ...] = (), index: int = 0, speed: str = "25") -> str:
    """One GPU's part of the output."""
    lines = [f"\t Link {link}: " + ("<inactive>" if link in off else f"{speed} GB/s") for link in range(links)]
    return "\n".join([f"GPU {index}: NVIDIA A100-SXM4-80GB (UUID: {UUID})", *lines]) + "\n"


def test_links_are_counted_with_their_speed() -> None:
    machine = smi.read_nvlink_status(status() + status(index=1), "nvlink.txt")
    assert machine.sources == ("nvidia-smi nvlink -s nvlink.txt",)
    assert machine.gpus[0] == Gpu("gpu0", index=0, vendor="nvidia", model="NVIDIA A100-SXM4-80GB", links_off=0, uuid=UUID)
    assert machine.gpu_links == (GpuLink("gpu0", None, 12, bytes_per_s=25e9), GpuLink("gpu1", None, 12, bytes_per_s=25e9))
    assert machine.doubts == () and machine.unknown == {}


@pytest.mark.parametrize(("printed", "bytes_per_s"), [("26.562", 26.562e9), ("25.781", 25.781e9), ("53.125", 53.125e9)])
def test_speeds_are_kept_as_printed(printed: str, bytes_per_s: float) -> None:
    assert smi.read_nvlink_status(status(18, speed=printed), "m").gpu_links[0].bytes_per_s == pytest.approx(bytes_per_s)


def test_inactive_links_are_counted_apart() -> None:
    machine = smi.read_nvlink_status(status(18, off=(12, 13, 14, 15, 16, 17), speed="26.562"), "m")
    assert machine.links_of("gpu0") == 12 and machine.gpus[0].links_off == 6


@pytest.mark.parametrize(
    "text", [status(12, off=tuple(range(12))), status(0) + "NVML: Unable to retrieve NVLink information as all links are inActive\n"]
)
def test_a_gpu_whose_links_are_all_off_has_none_which_is_known(text: str) -> None:
    assert smi.read_nvlink_status(text, "m").links_of("gpu0") == 0


def test_a_gpu_without_any_link_lines_is_unknown() -> None:
    machine = smi.read_nvlink_status("GPU 0: NVIDIA A10 (UUID: GPU-00000000-aaaa)\n", "m")
    assert machine.links_of("gpu0") is None and machine.gpus[0].links_off is None
    assert machine.unknown.keys() == {"gpus/gpu0/links_off", "gpu_links"}


def test_different_speeds_of_one_gpu_are_doubted_and_none_is_taken() -> None:
    machine = smi.read_nvlink_status(status().replace("Link 3: 25 GB/s", "Link 3: 12.5 GB/s"), "m")
    assert machine.gpu_links == (GpuLink("gpu0", None, 12),)
    assert len(machine.doubts) == 1 and "gpu0 run at different speeds, 12.5 to 25 GB/s" in machine.doubts[0]


@pytest.mark.parametrize("text", [status() + status(3, index=1), status() + status(index=1).replace("\t Link 4: 25 GB/s\n", "")])
def test_a_list_that_is_cut_is_doubted(text: str) -> None:
    assert "the file may be cut" in smi.read_nvlink_status(text, "m").doubts[0]


@pytest.mark.parametrize(
    "line", ["\t Link 0: -25 GB/s", "\t Link 0: 1000000000000000000 GB/s", "\t Link 0: 0 GB/s", "\t Link 0: GB/s", "\t Link 5: 25 GB/s"]
)
def test_lines_that_cannot_be_are_refused(line: str) -> None:
    with pytest.raises(Unreadable, match="not an NVLink status"):
        smi.read_nvlink_status(status(6, off=(0,)).replace("\t Link 0: <inactive>", line), "m")


def test_links_to_the_cpu() -> None:
    text = "GPU 0: NVIDIA GB200 (UUID: GPU-00000000-aaaa)\n" + "".join(f"\t C2C Link {link}: 40.5 GB/s\n" for link in range(5))
    assert smi.looks_like_nvlink_status(text, "c2c.txt")
    machine = smi.read_nvlink_status(text, "c2c.txt")
    assert (machine.gpus[0].c2c_links, machine.gpus[0].c2c_bytes_per_s) == (5, 40.5e9)
    assert machine.gpu_links == () and machine.unknown["gpu_links"] == "the file lists no NVLinks"
    both = smi.read_nvlink_status(text + text.replace("C2C ", ""), "both.txt")
    assert both.links_of("gpu0") == 5 and both.gpus[0].c2c_links == 5
