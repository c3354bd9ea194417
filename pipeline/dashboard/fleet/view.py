"""Fleet view: the runs of a query in its order, kept up to date run by run."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from ontrack.pipeline.dashboard.fleet.rows import Query, RunRow, matches, place


@dataclass(frozen=True, slots=True)
class Page:
    """Rows of one page; ``number`` counts from 0 and is the last page's where asked for more."""

    rows: tuple[RunRow, ...]
    number: int
    pages: int
    matching: int
    known: int


class Rows(Protocol):
    """Rows that change, and which of them have changed since when."""

    version: int

    def __len__(self) -> int:
        """How many there are."""

    def row(self, run_id: str) -> RunRow | None:
        """Return one row."""

    def rows(self) -> Iterable[RunRow]:
        """Return all."""

    def changed_since(self, version: int) -> list[str] | None:
        """Return the runs that changed or went since; None: too long ago to tell."""


class View:
    """The runs of a query in its order; what keeping up costs depends on what has changed.

    Attributes
    ----------
    examined
        Rows looked at so far: all at first, then those that have changed.
    """

    def __init__(self, model: Rows, query: Query) -> None:
        self.query = query
        self.examined = 0
        self._model = model
        self._version = -1
        self._order: list[tuple[Any, ...]] = []
        self._places: dict[str, tuple[Any, ...]] = {}

    def page(self, number: int = 0, size: int = 50) -> Page:
        """Return a page as things stand now.

        Raises
        ------
        ValueError
            A page of less than one row.
        """
        if size < 1:
            raise ValueError(f"a page has at least one row, got {size}")
        self._keep_up()
        matching = len(self._order)
        pages = max(1, -(-matching // size))
        number = min(max(0, number), pages - 1)
        begin, end = number * size, min((number + 1) * size, matching)
        if self.query.descending:
            places = self._order[matching - end : matching - begin][::-1]
        else:
            places = self._order[begin:end]
        rows = (self._model.row(spot[-1]) for spot in places)
        shown = tuple(row for row in rows if row is not None)
        return Page(shown, number, pages, matching, len(self._model))

    def _keep_up(self) -> None:
        changed = self._model.changed_since(self._version) if self._version >= 0 else None
        if changed is None:
            self._start()
        else:
            for run_id in changed:
                self._move(run_id)
        self._version = self._model.version

    def _start(self) -> None:
        rows = [row for row in self._model.rows() if matches(row, self.query)]
        self.examined += len(self._model)
        self._places = {row.run_id: place(row, self.query) for row in rows}
        self._order = sorted(self._places.values())

    def _move(self, run_id: str) -> None:
        self.examined += 1
        before = self._places.pop(run_id, None)
        if before is not None:
            del self._order[bisect_left(self._order, before)]
        row = self._model.row(run_id)
        if row is not None and matches(row, self.query):
            self._places[run_id] = now = place(row, self.query)
            insort(self._order, now)
