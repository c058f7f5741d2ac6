"""What the ranks say to one another outside the measured path: what each has, gathered by rank 0, and what rank 0 decided."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from collbench.control.members import Crew, Member
from collbench.errors import USAGE, PeerFailed, RunFailed, UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from collbench.control.hub_end import HubEnd
    from collbench.control.spoke_end import SpokeEnd
    from collbench.control.watchdog import Watchdog

T = TypeVar("T")
_ASKING_S = 10.0  # longer than rank 0 takes to ask all
_LONGER = 1.5  # the others wait so much longer than rank 0 does, which alone knows who is missing


class Talk(Crew):
    """Every method is called by all ranks, in the same order; every wait has a deadline.

    rank, size   this rank and how many there are
    timeout_s    the deadline of every wait
    watchdog     told where this rank waits for others
    """

    def __init__(self, me: Member, size: int, timeout_s: float, watchdog: Watchdog) -> None:
        super().__init__(me)
        self.rank, self.size, self.timeout_s, self.watchdog = me.rank, size, timeout_s, watchdog
        self._step = 0
        self._patience_s = 0.0
        self._hub: HubEnd | None = None
        self._spoke: SpokeEnd | None = None

    @property
    def longest_s(self) -> float:
        """How long a rank waits for what rank 0 says."""
        return _LONGER * (self.timeout_s + self._patience_s) + _ASKING_S

    @contextmanager
    def patient(self, seconds: float) -> Iterator[None]:
        """Inside, every wait allows for so many seconds of honest work at the other ranks on top of the deadline."""
        self._patience_s = seconds
        try:
            yield
        finally:
            self._patience_s = 0.0

    def gather(self, value: T, what: str) -> list[T] | None:
        """Every rank's `value` (JSON), by rank, at rank 0; None elsewhere. `what` names the phase in errors."""
        found: dict[int, T] = {self.rank: value}
        self._gather(value, (), what, lambda rank, said, _: found.update({rank: said}))
        return [found[rank] for rank in range(self.size)] if self.rank == 0 else None

    def gather_array(self, array: NDArray[np.float64], what: str) -> list[NDArray[np.float64]] | None:
        """Every rank's array (float64, any number of rows of equal length), by rank, at rank 0; None elsewhere."""
        found = {self.rank: array}
        self.gather_into(array, what, lambda rank, one: found.update({rank: one}))
        return [found[rank] for rank in range(self.size)] if self.rank == 0 else None

    def gather_into(self, array: NDArray[np.float64], what: str, take: Callable[[int, NDArray[np.float64]], None]) -> None:
        """Gives every other rank's array (float64) to `take` at rank 0, one by one as they come: nothing else keeps them.

        An array is read-only: a view of what came.
        """
        import numpy as np

        def taken(rank: int, shape: Any, raw: Sequence[bytes | memoryview]) -> None:
            try:
                one = np.frombuffer(raw[0], np.float64).reshape(shape)
            except (ValueError, TypeError, IndexError) as error:
                raise RunFailed(f"{what}: {self.members[rank]} sent no array of {shape} ({error}): the ranks' versions differ") from None
            take(rank, one)

        self._gather(list(array.shape), (array.tobytes(),), what, taken)  # a copy: the caller may go on with its own

    def _gather(self, value: Any, raw: Sequence[bytes | memoryview], what: str, take: Callable[..., None]) -> None:
        self._step += 1
        if self._hub:
            with self.watchdog.elsewhere(what):
                self._hub.collect(self._step, what, self._patience_s, take)
        elif self._spoke:
            self._spoke.say(self._step, what, value, raw)

    def decide(self, value: T, what: str) -> T:
        """Rank 0's `value` (JSON) at every rank; the others' is ignored."""
        self._step += 1
        if self._hub:
            self._hub.tell(self._step, value)
        elif self._spoke:
            with self.watchdog.elsewhere(what):
                heard: T = self._spoke.hear(self._step, what, self.timeout_s, self.longest_s)
            return heard
        return value

    def agree(self, value: T, what: str) -> list[T]:
        """Every rank's `value` (JSON), by rank, at every rank. A barrier, too."""
        return self.decide(self.gather(value, what) or [], what)

    def first(self, reason: T | None, what: str) -> T | None:
        """The first reason that any rank has, the same at all ranks; None when no rank has one."""
        return next((found for found in self.agree(reason, what) if found is not None), None)

    def refuse(self, sentence: str) -> NoReturn:
        """End the launch as bad input, for a reason that all ranks know and call this with; rank 0 alone reports it.

        Raises UsageError at rank 0, PeerFailed elsewhere: a rank that ended with a reason of its own might be reported instead of rank 0.
        """
        raise PeerFailed(sentence, USAGE) if self.rank else UsageError(sentence)

    def remarks(self) -> list[str]:
        """At rank 0: who knocked without being of this launch, who came twice, where everybody could have knocked; one sentence each."""
        return self._hub.remarks() if self._hub else []
