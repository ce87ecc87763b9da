"""Open every page of the built documentation: `python tests/support/site_pages.py docs SITE`."""

import re
import sys
from html import unescape
from pathlib import Path

SPHINX_PAGES = {"genindex", "modindex", "py-modindex", "search"}
"""Pages that Sphinx writes itself, over a source of the same name."""


def sources(docs):
    """List the source files of pages; each becomes a page of its own name."""
    found = [*docs.rglob("*.md"), *docs.rglob("*.rst")]
    return sorted(p for p in found if not {"_made", "templates"} & set(p.relative_to(docs).parts))


def title(source):
    """Return a page's first heading as text; None for a page that includes another file."""
    lines = source.read_text().splitlines()
    marked = [line for line in lines if line.startswith("# ")]
    heading = lines[0] if source.suffix == ".rst" else next(iter(marked), None)
    return heading and re.sub(r"[`*]", "", heading.removeprefix("# ")).strip()


def faults(docs, site):
    """List the faults of a built site: a sentence for each lost page and each dead link."""
    found = []
    for source in sources(docs):
        page = site / source.relative_to(docs).with_suffix(".html")
        headings = re.findall(r"<h1>(.*?)<a ", page.read_text()) if page.is_file() else []
        texts = [unescape(re.sub(r"<.*?>", "", heading)).strip() for heading in headings]
        shown = [text.replace("\N{RIGHT SINGLE QUOTATION MARK}", "'") for text in texts]
        expected = title(source)
        if not shown or (expected and expected not in shown):
            found.append(f"{page} does not show {source}, but {shown or 'no page'}")
    for page in site.rglob("*.html"):
        for link in re.findall(r'href="([^"]+)"', page.read_text()):
            target = re.split("[#?]", link)[0]
            if not re.match(r"[\w+.-]+:", link) and target and not (page.parent / target).exists():
                found.append(f"{page} links {link}, which is not there")
    return found


if __name__ == "__main__":
    sys.exit("\n".join(faults(*map(Path, sys.argv[1:]))) or None)
