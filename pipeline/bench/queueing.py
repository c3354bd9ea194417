"""How long an event waits for a worker that others keep busy: the queue M/G/1.

A worker does one thing at a time, and agents do not agree on when to make their steps. So events
come at random (Poisson) to one server with some distribution of service times.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Service:
    """How long a worker is busy with one event.

    Parameters
    ----------
    mean_s
        Mean, in seconds.
    variation
        Squared coefficient of variation: variance divided by the square of the mean. 0 where all
        take equally long, 1 for an exponential distribution.
    """

    mean_s: float
    variation: float

    @classmethod
    def of(cls, seconds: list[float], mean_s: float | None = None) -> Service:
        """Take the shape of measured times, and their mean unless another one is given."""
        mean = sum(seconds) / len(seconds)
        variance = sum((each - mean) ** 2 for each in seconds) / len(seconds)
        return cls(mean if mean_s is None else mean_s, variance / mean**2)

    def utilisation(self, rate: float) -> float:
        """Return the share of its time that a worker is busy at so many events a second."""
        return rate * self.mean_s

    def waiting_s(self, rate: float, besides: float = 0.0) -> float:
        """Return the mean seconds that an event waits before it is taken up.

        Source: Pollaczek and Khinchine: rho / (1 - rho) * (1 + variation) / 2 service times.
        Infinite from the rate on that a worker cannot sustain.

        Parameters
        ----------
        besides
            Share of its time that a worker spends on other things, in pieces no longer than those.
        """
        rho = self.utilisation(rate) + besides
        if rho >= 1:
            return float("inf")
        return rho / (1 - rho) * (1 + self.variation) / 2 * self.mean_s

    def agents(self, step_s: float, utilisation: float) -> int:
        """Return how many agents with a step every ``step_s`` seconds keep it busy so much."""
        return int(utilisation * step_s / self.mean_s)
