"""Settings of the site; scripts/docs builds it."""

from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive

project = "OnTrack"
release = metadata.version("ontrack")
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "index"

html_theme = "furo"
html_title = f"OnTrack {release}"
html_static_path = ["static"]
html_js_files = [("mermaid.js", {"type": "module"})]

# Links to headings, as they are known from elsewhere.
myst_heading_anchors = 4
myst_fence_as_directive = ["mermaid"]

autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "ignore-module-all": True}
# Two classes are called Alignment: a name in a signature may mean either.
suppress_warnings = ["ref.python"]
napoleon_google_docstring = False
napoleon_use_param = False
napoleon_use_rtype = False


class Mermaid(Directive):
    """A diagram, drawn in the reader's browser by what the site brings along."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        """Return the text of the diagram as it is."""
        text = nodes.literal("", "\n".join(self.content)).astext()
        escaped = text.replace("&", "&amp;").replace("<", "&lt;")
        return [nodes.raw("", f'<pre class="mermaid">{escaped}</pre>', format="html")]


def _static(folder: Path) -> None:
    """Lay Mermaid, which the wheel of NiceGUI has with it, where the pages find it."""
    folder.mkdir(parents=True, exist_ok=True)
    spec = find_spec("nicegui")
    assert spec is not None
    assert spec.origin is not None
    drawn = Path(spec.origin).parent / "elements" / "mermaid" / "dist"
    link = folder / "mermaid"
    if not link.is_symlink():
        link.symlink_to(drawn, target_is_directory=True)
    (folder / "mermaid.js").write_text(
        "import { mermaid } from './mermaid/index.js';\n"
        "mermaid.initialize({ startOnLoad: false });\n"
        "mermaid.run();\n"
    )


def setup(app: Any) -> None:
    """Tell Sphinx of the directive."""
    app.add_directive("mermaid", Mermaid)
    _static(Path(app.srcdir) / "static")
