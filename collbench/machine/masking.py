"""Takes out of gathered files what names a machine or its owner: the same thing gets the same stand-in everywhere in one archive."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator

from collbench.machine.readers.start_parameters import MASKED, shown

# What names a device, a host or a person, by its shape. A PCI address (0000:19:00.0) has none of these. A name behind a word is in
# the group "value"; the first that fits counts, and what was put in is not looked at again.
_SHAPES = re.compile(
    "|".join(
        (
            r"(?P<kept>(?:\bfw_ver|firmware version):[ \t]*\S+)",  # four numbers with dots, and no address
            # a serial number, fields of a card's own table (VPD), an interface's second name
            r"(?:\bserial(?: number)?[ \t]*:[ \t]*|\bserial number[ \t]+|\[(?:SN|[VY][0-9A-Z])\][^:\n]*:[ \t]*|\balias[ \t]+)"
            r"(?P<line>\S[^\n]*)",
            r"\b(?:unique_id|portid|portname|switchid|link-netns)[ \t]+(?P<word>\S+)",
            r"(?P<shape>0x[0-9a-f]{16}\b"  # GUID, as ibstat writes it
            r"|[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}\b"  # UUID
            r"|\b[0-9a-f]{32,64}\b"  # a container's name
            r"|(?<![0-9a-f:])(?:[0-9a-f]{1,4}:){7}[0-9a-f]{1,4}(?![0-9a-f:])"  # GID, IPv6, and EUI-64 in bytes
            r"|(?<![0-9a-f:])(?:[0-9a-f]{1,4}:){1,7}:(?:[0-9a-f]{1,4}(?::[0-9a-f]{1,4}){0,6})?(?![0-9a-f:])"  # IPv6, short
            r"|(?<![0-9a-f:])[0-9a-f]{4}(?::[0-9a-f]{4}){3}(?![0-9a-f:])"  # GUID, as the kernel writes it
            r"|(?<![0-9a-f:])(?:[0-9a-f]{2}[:-]){5,19}[0-9a-f]{2}(?![0-9a-f:-])"  # MAC, InfiniBand's hardware address
            r"|(?<=\benx)[0-9a-f]{12}\b|(?<=\bwlx)[0-9a-f]{12}\b)",  # MAC in an interface's name
            r"(?P<ipv4>(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?![\w.]))",
            r"(?<![\w.+-])(?<!\d: )(?P<somebody>[\w.+-]+@[\w.-]+)",  # "7: vlan5@eth0:" is two interfaces
        )
    ),
    re.IGNORECASE,
)
_WHOLLY = ("/proc/sys/kernel/hostname", "/etc/hostname")
# What readers know containers and jobs by (see readers.linux_system); the rest of a path names jobs, users and services.
_KNOWN_GROUP = re.compile(r"^(?:kubepods|libpod-|docker-|docker$|lxc|slurm|job_(?=\d))")


class Mask:
    """Stand-ins for one archive. They are made with a secret that is thrown away, so nobody can try out which name gives which."""

    def __init__(self, hostname: str = "") -> None:
        self._secret = os.urandom(16)
        short, _, domain = hostname.partition(".")
        # A name that is a word ("node", "intel") would take others' words with it.
        names = [re.escape(name) for name in (hostname, short) if len(name) >= 4 and not name.isalpha()]
        names += [rf"[\w.-]*\.{re.escape(domain)}"] if "." in domain else []
        self._host = re.compile(rf"(?<![\w])(?:{'|'.join(names)})(?![\w])") if names else None

    def file(self, path: str, text: str) -> str:
        """The text of one of the machine's files."""
        if path in _WHOLLY:
            return self._host_like(text)
        if path.endswith("/mounts"):
            return "\n".join(line for line in map(_root_mount, text.splitlines()) if line)
        if path.endswith("/cgroup"):
            return "\n".join(map(_known_group, text.splitlines()))
        if path.endswith("/fw_ver"):
            return text
        return self.text(shown(text) if path == "/proc/cmdline" else text)

    def path(self, path: str) -> str:
        """A path: an interface may be named after its MAC, a device after a UUID. Words of the kernel's stay."""
        return _SHAPES.sub(lambda match: self._like(match[0]) if match["shape"] else match[0], path)

    def text(self, text: str) -> str:
        """Any text."""
        text = _SHAPES.sub(self._stand_in, text)
        return self._host.sub(lambda match: self._host_like(match[0]), text) if self._host else text

    def _stand_in(self, match: re.Match[str]) -> str:
        kind = match.lastgroup or ""
        if kind == "kept":
            return match[0]
        at = match.start(kind) - match.start()
        value = match[kind]
        put_in = self._address(value) if kind == "ipv4" else "somebody@somewhere" if kind == "somebody" else self._like(value)
        return match[0][:at] + put_in

    def _host_like(self, name: str) -> str:
        return f"host-{self._digits(name)[:8]}"

    def _like(self, name: str) -> str:
        """Other digits in the same shape; what is all zeros or all ones means nothing and stays."""
        prefix = "0x" if name.startswith("0x") else ""
        body = name.removeprefix(prefix)
        digits = [letter.lower() for letter in body if letter.isalnum()]
        if set(digits) <= {"0"} or set(digits) <= {"f"}:
            return name
        stand_ins = iter(self._digits("".join(digits)) * (len(body) // 64 + 1))
        return prefix + "".join(_chosen(letter, stand_ins) for letter in body)

    def _address(self, address: str) -> str:
        digits = self._digits(address)
        kept = address.startswith(("127.", "0.", "255."))
        return address if kept else "10." + ".".join(str(int(digits[at : at + 2], 16)) for at in (0, 2, 4))

    def _digits(self, name: str) -> str:
        return hashlib.blake2b(name.encode(), key=self._secret, digest_size=32).hexdigest()


def _chosen(letter: str, stand_ins: Iterator[str]) -> str:
    return next(stand_ins) if letter.isalnum() else letter


def _root_mount(line: str) -> str:
    """What is mounted at /, and no server's name: whether the root is an overlay is all that is asked."""
    words = line.split()
    return f"{words[2]} / {words[2]} rw 0 0" if len(words) > 2 and words[1] == "/" else ""


def _known_group(line: str) -> str:
    """ "0::/masked/slurm/masked/job_0" of "0::/system.slice/slurmstepd.scope/uid_1000/job_77"."""
    start, colon, path = line.rpartition(":")
    known = [_KNOWN_GROUP.match(part) for part in path.split("/") if part]
    return f"{start}{colon}/" + "/".join(match[0].replace("job_", "job_0") if match else MASKED for match in known)
