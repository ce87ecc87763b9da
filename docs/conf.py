"""Sphinx settings: `python -m sphinx -W -b html docs site` builds these pages."""

import importlib.metadata
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import floors
import pictures

project = "bigscreen"
release = version = importlib.metadata.version("bigscreen")
extensions = ["myst_parser", "numpydoc", "sphinx.ext.autosummary", "sphinx.ext.viewcode"]
html_theme = "furo"
html_title = "bigscreen"
html_show_copyright = False
html_extra_path = ["_made/page", "../bigscreen/report/schemas.json"]
html_static_path = ["static"]
html_css_files = ["tables.css"]
exclude_patterns = ["_made/*.md", "templates"]

myst_heading_anchors = 3
# Blocks without a language are commands and formulas, not Python.
highlight_language = "none"
# Pages link files of the repository by their paths, which tests/cli/test_docs.py looks at.
# What estimators inherit from scikit-learn refers to its own pages.
suppress_warnings = ["myst.xref_missing", "ref.ref"]
autosummary_generate = True
# The tables of parameters say their types; defaults stand as in the source.
autodoc_typehints = "none"
autodoc_preserve_defaults = True
templates_path = ["templates"]
numpydoc_show_class_members = False
add_module_names = False

# Figures of these pages are computed, and so cannot be out of date.
pictures.make(Path(__file__).parent / "_made")
floors.make(Path(__file__).parent / "_made")

# Files elsewhere in the repository that have a page here, which includes them.
PAGES = {
    "cluster/README.md": "clusters.md",
    "CONTRIBUTING.md": "contributing.md",
    "pipelines/bench/README.md": "commands.md",
}


def link_pages(app, docname, source):
    """Have links to files of the repository lead to the pages that include them."""
    up = "../" * docname.count("/")
    for path, page in PAGES.items():
        source[0] = source[0].replace(f"]({up}../{path}", f"]({up}{page}")


def setup(app):
    """Register what is done to each source."""
    app.connect("source-read", link_pages)
