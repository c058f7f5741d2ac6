"""How many GPUs CUDA would show, from device nodes, the driver's pages and CUDA_VISIBLE_DEVICES."""

import sys
from subprocess import run

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collbench.device.present import Selection, present_gpus, select_gpus, visible_gpus

UUIDS = ["GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", "GPU-8932ab00-0000-0000-0000-000000000001", "GPU-77777777-1111-2222-3333-444444444444"]


@pytest.fixture
def machine(tmp_path):
    """/dev and /proc of a machine with three GPUs, the second of which this container may not use."""
    (tmp_path / "dev").mkdir()
    for name in ("nvidia0", "nvidia2", "nvidia10", "nvidiactl", "nvidia-uvm", "nvidia-caps", "null"):
        (tmp_path / "dev" / name).touch()
    for minor, (bus, uuid) in {2: ("0000:1b:00.0", UUIDS[1]), 0: ("0000:43:00.0", UUIDS[0]), 1: ("0000:52:00.0", UUIDS[2])}.items():
        folder = tmp_path / "proc/driver/nvidia/gpus" / bus
        folder.mkdir(parents=True)
        (folder / "information").write_text(
            f"Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 18\nGPU UUID: \t {uuid}\nBus Location: \t {bus}\nDevice Minor: \t {minor}\n"
            "GPU Firmware: \t 535.129.03\nGPU Excluded:\t No\n"
        )
    return tmp_path


def test_a_gpu_counts_where_it_has_a_device_node(machine, tmp_path):
    assert present_gpus(machine) == [UUIDS[0], UUIDS[1], ""]
    counts = {None: 3, "2": 1, UUIDS[1]: 1, UUIDS[2]: 0, "": 0}
    visible = [{} if variable is None else {"CUDA_VISIBLE_DEVICES": variable} for variable in counts]
    assert [visible_gpus(env, machine) for env in visible] == list(counts.values())
    without_driver = tmp_path / "empty"
    assert visible_gpus({}, without_driver) == visible_gpus({"CUDA_VISIBLE_DEVICES": "0,1"}, without_driver) == 0
    page = machine / "proc/driver/nvidia/gpus/0000:43:00.0/information"  # what cannot be read is a GPU without a UUID
    page.write_bytes(b"\xff\xfe\x00")
    assert present_gpus(machine) == ["", UUIDS[1], ""]
    page.unlink()
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "0"}, machine) == 1


@pytest.mark.parametrize(("variable", "wanted"), [
    (None, Selection((0, 1, 2))), ("", Selection(())), ("  ", Selection(())), ("1", Selection((1,))), ("2,0", Selection((2, 0))),
    (" 2 , 0 ", Selection((2, 0))), ("+1", Selection((1,))), ("0,2,-1,1", Selection((0, 2), "-1")), ("-1", Selection((), "-1")),
    ("0,3,1", Selection((0,), "3")), ("7", Selection((), "7")), ("1gpu2,2ampere", Selection((1, 2))), ("none", Selection((), "none")),
    ("NoDevFiles", Selection((), "NoDevFiles")), ("0,,1", Selection((0,), "")), ("0,0", Selection((), "0")), (UUIDS[2], Selection((2,))),
    ("GPU-7", Selection((2,))), ("gpu-7", Selection((), "gpu-7")), ("GPU-8932F9,GPU-77777777", Selection((0, 2))),
    ("GPU-8932", Selection((), "GPU-8932")), ("GPU-0,1", Selection((), "GPU-0")), ("MIG-1234", Selection(("MIG-1234",))),
    ("MIG-GPU-8932f937-d72c-4106-c12f-20bd9faed9f6/1/2,MIG-5", Selection(("MIG-GPU-8932f937-d72c-4106-c12f-20bd9faed9f6/1/2",))),
])  # fmt: skip
def test_the_variable_is_read_as_cuda_reads_it(variable, wanted):
    assert select_gpus(variable, UUIDS) == wanted


@given(st.text(st.sampled_from("0123456789,+- GPUMIGgpu-ａ٣"), max_size=30), st.integers(0, 3))
def test_any_text_is_read_and_names_each_gpu_once(variable, n):
    found = select_gpus(variable, UUIDS[:n])
    assert len(set(found.gpus)) == len(found.gpus) <= n
    assert found.wrong is None or found.wrong in variable


@pytest.mark.contract
def test_asking_imports_nothing_heavy():
    code = "import sys, collbench.device.present as v; v.visible_gpus({}); print({'cupy', 'numpy', 'torch', 'ctypes'} & set(sys.modules))"
    assert run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True).stdout == "set()\n"
