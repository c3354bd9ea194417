"""Theme: the frame of every page, light or dark, and how its feed stands."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from nicegui import context, ui

from ontrack.pipeline.dashboard.feeds.feed import Feed
from ontrack.pipeline.dashboard.pages.text import shown
from ontrack.pipeline.dashboard.pages.widgets import Words

THEME_COOKIE = "ontrack_theme"
CHECK_S = 0.5  # how often a page looks how its feed stands

_PAGES = (("/", "Fleet"), ("/references", "References"), ("/letters", "Dead letters"))
_THEMES: dict[bool | None, str] = {None: "system", False: "light", True: "dark"}


@contextmanager
def frame(title: str, feed: Feed, has_login: bool = False) -> Iterator[None]:
    """Lay out a page: skip link, head with navigation and the feed's state, main part."""
    ui.page_title(f"{title} · OnTrack")
    request = context.client.request
    chosen = {"light": False, "dark": True}.get(request.cookies.get(THEME_COOKIE, ""))
    mode = ui.dark_mode(chosen)
    with ui.element("header").classes("ot-top"):
        Words("a", "OnTrack", "ot-brand").props["href"] = "/"
        with ui.element("nav").classes("ot-nav").props('aria-label="Pages"'):
            for path, name in _PAGES:
                link = Words("a", name)
                link.props["href"] = path
                if request.url.path == path:
                    link.props["aria-current"] = "page"
        with ui.element("div").classes("ot-right"):
            state = Words("span", "", "ot-feed").props("role=status")
            _theme_button(mode)
            if has_login:
                with ui.element("form").props('method="post" action="/logout"'):
                    Words("button", "Log out").props("type=submit")
    main = ui.element("main").classes("ot-main").props("tabindex=-1")
    ui.skip_link("Skip to the page's content", target=main)
    with main:
        note = Words("div", "", "ot-note").props("role=alert")
        follow(feed, state, note)
        yield


def follow(feed: Feed, state: Words, note: Words) -> None:
    """Keep telling how the feed stands: a word in the head, a note while there is no news."""

    def check() -> None:
        now = feed.state
        if state.props.get("data-state") != now.status:
            state.props["data-state"] = now.status
        word = {"live": "● live", "connecting": "○ connecting", "down": "✕ no news"}[now.status]
        state.say(f"{word}: {shown(feed.name, 60)}")
        note.set_visibility(now.status != "live")
        tone = "bad" if now.status == "down" else "warn"
        if note.props.get("data-tone") != tone:
            note.props["data-tone"] = tone
        note.say(shown(now.text, 600))

    check()
    ui.timer(CHECK_S, check)


def _theme_button(mode: ui.dark_mode) -> None:
    def text() -> str:
        return f"Theme: {_THEMES[mode.value]}"

    def turn() -> None:
        order = list(_THEMES)
        mode.value = order[(order.index(mode.value) + 1) % len(order)]
        button.say(text())
        name = json.dumps(f"{THEME_COOKIE}={_THEMES[mode.value]}; Path=/; SameSite=Strict")
        ui.run_javascript(f"document.cookie = {name} + '; Max-Age=31536000'")

    button = Words("button", text()).props("type=button")
    button.on("click", turn)


def toggle(text: str, pressed: str, on_change: Callable[[bool], None]) -> Words:
    """Add a button that stays pressed, with a text for each of its two states."""
    state = {"pressed": False}

    def turn() -> None:
        state["pressed"] = not state["pressed"]
        button.props["aria-pressed"] = str(state["pressed"]).lower()
        button.say(pressed if state["pressed"] else text)
        on_change(state["pressed"])

    button = Words("button", text, "ot-button").props('type=button aria-pressed="false"')
    button.on("click", turn)
    return button
