"""What the process returns for a verdict, in the style of whoever asks."""

from __future__ import annotations

from collbench.gate.verdict import PASSED, REGRESSION, WRONG_DATA, Verdict

STYLES = ("collbench", "nagios", "prolog")
_NAGIOS = {PASSED: 0, REGRESSION: 2, WRONG_DATA: 2}


def exit_code(verdict: Verdict, style: str) -> int:
    """collbench's own; nagios: 0 ok, 1 warning (suspects), 2 critical, 3 unknown; prolog: 1 for what is confirmed or wrong, else 0."""
    if style == "nagios":
        return _NAGIOS.get(verdict.result, 3)
    if style == "prolog":
        return int(verdict.result in (REGRESSION, WRONG_DATA))
    return verdict.exit_code
