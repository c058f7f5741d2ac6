"""What came of a faulty run, and what of it is not as it has to be."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.faults.matrix.plan import SIZES, TIMEOUT_S, WITHIN_S, Case

_TELLER = re.compile(r"^(?:rank \d+ \([^)]*\): )+|^rank \d+ on \S+ cannot connect to (?=rank 0)")
_SEEN_BY = re.compile(r"; reported by rank \d+( \([^)]*\))?")
_WAITS = "waiting for rank"  # a note before the deadline
_OF_ITSELF = "look at the ranks that print no such line"  # as long as the ranks have not met, each knows only itself
_IN_FULL = re.compile(r"\brank (\d+) \(")
_NUMBERED = re.compile(r"\branks? (\d+(?:(?:, | and )\d+)*)")
_PHASES = {
    "init": re.compile(r"\bopen(ing|s)? "),
    "warm-up": re.compile(r"warm-up"),
    "timed": re.compile(r"measuring|timed"),
    "gather": re.compile(r"gathering samples|the next samples"),  # as rank 0 waits for the others, and as they wait for it
    "between": re.compile(r"work between two phases"),
}
# Other phases that may be reported. Without the control plane a rank measures until the next message; memory may run out in the work
# around a measurement and before gathering.
_ALSO = {
    ("control", "warm-up"): ("gather",), ("control", "timed"): ("gather",), ("memory", "timed"): ("between",),
    ("memory", "gather"): ("timed", "between"),
}  # fmt: skip
_ONE_WAY_S = 9.0  # p2p's cases of one direction are measured to their end where packets of the other one are lost
_NIC = ("nic 3 s", "nic 60 s")
_PATH_NAMED = re.compile(
    r"(?:packets above \d+ bytes do not pass|the path|packets) (?:from|between) \S+?h\d+ (?:to|(?P<both>and)) \S+?h(?P<target>\d+)"
    r"(?=(?P<problem> are lost:| do not arrive,| drops packets:|: check the MTU))"
)
_LOST = (" are lost:", " drops packets:")
_PROBLEMS = {
    "loss 1": _LOST, "loss 5": _LOST, "loss 30": _LOST, "nic 3 s": _LOST, "nic 60 s": _LOST, "mtu": (": check the MTU", " drops packets:"),
    "one way": (" do not arrive,", " drops packets:"),
}  # fmt: skip
# Before the ranks have met, each knows only that it does not reach the others.
_UNKNOWN = (
    " drops packets; ", "the path between them carries nothing", "did not join within", "cannot connect to rank 0 at",
    "which drops packets, lost its last message",
)  # fmt: skip
_CUT = ("is down, or the path between", "is on a host that does not answer", "lost its control connection")
KILLED = 128 + 9  # a rank inside a call that does not come back is ended by the first rank of its host
_DISK = re.compile(r"[Nn]o space left|has \d+ B left")


@dataclass(frozen=True)
class Observation:
    """The state at the end of a run.

    `said`       collbench's own sentences on stderr
    codes        exit codes of the launcher, or by rank where there is none
    stored_code  run.json's; None if it is missing
    finished     sizes that rank 0 had stored before the end, kept: those that are read back; wrong: of those the wrong ones, with why
    flags        all flags of the rows
    seconds      from the fault to the end of the last rank; launcher_s: of the launcher
    left         processes, ports and files of ours that were not there before
    launchers    whether the launcher's own words name the victim
    files        those of launchers and libraries in /tmp, and in /dev/shm those of unknown names
    traceback    whether a traceback was shown
    """

    said: Sequence[str]
    codes: Sequence[int]
    stored_code: int | None
    finished: Sequence[int]
    kept: Sequence[int]
    wrong: Sequence[str]
    flags: Sequence[str]
    seconds: float
    launcher_s: float
    left: Sequence[str]
    files: Sequence[str] = ()
    launchers: bool = False
    struck: bool = True
    traceback: bool = False


@dataclass(frozen=True)
class Outcome:
    """A case and what came of it; `amiss`: what is not as it has to be, in words."""

    fault: str
    phase: str
    library: str
    launcher: str
    victim: int
    after_s: float
    said: list[str]
    codes: list[int]
    stored_code: int | None
    finished: int
    kept: int
    seconds: float
    launcher_s: float
    left: list[str]
    files: list[str]
    amiss: list[str]
    load: float
    date: str = ""
    flags: list[str] = field(default_factory=list)

    @property
    def case(self) -> Case:
        return Case(self.fault, self.phase, self.library, self.launcher, self.victim, self.after_s)

    @property
    def right(self) -> bool:
        return not self.amiss


def accused(sentence: str) -> frozenset[int]:
    """Return the ranks that a sentence blames; the rank that reports is one of them only if it names no other.

    Those it names in full are meant ("rank 2 (h2, pid 7)"), and only where there are none those it numbers ("rank 2 of 4 did not join").
    """
    if _OF_ITSELF in sentence or sentence.startswith(_WAITS):
        return frozenset()
    actual = _SEEN_BY.sub("", _TELLER.sub("", sentence))
    named = next((found for text in (actual, sentence) for form in (_IN_FULL, _NUMBERED) if (found := form.findall(text))), [])
    return frozenset(int(number) for found in named for number in re.findall(r"\d+", found))


def failures(said: Sequence[str]) -> list[str]:
    """Return the sentences that report the fault: those that name a rank or one that did not move, or a disk that is full."""
    return [sentence for sentence in said if accused(sentence) or _OF_ITSELF in sentence or _DISK.search(sentence)]


def judged(case: Case, seen: Observation) -> list[str]:
    """What is not as it has to be, in words; nothing where all is."""
    if not seen.struck:
        return _of_a_sound_run(seen) if not case.phase else ["the fault never struck"]
    if case.of_path:
        return _of_a_path(case, seen)
    found = _of_ends(case, seen) + _of_cases(case, seen)
    over = len(seen.finished) == len(SIZES) and seen.stored_code == 0
    if not case.phase and (over or (case.fault in ("memory", "disk") and set(seen.codes) == {0})):
        return found  # no more output is read
    if case.harmless:
        return found + _of_a_pause(case, seen)
    return found + (_of_data(case, seen) if case.fault == "wrong data" else _of_sentences(case, seen) + _of_codes(case, seen))


def _of_a_sound_run(seen: Observation) -> list[str]:
    return [] if set(seen.codes) == {0} else [f"it ended with {list(seen.codes)} before anything was done to it"]


def _of_ends(case: Case, seen: Observation) -> list[str]:
    goes_on = case.harmless or case.fault == "wrong data"
    found = [f"{what} was left" for what in seen.left]
    if seen.seconds > WITHIN_S and not goes_on:
        found.append(f"the last rank ended after {seen.seconds:.1f} s, not within {WITHIN_S:g} s")
    # A launcher with lost connections can only wait until they return.
    if seen.launcher_s > WITHIN_S and not goes_on and case.fault != "link":
        found.append(f"the launcher ended after {seen.launcher_s:.1f} s, not within {WITHIN_S:g} s")
    return found + (["a traceback was shown"] if seen.traceback else [])


def _of_cases(case: Case, seen: Observation) -> list[str]:
    lost = sorted(set(seen.finished) - set(seen.kept))
    found = [f"the cases of {lost} bytes were stored and are lost"] if lost else []
    if len(seen.finished) < case.finished:
        found.append(f"{len(seen.finished)} cases were stored before the fault, and had to be {case.finished}")
    return found


def _of_a_pause(case: Case, seen: Observation) -> list[str]:
    found = [] if set(seen.codes) == {0} else [f"it ended with {list(seen.codes)}, though nothing lasted as long as the deadline"]
    if case.fault == "paused" and case.phase in ("warm-up", "timed", "gather") and "straggler" not in seen.flags:
        found.append("no row is flagged as a straggler's")
    if case.fault == "link for a moment" and case.phase in ("warm-up", "timed") and "link_flapped" not in seen.flags:
        found.append("no row has the flag link_flapped")
    return found


def _of_a_path(case: Case, seen: Observation) -> list[str]:
    """A run over a bad path either comes to its end, or ends in time and names the path, or nothing; never a rank alone."""
    found = _of_cases(case, seen) + [f"{what} was left" for what in seen.left] + (["a traceback was shown"] if seen.traceback else [])
    actual = [sentence for sentence in seen.said if sentence.startswith("hang: ") or accused(sentence)]
    found += [f"{sentence!r} is a false name" for sentence in actual if findings_of(case, sentence) is None]
    if set(seen.codes) == {0}:
        return found
    if case.harmless and case.phase:  # at a random moment a start on a busy machine may exceed so short a deadline by itself
        return [*found, f"it ended with {list(seen.codes)}, though nothing lasted as long as the deadline"]
    within_s = WITHIN_S + (_ONE_WAY_S if case.library == "socket" else 0.0)
    if not case.fault.startswith("loss") and seen.seconds > within_s:
        found.append(f"the last rank ended after {seen.seconds:.1f} s, not within {within_s:g} s")
    return found + ([] if actual else ["no sentence reports it"])


def findings_of_all(case: Case, said: Sequence[str]) -> str:
    """Return "cause" if any sentence names the cause, "unknown" if some report only that the path may be it, else "not named"."""
    found = {findings_of(case, sentence) for sentence in said if sentence.startswith("hang: ")}
    return next((word for word in ("cause", "unknown") if word in found), "not named")


def findings_of(case: Case, sentence: str) -> str | None:
    """Return what a sentence reports of a path: "cause" if it names it, "unknown"; None if it names a rank, or another path or cause."""
    if named := _PATH_NAMED.search(sentence):
        both_ways = named["both"] or case.fault in _NIC
        return (
            "cause" if named["problem"] in _PROBLEMS.get(case.fault, ()) and (both_ways or int(named["target"]) == case.host + 1) else None
        )
    if _OF_ITSELF in sentence or any(words in sentence for words in _UNKNOWN):
        return "unknown"
    cut = case.fault in ("one way", *_NIC) and any(words in sentence for words in _CUT)
    return "cause" if cut else None


def _of_data(case: Case, seen: Observation) -> list[str]:
    """Wrong data do not stop the run."""
    found = [f"a row has {detail!r}" for detail in seen.wrong if accused(detail) not in case.suspects or "first at 7: wanted" not in detail]
    after = len(seen.kept) - case.finished
    if case.phase and (len(seen.wrong) != after or not after):
        found.append(f"{len(seen.wrong)} rows are wrong, and had to be {after}")
    if case.phase and seen.stored_code != 4:
        found.append(f"run.json has {seen.stored_code}, not 4")
    return found


def _of_sentences(case: Case, seen: Observation) -> list[str]:
    actual = failures(seen.said)
    if not actual:
        return [f"no sentence reports it{f': {case.launcher}, which names the rank, was quicker' if seen.launchers else ''}"]
    if case.fault == "disk":
        return [] if any(_DISK.search(sentence) for sentence in actual) else ["no sentence reports the full disk"]
    found = [f"{sentence!r} names the wrong rank" for sentence in actual if not _may_be(case, accused(sentence))]
    if not any(accused(sentence) for sentence in actual) and (case.phase or not any(_OF_ITSELF in sentence for sentence in actual)):
        found.append("no rank is named")
    phases = [_PHASES[phase] for phase in (case.phase, *_ALSO.get((case.fault, case.phase), ())) if phase]
    if phases and not any(phase.search(sentence) for phase in phases for sentence in actual):
        found.append(f"no sentence names the phase {case.phase}")
    return found


def _may_be(case: Case, ranks: frozenset[int]) -> bool:
    return any(ranks <= suspects for suspects in case.suspects)


def _of_codes(case: Case, seen: Observation) -> list[str]:
    wanted = 2 if case.fault == "disk" and case.phase == "init" else 4  # before the first case the user can fix it
    if case.launcher == "by hand":
        others = {code for rank, code in enumerate(seen.codes) if not (case.ended and rank == case.victim)}
        fine = others <= ({wanted, KILLED} if case.phase else {2, 4, KILLED}) and not (seen.codes[0] == KILLED and case.victim != 0)
        found = [] if fine else [f"the other ranks ended with {sorted(others)}, not {wanted}"]
    else:
        found = ["the launcher ended with 0"] if 0 in seen.codes else []
    writes = case.phase not in ("init", "") and case.fault != "disk" and not (case.ended and case.victim == 0)
    return found + ([f"run.json has {seen.stored_code}, not 4"] if writes and seen.stored_code != 4 else [])


def limit_words() -> str:
    return f"With --timeout {TIMEOUT_S:g}, all processes must end within {WITHIN_S:g} s"
