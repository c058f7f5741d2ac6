"""Takes out of gathered files what names a machine or its owner: the same thing gets the same stand-in everywhere in one archive."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Iterator

# What names a device or a host, by its shape. A PCI address (0000:19:00.0) has none of these.
_SHAPES = tuple(
    re.compile(shape, re.IGNORECASE)
    for shape in (
        r"\b0x[0-9a-f]{16}\b",  # GUID, as ibstat writes it
        r"[0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12}\b",  # UUID
        r"\b[0-9a-f]{32,64}\b",  # a container's name
        r"(?<![0-9a-f:])(?:[0-9a-f]{4}:){7}[0-9a-f]{4}(?![0-9a-f:])",  # GID
        r"(?<![0-9a-f:])(?:[0-9a-f]{1,4}:){1,7}:(?:[0-9a-f]{1,4}(?::[0-9a-f]{1,4}){0,6})?(?![0-9a-f:])",  # IPv6, short
        r"(?<![0-9a-f:])[0-9a-f]{4}(?::[0-9a-f]{4}){3}(?![0-9a-f:])",  # GUID, as the kernel writes it
        r"(?<![0-9a-f:])(?:[0-9a-f]{2}[:-]){5,19}[0-9a-f]{2}(?![0-9a-f:-])",  # MAC, InfiniBand's hardware address, PCI serial number
        r"(?<=\benx)[0-9a-f]{12}\b|(?<=\bwlx)[0-9a-f]{12}\b",  # MAC in an interface's name
    )
)
_IPV4 = re.compile(r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?![\w.])")
_SERIAL = re.compile(r"(serial number[: ]+|\[SN\][^:\n]*: *|\bunique_id +)(\S+)", re.IGNORECASE)
_SOMEBODY = re.compile(r"[\w.+-]+@[\w.-]+")
_KEPT_WORDS = re.compile(
    r"^(?:iommu|intel_|amd_|pci|numa|mitigations|isolcpus|nohz|rcu|huge|default_huge|transparent_huge|cgroup|systemd\.unified|nvidia|nouveau|amdgpu"
    r"|mlx|ib_|processor|cpu|idle|swiotlb|vfio|console|panic|module_blacklist|modprobe\.blacklist)",
    re.IGNORECASE,
)
_FLAG = re.compile(r"^[a-z]{2,12}$")  # quiet, nomodule, ro
_WHOLLY = ("/proc/sys/kernel/hostname", "/etc/hostname")
_MOUNTS = "/mounts"


class Mask:
    """Stand-ins for one archive. They are made with a secret that is thrown away, so nobody can try out which name gives which."""

    def __init__(self, hostname: str = "") -> None:
        self._secret = secrets.token_bytes(16)
        short = hostname.partition(".")[0]  # a name that is a word ("node", "intel") would take others' words with it
        names = [re.escape(name) for name in sorted({hostname, short}, key=len, reverse=True) if len(name) >= 4 and not name.isalpha()]
        self._host = re.compile(rf"(?<![\w]){'|'.join(names)}(?![\w])") if names else None

    def file(self, path: str, text: str) -> str:
        """The text of one of the machine's files."""
        if path in _WHOLLY:
            return f"host-{self._digits(text)[:8]}"
        if path.endswith(_MOUNTS):
            return "\n".join(line for line in map(_root_mount, text.splitlines()) if line)
        if path == "/proc/cmdline":
            text = " ".join(map(_kept_word, text.split()))
        return self.text(text, addresses=not path.endswith("/fw_ver"))

    def path(self, path: str) -> str:
        """A path: an interface may be named after its MAC."""
        for shape in _SHAPES:
            path = shape.sub(lambda match: self._like(match[0]), path)
        return path

    def text(self, text: str, addresses: bool = True) -> str:
        """Any text; `addresses`: four numbers with dots are an IP address, and not a version."""
        text = self.path(_SERIAL.sub(lambda match: match[1] + self._like(match[2]), text))
        text = _IPV4.sub(lambda match: self._address(match[0]), text) if addresses else text
        text = self._host.sub(lambda match: f"host-{self._digits(match[0])[:8]}", text) if self._host else text
        return _SOMEBODY.sub("somebody@somewhere", text)

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


def unmasked(hostname: str = "") -> Mask:
    """A mask that leaves everything as it is: for those who say so."""
    return _Open(hostname)


class _Open(Mask):
    def path(self, path: str) -> str:
        return path

    def file(self, path: str, text: str) -> str:
        return text

    def text(self, text: str, addresses: bool = True) -> str:
        return text


def _chosen(letter: str, stand_ins: Iterator[str]) -> str:
    return next(stand_ins) if letter.isalnum() else letter


def _root_mount(line: str) -> str:
    """What is mounted at /, and no server's name: whether the root is an overlay is all that is asked."""
    words = line.split()
    return f"{words[2]} / {words[2]} rw 0 0" if len(words) > 2 and words[1] == "/" else ""


def _kept_word(word: str) -> str:
    """A start parameter may hold anything: what is none of the known ones keeps its name alone."""
    name, equals, _ = word.partition("=")
    if _KEPT_WORDS.match(name) or (not equals and _FLAG.match(word)):
        return word
    return f"{name}=masked" if equals else "masked"
