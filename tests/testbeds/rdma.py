"""A small virtual machine with real InfiniBand verbs: software RDMA (rxe) over its network card, with this machine's files as its root.

It is emulated, so it needs no KVM, and its speeds mean nothing.
"""

import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.testbeds.bed import Bed, Finished, Missing

VM = Path(__file__).parent / "vm"
MODULES = ("virtio_pci", "9pnet_virtio", "9p")  # modules that are needed to mount the root; the others are loaded from there


class RdmaVm(Bed):
    """A VM that boots at each `run`, 4 to 8 s. `speed` in Mb/s is that of its card and of rxe0; `mtu` 9000 gives InfiniBand's 4096."""

    tools = ("qemu-system-x86_64", "modprobe", "busybox", "cpio", "rdma", "ibv_devinfo")
    package = "qemu-system-x86 linux-image-amd64 kmod busybox-static cpio iproute2 rdma-core ibverbs-utils ibverbs-providers"

    def __init__(self, speed: int = 100_000, mtu: int = 9000) -> None:
        self.speed, self.mtu = speed, mtu

    @property
    def share(self) -> Path:
        return self.folder / "share"

    def up(self) -> None:
        self.version = _kernel()
        self.share.mkdir()
        self._ramdisk()

    def run(self, command: Sequence[str], timeout: float = 60) -> Finished:
        """Boot, run the command as root in the VM, and return its output; code 124 if the VM did not end in time."""
        for name in ("code", "stdout", "stderr"):
            (self.share / name).unlink(missing_ok=True)
        (self.share / "command").write_text(shlex.join(command) + "\n")
        booted = self.call(self._qemu(), timeout)
        ended = _text(self.share / "code").strip()
        console = "" if ended else f"{booted.stderr}\n{_text(self.folder / 'console')[-2000:]}"
        code = int(ended) if ended else booted.returncode or 1
        return Finished(list(command), code, _text(self.share / "stdout"), _text(self.share / "stderr") + console)

    def _qemu(self) -> list[str]:
        card = f"virtio-net-pci,netdev=net,speed={self.speed},duplex=full,host_mtu={self.mtu},romfile="
        return [
            *(
                "qemu-system-x86_64", "-accel", "tcg", "-cpu", "max", "-m", "512", "-nodefaults", "-no-user-config", "-display", "none",
                "-no-reboot",
            ),
            *(
                "-serial", f"file:{self.folder}/console", "-kernel", f"/boot/vmlinuz-{self.version}", "-initrd",
                str(self.folder / "ramdisk"),
            ),
            *("-append", "console=ttyS0 quiet panic=-1 net.ifnames=0 mitigations=off tsc=reliable"),
            *("-virtfs", "local,path=/,mount_tag=root,security_model=none,readonly=on,multidevs=remap"),
            *("-virtfs", f"local,path={self.share},mount_tag=share,security_model=none,multidevs=remap"),
            *("-netdev", "user,id=net,restrict=on", "-device", card),
        ]  # fmt: skip

    def _ramdisk(self) -> None:
        tree = self.folder / "tree"
        for name in ("bin", "dev", "proc", "sys", "root", "modules"):
            (tree / name).mkdir(parents=True)
        shutil.copy(shutil.which("busybox") or "", tree / "bin/busybox")
        shutil.copy(VM / "init.sh", tree / "init")
        (tree / "start").write_text(f"{VM / 'start.sh'}\n")
        modules = self._modules()
        for module in modules:
            shutil.copy(module, tree / "modules")
        (tree / "modules/order").write_text("".join(f"{module.name}\n" for module in modules))
        names = "\n".join(str(path.relative_to(tree)) for path in [tree, *sorted(tree.rglob("*"))])
        with (self.folder / "ramdisk").open("wb") as ramdisk:
            subprocess.run(["cpio", "-o", "-H", "newc", "--quiet"], cwd=tree, input=names.encode(), stdout=ramdisk, timeout=30, check=True)

    def _modules(self) -> list[Path]:
        """Return the modules with their dependencies, in the order of loading."""
        lines = [line for name in MODULES for line in self.must("modprobe", "-S", self.version, "--show-depends", name).splitlines()]
        return [Path(words[1]) for line in dict.fromkeys(lines) if (words := line.split())[0] == "insmod"]


def _kernel() -> str:
    """Return the newest installed kernel that has its modules; this machine may run another one."""
    versions = [path.name.removeprefix("vmlinuz-") for path in Path("/boot").glob("vmlinuz-*")]
    there = [version for version in versions if any(Path(f"/lib/modules/{version}").rglob("rdma_rxe.ko*"))]
    if not there:
        raise Missing(f"no kernel with rdma_rxe in /boot and /lib/modules: apt-get install {RdmaVm.package}")
    return max(there, key=lambda version: [int(part) if part.isdigit() else 0 for part in version.replace("-", ".").split(".")])


def _text(file: Path) -> str:
    return file.read_text(errors="replace") if file.exists() else ""
