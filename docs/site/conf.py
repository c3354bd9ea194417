"""Settings of the site; scripts/docs builds it."""

import importlib
import shutil
import sys
from functools import reduce
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive
from playwright.sync_api import Route, sync_playwright

project = "OnTrack"
release = metadata.version("ontrack")
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "index"

html_theme = "furo"
html_title = f"OnTrack {release}"

# Links to headings, as they are known from elsewhere.
myst_heading_anchors = 4
myst_fence_as_directive = ["mermaid"]

autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "ignore-module-all": True}
# A name that a docstring refers to has to be there.
nitpicky = True
# Two classes are called Alignment: a name in a signature may mean either.
suppress_warnings = ["ref.python"]
napoleon_google_docstring = False
napoleon_use_param = False
napoleon_use_rtype = False


class Mermaid(Directive):
    """A diagram, drawn while the site is built: pages need no script for it, and no other host."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        """Return the picture; where no browser is there to draw it, the text of the diagram."""
        text = "\n".join(self.content)
        browser = shutil.which("chromium") or shutil.which("google-chrome")
        if browser is None:
            print("docs: no Chromium here, diagrams stay text", file=sys.stderr)  # noqa: T201
            return [nodes.literal_block(text, text)]
        # Colours are for light paper, also where the page around is dark.
        svg = draw(text, f"diagram-{self.lineno}", browser)
        svg = f'<div style="background: white; padding: 1rem">{svg}</div>'
        return [nodes.raw("", svg, format="html")]


def draw(text: str, name: str, browser: str) -> str:
    """Return a diagram as SVG, drawn by the Mermaid that NiceGUI's wheel has with it.

    Parameters
    ----------
    text
        Of the diagram.
    name
        Of the picture, its own on its page.
    browser
        The program that draws: measuring letters takes a browser. It reaches no other host.
    """
    spec = find_spec("nicegui")
    assert spec is not None
    assert spec.origin is not None
    scripts = Path(spec.origin).parent / "elements" / "mermaid" / "dist"

    def answer(route: Route) -> None:
        name = route.request.url.rpartition("/")[2]
        if name:
            route.fulfill(path=scripts / name, content_type="text/javascript")
        else:
            route.fulfill(body="<!doctype html>", content_type="text/html")

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        page = chromium.new_page()
        page.route("**", answer)
        page.goto("http://drawing.invalid/")
        svg: str = page.evaluate(
            "async ([name, text]) => { const { mermaid } = await import('/index.js');"
            " return (await mermaid.render(name, text)).svg }",
            [name, text],
        )
        chromium.close()
    return svg


def is_there(app: Any, domain: Any, node: nodes.Element) -> bool | None:
    """Tell whether a name without a page of its own is a real one all the same.

    Types of signatures come from the code itself. What an author referred to is imported.
    """
    if domain is None or domain.name != "py":
        return None
    if not isinstance(node.children[0], nodes.literal):
        return True
    name, module, owner = node["reftarget"], node.get("py:module"), node.get("py:class")
    places = [name]
    if module is not None:
        places += [f"{module}.{name}", f"{module}.{owner}.{name}"]
    return any(map(can_be_imported, places)) or None


def can_be_imported(name: str) -> bool:
    """Tell whether a dotted name is a module or something in one."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            module = importlib.import_module(".".join(parts[:length]))
            reduce(getattr, parts[length:], module)
        except (ImportError, AttributeError, ValueError):
            continue
        return True
    return False


def setup(app: Any) -> None:
    """Tell Sphinx of the directive, and of what counts as a reference."""
    app.add_directive("mermaid", Mermaid)
    app.connect("warn-missing-reference", is_there)
