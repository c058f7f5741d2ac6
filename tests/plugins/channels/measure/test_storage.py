"""Storage: the file that leaves nothing behind, direct reads of a real loop device, a throttled one, and the reasons for n/a."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from collbench.cli.main import run as command
from collbench.errors import RunFailed, UsageError
from collbench.machine.peak.links import unknown
from collbench.plugins.channels import storage as module
from collbench.plugins.channels.records import Channel
from collbench.plugins.channels.storage import HostReader, ReadPlan, ReadResult, ScratchFile, finished, rates_of, read_file, storage_jobs
from collbench.plugins.channels.storage_devices import Storage, link_of, storage_of
from tests.cli.command import ROOT, environment
from tests.fake_gpu import double

MIB = 2**20
ALONE = {"SLURM_JOB_ID": ""}
DISK = Storage("ext4", "/dev/nvme0n1", "nvme0n1", "259:0", unknown("no link"))
PLAN = ReadPlan(MIB, 4, 0.05)


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """A folder that supports direct reads."""
    try:
        ScratchFile(tmp_path, 16 * MIB).close()
    except RunFailed as error:
        pytest.skip(f"needs a temporary folder on a disk: {error}")
    return tmp_path


class TestTheFile:
    def test_a_file_has_no_name_and_single_reads_have_latencies(self, disk: Path) -> None:
        with ScratchFile(disk, 24 * MIB) as file:
            assert (list(disk.iterdir()), file.n_bytes, os.fstat(file.fd).st_mode & 0o777) == ([], 24 * MIB, 0o600)
            found = read_file(file, PLAN, lambda: HostReader(file.fd, MIB), 20)
            assert (found.wrong, found.cached_bytes) == (None, 0)
            assert found.n_reads >= 4 and np.all(found.rates > 0)
            assert not np.array_equal(file.expected(0, MIB), file.expected(8 * MIB, MIB))
        with ScratchFile(disk, 16 * MIB) as file:
            found = read_file(file, ReadPlan(4096, 1, 0.05, is_random=True), lambda: HostReader(file.fd, 4096), 20)
        assert len(found.latencies_s) == found.n_reads > 0 and not len(found.rates)

    def test_a_changed_byte_is_detected(self, disk: Path) -> None:
        with ScratchFile(disk, 16 * MIB) as file:
            file._base = file._base ^ 1
            found = read_file(file, PLAN, lambda: HostReader(file.fd, MIB), 20)
        assert found.wrong == f"{MIB} of {MIB} bytes differ from those that were written, the first at 0"

    def test_a_file_in_the_page_cache_is_refused(self, disk: Path) -> None:
        class Buffered(HostReader):
            def read(self, offset: int, n_bytes: int) -> None:
                with Path(f"/proc/self/fd/{self._fd}").open("rb") as again:
                    again.seek(offset)
                    again.read(n_bytes)
                super().read(offset, n_bytes)

        with ScratchFile(disk, 16 * MIB) as file, pytest.raises(RunFailed, match="page cache"):
            read_file(file, PLAN, lambda: Buffered(file.fd, MIB), 20)

    def test_memory_is_not_a_disk(self) -> None:
        with pytest.raises(RunFailed, match="in memory"):
            ScratchFile(Path("/dev/shm"), 16 * MIB)

    def test_too_little_space(self, disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "_PART", 2**40)
        with pytest.raises(RunFailed, match="free space"):
            ScratchFile(disk, 16 * MIB)
        assert list(disk.iterdir()) == []

    def test_a_full_disk_is_one_sentence_and_leaves_nothing(self, disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(os, "pwritev", lambda *_: 512)
        with pytest.raises(RunFailed, match="is full"):
            ScratchFile(disk, 16 * MIB)
        assert list(disk.iterdir()) == []


class TestFigures:
    def test_the_rate_counts_the_time_in_which_all_threads_read_and_names_what_read_less(self) -> None:
        early = [0.0, *np.arange(1, 41) * 0.5]  # two reads a second, from the first second on with the other thread
        late = [*np.arange(2, 31) * 0.5]
        found = rates_of([early, late], 1000)
        assert found == pytest.approx(np.full(len(found), 4000.0), rel=1e-9)
        assert not len(rates_of([[1.0, 2.0], []], 1000))
        found = ReadResult(np.linspace(1e9, 1.01e9, 20)[np.random.default_rng(1).permutation(20)], np.empty(0), 100, None, 0, 10 * MIB)
        row = finished(Channel("storage_1m", "h", "h"), DISK, 64 * MIB, PLAN, found)
        assert (row.source, row.flags, row.of_bytes_per_s) == ("h/nvme0n1", ("path_unproven",), None)
        proven = finished(Channel("storage_1m", "h", "h"), DISK, 64 * MIB, PLAN, replace(found, device_bytes=100 * MIB))
        assert proven.flags == () and proven.details["reads_at_once"] == 4
        nfs = Storage("nfs4", "server:/export", None, None, unknown("nfs4 has no device"))
        row = finished(Channel("storage_1m", "h", "h"), nfs, 64 * MIB, PLAN, ReadResult(np.full(9, 1e9), np.empty(0), 9, None, 0, None))
        assert row.source == "h/nfs4" and row.details["network_file_system"] is True
        assert "server:/export (network file system)" in row.limited_by
        (job,) = storage_jobs("h", None, [], "no GPU", 1)
        assert job.measure is None and "--scratch" in (job.channel.na or "")


class TestLinks:
    def nvme(self, root: Path, speed: str = "16.0 GT/s PCIe", width: str = "4") -> Path:
        slot = root / "sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0"
        disk = slot / "nvme/nvme0/nvme0n1"
        disk.mkdir(parents=True)
        (disk / "device").symlink_to("..")
        (slot / "nvme/nvme0/transport").write_text("pcie\n")
        (slot / "current_link_speed").write_text(f"{speed}\n")
        (slot / "current_link_width").write_text(f"{width}\n")
        return disk

    def test_an_nvme_drive_has_its_pcie_link(self, tmp_path: Path) -> None:
        link = link_of(self.nvme(tmp_path))
        assert (link.name, link.source) == ("PCIe Gen4 x4", "sysfs, nvme0n1")
        assert link.bytes_per_s == pytest.approx(16e9 * 4 / 8 * 128 / 130)

    def test_a_device_mapper_has_that_of_the_only_device_below(self, tmp_path: Path) -> None:
        disk, mapper = self.nvme(tmp_path), tmp_path / "sys/devices/virtual/block/dm-0/slaves"
        mapper.mkdir(parents=True)
        (mapper / "nvme0n1").symlink_to(disk)
        assert link_of(mapper.parent).name == "PCIe Gen4 x4"
        (mapper / "sdb").mkdir()
        assert link_of(mapper.parent).bytes_per_s is None

    @pytest.mark.parametrize(("speed", "width"), [("Unknown", "4"), ("16.0 GT/s PCIe", "0"), ("16.0 GT/s PCIe", "99"), ("3.3 GT/s", "4")])
    def test_an_invalid_link_is_unknown(self, tmp_path: Path, speed: str, width: str) -> None:
        assert link_of(self.nvme(tmp_path, speed, width)).bytes_per_s is None

    def test_drives_of_another_host_and_other_disks_have_no_known_link(self, tmp_path: Path) -> None:
        disk = self.nvme(tmp_path)
        (disk.parent / "transport").write_text("tcp\n")
        assert link_of(disk).bytes_per_s is None
        for place in ("virtio3/block/vda", "ata1/block/sda"):
            (tmp_path / place).mkdir(parents=True)
            assert link_of(tmp_path / place).bytes_per_s is None

    def test_a_mount_of_this_machine(self) -> None:
        assert storage_of(Path("/proc")).kind == "proc" and storage_of(Path("/proc")).device is None


@pytest.mark.parametrize(("words", "expected"), [
    ("--scratch /tmp", "--scratch is for --measure"), ("--scratch-size 1G", "--scratch-size is for --measure"),
    ("--measure --scratch-size 1G", "--scratch-size is for --scratch"), ("--measure --scratch-size 1M", "smallest file"),
    ("--measure --scratch-size 1Q", "not a valid number of bytes"),
])  # fmt: skip
def test_bad_input(words: str, expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        command(["probe", *words.split()])


def probe(scratch: Path, env: dict[str, str], before: str = "", seconds: str = "0.1") -> dict[str, dict[str, Any]]:
    """Return the rows of a process by channel; `before`: shell commands that run first, in a mount namespace of their own."""
    line = f"{sys.executable} -m collbench probe --measure --max-time {seconds} --scratch {scratch} --scratch-size 16M --format json"
    shell = ["unshare", "-m", "sh", "-ec", f"{before}\nexec {line}"] if before else line.split()
    done = subprocess.run(shell, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return {row["channel"]: row for row in json.loads(done.stdout)["channels"]}


@pytest.fixture
def image(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() or not shutil.which("mkfs.ext4") or not Path("/dev/loop-control").exists():
        pytest.skip("needs root, mkfs.ext4 and loop devices")
    file = tmp_path / "image"
    with file.open("wb") as made:
        made.truncate(256 * MIB)
    subprocess.run(["mkfs.ext4", "-q", "-F", file], check=True, timeout=60)
    (tmp_path / "mnt").mkdir()
    yield file


@pytest.mark.long
class TestRealDevices:
    def test_a_loop_device_counts_what_was_read(self, image: Path) -> None:
        folder = image.parent / "mnt"
        found = probe(folder, environment(ALONE), f"mount -o loop {image} {folder}")
        for name in ("storage_1m", "storage_128k", "storage_4k_random"):
            row = found[name]
            assert row["bytes_per_s"] > 0 and row["details"]["file_system"] == "ext4" and row["details"]["device"].startswith("loop")
            assert row["details"]["cached_bytes"] == 0 and "path_unproven" not in row["flags"]
            assert row["details"]["device_read_bytes"] >= 0.9 * row["details"]["reads"] * row["details"]["block_bytes"]

    def test_a_throttled_device_reads_its_rate(self, image: Path) -> None:
        limit, group, folder = 20 * 10**6, Path(f"/sys/fs/cgroup/blkio/collbench-test-{os.getpid()}"), image.parent / "mnt"
        if not (group.parent / "blkio.throttle.read_bps_device").exists():
            pytest.skip("needs the blkio controller of cgroup version 1")
        group.mkdir()
        try:
            throttle = f"echo $(mountpoint -d {folder}) {limit} >{group}/blkio.throttle.read_bps_device; echo $$ >{group}/cgroup.procs"
            row = probe(folder, environment(ALONE), f"mount -o loop {image} {folder}\n{throttle}", seconds="2")["storage_1m"]
        finally:
            for _ in range(50):
                try:
                    group.rmdir()
                    break
                except OSError:
                    time.sleep(0.1)
        assert row["bytes_per_s"] <= 1.1 * limit

    def test_nothing_is_left_of_a_process_that_is_killed(self, disk: Path) -> None:
        line = [sys.executable, "-m", "collbench", "probe", "--measure", "--max-time", "5", "--scratch", str(disk), "--scratch-size", "16M"]
        started = subprocess.Popen(line, cwd=ROOT, env=environment(ALONE), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        assert started.stderr is not None
        for text in started.stderr:
            if "storage_128k" in text:
                break
        started.send_signal(signal.SIGKILL)
        started.wait(20)
        started.stderr.close()
        assert list(disk.iterdir()) == []


@pytest.mark.long
class TestOnTheDouble:
    """GPUs and cuFile that are none: the calls and the data are real, the rates mean nothing. Not run on hardware."""

    def test_both_ways_to_a_gpu(self, disk: Path) -> None:
        found = probe(disk, double.environment(1, cufile=True, inherit=environment(ALONE)))
        for name in ("storage_gpu_cufile", "storage_gpu_staged"):
            assert found[name]["bytes_per_s"] > 0 and found[name]["to"].endswith("/gpu0"), found[name]

    def test_without_the_library_or_with_its_error_the_reason_is_given(self, disk: Path) -> None:
        found = probe(disk, double.environment(1, inherit=environment(ALONE)))
        assert "libcufile.so.0" in found["storage_gpu_cufile"]["na"] and found["storage_gpu_staged"]["na"] is None
        found = probe(disk, double.environment(1, cufile=True, cufile_open_error=5002, inherit=environment(ALONE)))
        assert "5002" in found["storage_gpu_cufile"]["na"]

    def test_wrong_bytes_have_no_rate(self, disk: Path) -> None:
        env = double.environment(1, cufile=True, cufile_wrong=1, inherit=environment(ALONE))
        line = [sys.executable, "-m", "collbench", "probe", "--measure", "--max-time", "0.1", "--format", "json", "--scratch", str(disk)]
        done = subprocess.run([*line, "--scratch-size", "16M"], cwd=ROOT, env=env, capture_output=True, text=True, timeout=120, check=False)
        rows = {row["channel"]: row for row in json.loads(done.stdout)["channels"]}
        assert done.returncode == 4 and rows["storage_gpu_cufile"]["flags"] == ["wrong_data"]
