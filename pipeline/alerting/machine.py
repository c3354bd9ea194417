"""What goes where and when: a pure state machine over alerts and time.

Everything is a function of settings, state, alert and time: no clock, no I/O. Of every alert that
a route with sinks takes, one thing is true at any time: it has been delivered by itself, or counted
in a delivery, or it stands in a bundle of the state that :func:`due` will deliver.

Time never goes back: a time before the last one counts as the last one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Final, Literal, NamedTuple, TypeVar

from rpds import HashTrieMap, HashTrieSet, Queue

from ontrack.pipeline.alerting.alert import Alert, matches
from ontrack.pipeline.alerting.bundle import Bundle, Place
from ontrack.pipeline.alerting.settings import AlertSettings, Route

WINDOWS_MAX: Final = 10_000
SEEN_MAX: Final = 20_000
MINUTE_S: Final = 60.0

#: Why a delivery is made: an alert by itself, more of what was told before, what was over the
#: rate, what was held back in the quiet, or what was left at the end.
Cause = Literal["alert", "more", "rate", "quiet", "end"]
Waits = Literal["suppressed", "held"]
Key = tuple[tuple[str | None, ...], int, str]
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Window:
    """A group that was told of lately: what is alike waits in ``pending`` until ``until_s``."""

    until_s: float
    place: Place
    offset: int
    pending: Bundle | None = None


@dataclass(frozen=True, slots=True)
class RouteState:
    """What a route remembers.

    Parameters
    ----------
    windows, closing
        Open windows by group, and their ends in order (with ends of windows that are gone).
    sent_s
        When deliveries were made in the last minute.
    backlog
        What was over the rate.
    held
        What is held back until the quiet is over.
    """

    windows: HashTrieMap[Key, Window] = field(default_factory=HashTrieMap)
    closing: Queue[tuple[float, Key]] = field(default_factory=Queue)
    sent_s: Queue[float] = field(default_factory=Queue)
    backlog: Bundle | None = None
    held: Bundle | None = None


@dataclass(frozen=True, slots=True)
class State:
    """What the machine remembers: routes by name, ids seen lately, the time."""

    routes: HashTrieMap[str, RouteState] = field(default_factory=HashTrieMap)
    seen: HashTrieSet[str] = field(default_factory=HashTrieSet)
    seen_order: Queue[str] = field(default_factory=Queue)
    now_s: float = 0.0


class Delivery(NamedTuple):
    """What is to be told now: the lead by itself or with more, to the sinks of a route."""

    route: Route
    cause: Cause
    lead: Alert
    bundle: Bundle


class Outcome(NamedTuple):
    """The state after a step, what is to be delivered, and what waits, by route."""

    state: State
    deliveries: tuple[Delivery, ...]
    waiting: tuple[tuple[Route, Waits], ...] = ()


def take(settings: AlertSettings, state: State, alert: Alert, now_s: float) -> Outcome:
    """Take one alert, after whatever is due by now.

    An id that was seen lately is the same message again and changes nothing, unless somebody sent
    it again on purpose.
    """
    state, told = _due(settings, state, now_s)
    if alert.id in state.seen and not alert.again:
        return Outcome(state, tuple(told))
    state = _remember(state, alert.id)
    waiting: list[tuple[Route, Waits]] = []
    for route in _routes_of(settings, alert):
        if not route.sinks:
            waiting.append((route, "suppressed"))
            continue
        before = state.routes.get(route.name) or RouteState()
        after, delivery, waits = _route(route, before, alert, state.now_s)
        state = replace(state, routes=state.routes.insert(route.name, after))
        if delivery is not None:
            told.append(delivery)
        if waits is not None:
            waiting.append((route, waits))
    return Outcome(state, tuple(told), tuple(waiting))


def due(settings: AlertSettings, state: State, now_s: float) -> Outcome:
    """Deliver what waited until now: ends of windows, room under the rate, the end of a quiet."""
    state, told = _due(settings, state, now_s)
    return Outcome(state, tuple(told))


def finish(settings: AlertSettings, state: State) -> Outcome:
    """Deliver all that waits, whatever it waits for: nobody will come back for it."""
    told = []
    for route in settings.every_route:
        rest: Bundle | None = None
        for bundle in _bundles(state.routes.get(route.name) or RouteState()):
            rest = _join(rest, bundle)
        if rest is not None:
            told.append(Delivery(route, "end", rest.gravest, rest))
    return Outcome(State(seen=state.seen, seen_order=state.seen_order, now_s=state.now_s), (*told,))


def waiting(state: State) -> Iterator[Bundle]:
    """Yield the bundles that wait."""
    for route in state.routes.values():
        yield from _bundles(route)


def openers(state: State) -> Iterator[tuple[Place, int]]:
    """Yield where the alerts stand that opened the windows: from there a state can be rebuilt."""
    for route in state.routes.values():
        for window in route.windows.values():
            yield window.place, window.offset


def _routes_of(settings: AlertSettings, alert: Alert) -> Iterator[Route]:
    taken = False
    for route in settings.routes:
        if matches(route, alert):
            yield route
            taken = True
            if not route.goes_on:
                return
    if not taken:
        yield settings.last_resort


def _route(
    route: Route, state: RouteState, alert: Alert, now_s: float
) -> tuple[RouteState, Delivery | None, Waits | None]:
    one = Bundle.of(alert)
    if _is_quiet(route, alert.severity, now_s):
        return replace(state, held=_join(state.held, one)), None, "held"
    key = _key(route, alert)
    window = state.windows.get(key)
    if window is not None:
        window = replace(window, pending=_join(window.pending, one))
        return replace(state, windows=state.windows.insert(key, window)), None, "suppressed"
    if not _has_room(route, state):
        return replace(state, backlog=_join(state.backlog, one)), None, "suppressed"
    told = one if state.backlog is None else one.with_(state.backlog)
    state = _opened(route, _sent(replace(state, backlog=None), now_s), key, alert, now_s)
    return state, Delivery(route, "alert", alert, told), None


def _due(settings: AlertSettings, state: State, now_s: float) -> tuple[State, list[Delivery]]:
    now_s = max(now_s, state.now_s)
    told: list[Delivery] = []
    routes = state.routes
    for route in settings.every_route:
        before = routes.get(route.name)
        if before is not None:
            after = _route_due(route, before, now_s, told)
            if after is not before:
                routes = routes.insert(route.name, after)
    return replace(state, routes=routes, now_s=now_s), told


def _route_due(route: Route, state: RouteState, now_s: float, told: list[Delivery]) -> RouteState:
    state = _forget_sent(state, now_s)
    held = state.held
    if held is not None and not _is_quiet(route, 0, now_s):
        told.append(Delivery(route, "quiet", held.gravest, held))
        state = _sent(replace(state, held=None), now_s)
    while len(state.closing):
        until_s, key = _first(state.closing)
        if until_s > now_s and len(state.windows) <= WINDOWS_MAX:
            break
        state = replace(state, closing=_rest(state.closing))
        window = state.windows.get(key)
        if window is not None and window.until_s == until_s:
            state = _close(route, state, key, window, now_s, told)
    backlog = state.backlog
    if backlog is not None:
        if _is_quiet(route, backlog.severity, now_s):
            state = replace(state, held=_join(state.held, backlog), backlog=None)
        elif _has_room(route, state):
            told.append(Delivery(route, "rate", backlog.gravest, backlog))
            state = _sent(replace(state, backlog=None), now_s)
    return state


def _close(
    route: Route,
    state: RouteState,
    key: Key,
    window: Window,
    now_s: float,
    told: list[Delivery],
) -> RouteState:
    """End a window; what waited in it is told, and begins the next one."""
    state = replace(state, windows=state.windows.remove(key))
    rest = window.pending
    if rest is None:
        return state
    if _is_quiet(route, rest.severity, now_s):
        return replace(state, held=_join(state.held, rest))
    if not _has_room(route, state):
        return replace(state, backlog=_join(state.backlog, rest))
    told.append(Delivery(route, "more", rest.gravest, rest))
    return _opened(route, _sent(state, now_s), key, rest.kept[0], now_s)


def _opened(route: Route, state: RouteState, key: Key, alert: Alert, now_s: float) -> RouteState:
    if route.dedupe_s == 0:
        return state
    window = Window(now_s + route.dedupe_s, alert.place, alert.record.offset)
    return replace(
        state,
        windows=state.windows.insert(key, window),
        closing=state.closing.enqueue((window.until_s, key)),
    )


def _key(route: Route, alert: Alert) -> Key:
    """Return what is alike; severity and intervention belong to it: no warning swallows a halt."""
    return tuple(map(alert.field, route.group_by)), alert.severity, alert.intervention


def _is_quiet(route: Route, severity: int, now_s: float) -> bool:
    if route.quiet is None or severity >= route.quiet_severity_min:
        return False
    return route.quiet.covers(datetime.fromtimestamp(now_s, UTC))


def _has_room(route: Route, state: RouteState) -> bool:
    return len(state.sent_s) < route.rate_per_minute


def _sent(state: RouteState, now_s: float) -> RouteState:
    return replace(state, sent_s=state.sent_s.enqueue(now_s))


def _forget_sent(state: RouteState, now_s: float) -> RouteState:
    sent_s = state.sent_s
    while len(sent_s) and _first(sent_s) <= now_s - MINUTE_S:
        sent_s = _rest(sent_s)
    return state if sent_s is state.sent_s else replace(state, sent_s=sent_s)


def _bundles(state: RouteState) -> Iterator[Bundle]:
    if state.held is not None:
        yield state.held
    if state.backlog is not None:
        yield state.backlog
    for window in state.windows.values():
        if window.pending is not None:
            yield window.pending


def _join(before: Bundle | None, more: Bundle) -> Bundle:
    return more if before is None else before.with_(more)


def _remember(state: State, alert_id: str) -> State:
    if alert_id in state.seen:
        return state
    seen, order = state.seen.insert(alert_id), state.seen_order.enqueue(alert_id)
    while len(order) > SEEN_MAX:
        seen, order = seen.remove(_first(order)), _rest(order)
    return replace(state, seen=seen, seen_order=order)


def _first(queue: Queue[Item]) -> Item:
    # Not by an iterator: making one takes as long as the queue is. (Its stub has a property.)
    return queue.peek()  # type: ignore[operator,no-any-return]


def _rest(queue: Queue[Item]) -> Queue[Item]:
    return queue.dequeue()  # type: ignore[call-arg]  # its stub asks for a value, it takes none
