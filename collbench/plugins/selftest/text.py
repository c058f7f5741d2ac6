"""Output of `collbench gate --self-test`: a line, or a JSON object, for each kind of slowdown of a simulated cluster."""

from __future__ import annotations

import json
from collections.abc import Iterator

from collbench.gating.paired import PAIRS
from collbench.plugins.selftest.self_test import LAUNCHES, NoiseRecord, SelfTestLine, TrialSetting
from collbench.report.frame import Column, Frame, Line, TextLayout
from collbench.report.screen import wrapped

_EXPECTED = {True: "found", False: "false alarms"}


def head(setting: TrialSetting, width: int | None = None) -> Iterator[Line]:
    """Yield the setting of the trials, and the titles."""
    cases = len(setting.scheme.of)
    if setting.paired:
        text = (
            f"{cases} cases; an old and a new stack interleaved, {PAIRS} pairs of launches in each of two allocations; only what exceeds "
            f"its limit in both counts"
        )
    else:
        text = (
            f"{cases} cases; baseline: {setting.allocations} allocations of {setting.launches} launches; candidate: three allocations of "
            f"{LAUNCHES} launches, and only what exceeds its limit in all three counts"
        )
    yield from wrapped([Line(text)], width)
    yield Line(_self_test(width).heading(), "head")


def line(outcome: SelfTestLine, format: str, width: int | None = None) -> Line:
    """Return one line of the self-test in `format`, table or json."""
    if format == "json":
        low, high = (100 * end for end in outcome.interval)
        fields = {"done": outcome.done, "wanted": outcome.expected, "found": outcome.found, "trials": outcome.trials}
        return Line(json.dumps({**fields, "percent": 100 * outcome.share, "percent_low": low, "percent_high": high}))
    return _self_test(width).line(outcome)


def _self_test(width: int | None) -> TextLayout[SelfTestLine]:
    """Return the layout of the lines. Each is printed as soon as its trials are done, so their widths are fixed."""
    columns: list[Column[SelfTestLine]] = [
        Column("", "change of the candidate", lambda each: each.done, cut=True, least=45),
        Column("", "", lambda each: _EXPECTED[each.expected], least=12),
        Column("", "%", lambda each: f"{100 * each.share:.2f}", right=True, least=6),
        Column("", "95 % interval", lambda each: "–".join(f"{100 * end:.2f}" for end in each.interval), least=13),
        Column("", "trials", lambda each: f"{each.found} of {each.trials}", drop=1, least=10),
    ]
    return TextLayout(Frame(columns, ()), width)


def limits_of(recorded: NoiseRecord) -> Iterator[Line]:
    """Yield the limitations of a table drawn from recorded allocations."""
    allocations, launches = len(recorded.allocation), len(recorded.launch)
    yield Line(
        f"drawn from {launches} launches of {allocations} recorded allocations: what is rarer than one of {launches} launches is not in "
        f"it, nor whether the cluster drifts; few allocations overstate false alarms"
    )
    if recorded.left_out:
        cases, them = ("1 case", "it") if recorded.left_out == 1 else (f"{recorded.left_out} cases", "them")
        yield Line(f"{cases} left out: fewer than four allocations have {them}")
