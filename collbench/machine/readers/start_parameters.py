"""The kernel's start parameters (/proc/cmdline) as they may be shown: they can hold passwords, tokens, hosts and addresses."""

from __future__ import annotations

import re

MASKED = "masked"
_KNOWN = re.compile(
    r"^(?:(?:iommu|intel_|amd_|pci|numa|mitigations|isolcpus|nohz|rcu|huge|default_huge|transparent_huge|cgroup|systemd\.unified|nvidia|nouveau"
    r"|amdgpu|mlx|ib_|processor|cpu|idle|swiotlb|vfio)[\w.-]*|console|panic|module_blacklist|modprobe\.blacklist)$",
    re.IGNORECASE,
)
_FLAG = re.compile(r"^(?:auto|debug|no(?:apic|exec|hz|lapic|modeset|module|pat|pcid|pti|smt|splash)|pti|quiet|ro|rw|single|splash)$")
_NAME = re.compile(r"^[A-Za-z][\w.-]{0,60}$")
_SECRET = re.compile(r"passw|secret|token|key|credential", re.IGNORECASE)


def shown(line: str) -> str:
    """The line without what nobody else may know; a line that was shown stays as it is.

    Known parameters stay whole. Others keep their names, as what they are set to may be anything; so may a bare word, and
    what stands behind "--", which is for the first program.
    """
    of_kernel, dashes, of_program = f" {' '.join(line.split())} ".partition(" -- ")
    words = [_shown(word) for word in of_kernel.split()]
    return " ".join([*words, *(["--", MASKED] if dashes and of_program.strip() else [])])


def _shown(word: str) -> str:
    name, equals, _ = word.partition("=")
    if _FLAG.match(word) or (_KNOWN.match(name) and not _SECRET.search(name)):
        return word
    return f"{name}={MASKED}" if equals and _NAME.match(name) else MASKED
