"""What the process returns for a verdict, or where it failed, in the style of whoever asks."""

from __future__ import annotations

from collbench.errors import FINE
from collbench.gate.verdict import ACCEPTED, PASSED, REGRESSION, WRONG_DATA, Verdict

OWN, NAGIOS, PROLOG = STYLES = ("collbench", "nagios", "prolog")
OK, WARNING, CRITICAL, UNKNOWN = range(4)  # monitoring-plugins.org, Development Guidelines, "Plugin Return Codes"


def exit_code(verdict: Verdict, style: str) -> int:
    """collbench's own; nagios: 0 ok, 1 warning, 2 critical, 3 unknown; prolog: 1 for what is confirmed or wrong, else 0."""
    if style == NAGIOS:
        return nagios_state(verdict)
    if style == PROLOG:
        return int(verdict.result in (REGRESSION, WRONG_DATA))
    return verdict.exit_code


def nagios_state(verdict: Verdict) -> int:
    """CRITICAL: confirmed or wrong; WARNING: nothing but suspects or accepted slowdowns; UNKNOWN: no verdict for any other reason."""
    if verdict.result in (REGRESSION, WRONG_DATA):
        return CRITICAL
    if verdict.result == PASSED:
        return WARNING if verdict.count(ACCEPTED) else OK
    return WARNING if verdict.waits else UNKNOWN


def code_of_failure(own: int, style: str) -> int:
    """The exit code where there is no verdict at all, but bad input, a defect or a signal, for which `own` is collbench's.

    A tool's failure drains no node: a prolog returns 0, and a monitor hears that nothing is known.
    """
    if own == FINE or style == OWN:
        return own
    return UNKNOWN if style == NAGIOS else FINE
