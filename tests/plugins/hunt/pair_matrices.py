"""Made-up matrices of pairs: places with rates of their own, each pair as slow as the slower end, and noise as it was measured.

The noise of a case is σ·t₄/√2 (heavy tails, as between launches), one case in ten has a second mode 8 % slower that it takes in a fifth
of the cases, places differ by 0.5 %, and every round of the circle method is off by a common σ.
"""

import numpy as np

from collbench.operations.groups import circle_round
from collbench.plugins.hunt.candidates import find_candidates
from collbench.plugins.hunt.records import PairMatrix

RATE, LATENCY_S = 10e9, 20e-6


class SyntheticMatrix:
    """A made cluster: change `rates` [n × n] and `latencies`, then take matrices of it."""

    def __init__(self, n, seed=0, sigma=0.015, hosts=()):
        self.n, self.sigma = n, sigma
        self.hosts = tuple(hosts or (f"node{number + 1}" for number in range(n)))
        self.names = tuple(f"rank {rank} ({host})" for rank, host in enumerate(hosts)) or self.hosts
        self.drawn = np.random.default_rng(seed)
        self.rates, self.latencies = np.full((n, n), RATE), np.full((n, n), LATENCY_S)
        self.modes = self.drawn.random((n, n)) < 0.1
        self.places = self.drawn.normal(0, 0.005, n)

    def slow(self, place, ratio=0.5, sends=True, receives=True):
        """One place's rate, as a bound of all its pairs."""
        if sends:
            self.rates[place] = np.minimum(self.rates[place], RATE * ratio)
        if receives:
            self.rates[:, place] = np.minimum(self.rates[:, place], RATE * ratio)
        return self

    def across(self, groups, ratio):
        """Pairs of places in different groups are slower."""
        apart = np.array(groups)[:, None] != np.array(groups)[None, :]
        self.rates[apart] *= ratio
        self.latencies[apart] /= ratio
        return self

    def matrix(self):
        n, shape = self.n, (self.n, self.n)
        bandwidth = self.rates * np.exp(np.minimum.outer(self.places, self.places) + self._noise(self.sigma))
        slower = self._noise(2 * self.sigma)
        latency = self.latencies * np.exp(np.triu(slower, 1) + np.triu(slower, 1).T)
        for figures in (bandwidth, latency):
            figures[np.arange(n), np.arange(n)] = np.nan
        low, high = bandwidth * (1 - self.sigma), bandwidth * (1 + self.sigma)
        wrong = np.where(np.eye(n, dtype=bool), np.nan, np.zeros(shape))
        return PairMatrix(self.names, latency, bandwidth, low, high, wrong, 1 << 20, 8, hosts=self.hosts)

    def twice(self):
        """Return the matrix after its candidates were measured again, and the pairs that were."""
        first, second = self.matrix(), self.matrix()
        again = suspects(first)
        for pair in again:
            for a, b in (pair, pair[::-1]):
                for figures, later in ((first.bandwidth, second.bandwidth), (first.low, second.low), (first.high, second.high)):
                    figures[a, b] = max(figures[a, b], later[a, b])  # the interval is as wide for both
                first.latency_s[a, b] = min(first.latency_s[a, b], second.latency_s[a, b])
        return first, again

    def _noise(self, sigma):
        shape = (self.n, self.n)
        noise = sigma / np.sqrt(2) * self.drawn.standard_t(4, shape) - 0.08 * (self.modes & (self.drawn.random(shape) < 0.2))
        for number in range(self.n - 1 + self.n % 2):
            ways = self.drawn.normal(0, sigma, 2)
            for a, b in circle_round(self.n, number):
                noise[a, b] += ways[0]
                noise[b, a] += ways[1]
        return noise


def suspects(matrix):
    """Return the pairs that a hunt measures again: of each candidate with three healthy places far apart, and slow paths."""
    found = find_candidates(matrix)
    partners = found.healthy[:: max(1, len(found.healthy) // 3)][:3]
    pairs = [(place, each) for candidate in found.places for place in candidate.places for each in partners]
    return list(dict.fromkeys((min(pair), max(pair)) for pair in [*pairs, *((each.places[0], each.places[1]) for each in found.paths)]))


def only(matrix, kept):
    """The matrix with nothing but these pairs measured."""
    unknown = np.ones((matrix.n, matrix.n), bool)
    for a, b in kept:
        unknown[a, b] = unknown[b, a] = False
    for figures in (matrix.latency_s, matrix.bandwidth, matrix.low, matrix.high, matrix.wrong):
        figures[unknown] = np.nan
    return matrix
