"""Reference sets, compiled and tested: what costs seconds, done once and fit for a thread.

A set is compiled with the contracts of the tools that its references call, and what the others say
does not matter to it. So it is known by the versions of both, and a contract of another tool that
is published later costs nothing.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping

from ontrack.operators import selftest
from ontrack.operators.knowledge import Knowledge
from ontrack.operators.profiles import Profile
from ontrack.operators.references import compile_references, texts, tools_of
from ontrack.operators.selftest import SelfTest, pooled
from ontrack.operators.values import compile_values
from ontrack.pipeline.encoding.encoders import CachedEncoder
from ontrack.pipeline.folding.shelf import Chosen, ReferenceVersion, View
from ontrack.topics.knowledge import ToolContract

POOL_TASKS_MAX = 32  # tasks whose self-tests are summed up
POOL_LIKENESS_MIN = 0.3  # Jaccard likeness of the tools of two tasks of one kind

# Versions of the references, and of the contracts of their tools; whether there are any contracts,
# since where there are none no tool is undeclared.
_Key = tuple[tuple[ReferenceVersion, ...], tuple[int, ...], bool]


class ReferenceSets:
    """Compiled sets; the least recently used ones go.

    Any thread may ask. Of two that ask for the same new set at once, one compiles it and the other
    waits; nobody waits for another set.

    Parameters
    ----------
    profile
        Says how references are compiled and tested.
    encoder
        Gives their vectors.
    kept_max
        Sets that are kept.
    """

    def __init__(self, profile: Profile, encoder: CachedEncoder, kept_max: int) -> None:
        self._profile = profile
        self._encoder = encoder
        self._kept_max = kept_max
        self._kept: OrderedDict[_Key, Knowledge] = OrderedDict()
        self._lock = threading.Lock()
        self._making: dict[_Key, threading.Lock] = {}

    def __len__(self) -> int:
        """Return how many are kept."""
        return len(self._kept)

    def known(self, view: View, chosen: Chosen) -> Knowledge | None:
        """Return a set that has been compiled; its contracts are those of some view."""
        key = _key(view, chosen)
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
        return found

    def of(self, view: View, chosen: Chosen) -> Knowledge:
        """Return a set, compiled now if it was not; its contracts are those of some view."""
        found = self.known(view, chosen)
        if found is not None:
            return found
        key = _key(view, chosen)
        with self._lock:
            making = self._making.setdefault(key, threading.Lock())
        try:
            with making:
                found = self.known(view, chosen)
                if found is None:
                    found = self._compile(chosen, view.contracts)
                    with self._lock:
                        self._kept[key] = found
                        while len(self._kept) > self._kept_max:
                            self._kept.popitem(last=False)
        finally:
            with self._lock:
                self._making.pop(key, None)
        return found

    def pool(self, view: View, tools: frozenset[str]) -> SelfTest | None:
        """Return the self-tests of the tasks that are done with much the same tools, as one."""
        if self._profile.selftest is None:
            return None
        return pooled(self._profile.selftest, self._tests_like(view, tools))

    def _tests_like(self, view: View, tools: frozenset[str]) -> list[SelfTest]:
        """Return the self-tests of tasks of one kind.

        Of the ``POOL_TASKS_MAX`` most alike, then by name: the same wherever it is computed.
        """
        alike: list[tuple[float, str]] = []
        for task_id, (_, others) in view.kinds.items():
            likeness = len(tools & others) / len(tools | others)
            if likeness >= POOL_LIKENESS_MIN:
                alike.append((-likeness, task_id))
        tests: list[SelfTest] = []
        for _, task_id in sorted(alike):
            chosen, _ = view.kinds[task_id]
            test = self.of(view, chosen).selftest if len(chosen) > 1 else None
            if test is not None:
                tests.append(test)
            if len(tests) == POOL_TASKS_MAX:
                break
        return tests

    def _compile(self, chosen: Chosen, contracts: Mapping[str, ToolContract]) -> Knowledge:
        profile = self._profile
        vectors = self._encoder.encode(texts(chosen))
        references = compile_references(chosen, contracts, list(vectors), profile.artifacts)
        if profile.identity is None:
            return Knowledge(contracts, references)
        values = compile_values(profile.values, chosen, contracts)
        if profile.selftest is None or profile.orphans is None:
            return Knowledge(contracts, references, values)
        test = selftest.run(
            profile.selftest,
            profile.values,
            profile.identity,
            profile.orphans,
            profile.transport,
            contracts,
            references,
            values,
        )
        return Knowledge(contracts, references, values, test)


def _key(view: View, chosen: Chosen) -> _Key:
    numbers = view.contract_versions
    declared = [numbers[tool] for tool in sorted(tools_of(chosen)) if tool in numbers]
    versions = tuple(view.versions[id(reference)] for reference in chosen)
    return versions, tuple(declared), bool(numbers)
