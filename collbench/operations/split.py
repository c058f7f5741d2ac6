"""How the ranks of a job fall into groups that run the same operation at the same time, in the syntax of nccl-tests' NCCL_TESTS_SPLIT."""

from __future__ import annotations

from dataclasses import dataclass

from collbench.errors import UsageError


@dataclass(frozen=True)
class Split:
    """Ranks with the same colour form a group; the word and number are nccl-tests'.

    word    "AND" (colour: rank & number), "OR" (rank | number), "MOD" (rank % number), "DIV" (rank // number)
    """

    word: str
    number: int

    def __str__(self) -> str:
        """As users type it: "MOD 8", "AND 0x7"."""
        return f"{self.word} {self.number if self.word in ('MOD', 'DIV') else hex(self.number)}"

    def colour(self, rank: int) -> int:
        """What the ranks of a group have in common."""
        of = {"AND": rank & self.number, "OR": rank | self.number}
        return of[self.word] if self.word in of else rank % self.number if self.word == "MOD" else rank // self.number

    def groups(self, n: int) -> tuple[tuple[int, ...], ...]:
        """The groups of n ranks, by colour. Raises UsageError where a group would be empty, or they are not equally large."""
        found: dict[int, list[int]] = {}
        for rank in range(n):
            found.setdefault(self.colour(rank), []).append(rank)
        if len({len(ranks) for ranks in found.values()}) > 1:
            raise UsageError(f"--split '{self}' makes groups of different sizes of {n} ranks: choose a number that divides them evenly")
        return tuple(tuple(ranks) for _, ranks in sorted(found.items()))


def parse_split(text: str) -> Split:
    """The split that a user typed: "MOD 8". Raises UsageError."""
    word, _, number = text.strip().partition(" ")
    return Split(word.upper(), int(number, 0))
