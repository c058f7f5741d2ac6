"""How a launch ends when something broke: rank 0 says why; then every rank ends by itself, then those of a node that do not.

A rank that is stopped, or inside a call that never returns, cannot be asked. The main thread has two seconds to leave with the sentence;
then this process ends, after it has killed those of its node that are still there. Rank 0's main thread has one second to say why, as it
does for a signal, which finds it inside a loop: then it is said for it, before the other ranks end and a launcher kills this one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from collbench.control.node import Node

PATIENCE_S, _OWN_S, _WORD_S = 2.0, 1.5, 1.0


class Ending:
    """end(sentence, code) ends this process at once; it does not return. speak(sentence, code) says why, unless somebody has.

    for_all: whether this rank says it for all of them
    """

    def __init__(self, end: Callable[[str, int], None], speak: Callable[[str, int], None] | None = None, for_all: bool = False) -> None:
        self._end, self._speak, self._for_all = end, speak, for_all
        self._word_at = math.inf
        self._why: tuple[str, int] = ("", 0)
        self._at: float | None = None
        self._node: Node | None = None

    @property
    def begun(self) -> bool:
        """Whether the launch is about to end."""
        return self._at is not None

    def speak(self, sentence: str, code: int) -> None:
        """Says why. Before anybody ends: then a launcher may kill this process at any moment."""
        if self._speak:
            self._speak(sentence, code)

    def begin(self, sentence: str, code: int, node: Node) -> None:
        """Everything ends, for this reason; the first one counts. Who watches over others lets them go first."""
        if self._at is None:
            patience_s = PATIENCE_S if node.descriptors else _OWN_S
            now = time.monotonic()
            self._why, self._at, self._node = (sentence, code), now + patience_s, node
            if self._for_all:
                self._word_at = now + _WORD_S

    def tick(self, now: float) -> float:
        """Ends what is due; returns when it wants to be called again."""
        if self._at is None:
            return math.inf
        if now >= self._word_at:
            self._word_at = math.inf
            self.speak(*self._why)
        if now >= self._at:
            if self._node:
                self._node.kill()
            self._end(*self._why)
        return min(self._at, self._word_at)

    def leave(self) -> None:
        """The main thread leaves by itself, and takes those of its node along that are stopped; the others end as it does."""
        if self._node:
            self._node.kill(self._node.stopped())
