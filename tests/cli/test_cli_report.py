"""Pages of models and paths are complete, self-contained, true, and safe with hostile names."""

import html
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from cli_world import bigscreen

from bigscreen.model.model import Model


def ran(*args, code=0):
    """Run a command that must end with this code; return its output."""
    result = bigscreen(*args)
    assert result.exit_code == code, result.output
    return " ".join(result.output.split())


class Tags(HTMLParser):
    """Collects the tags of a page, and the addresses that they point at."""

    void = ("meta", "img", "link", "br", "input")

    def __init__(self):
        super().__init__()
        self.open, self.seen, self.addresses = [], [], []

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        self.addresses += [value for name, value in attrs if name in ("src", "href")]
        if tag not in self.void:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def checked(path):
    """Return the text of a page, after checking that it is complete and self-contained."""
    text = path.read_text(encoding="utf-8")
    tags = Tags()
    tags.feed(text)
    assert tags.open == [] and "script" not in tags.seen
    assert all(address.startswith("data:image/svg+xml;base64,") for address in tags.addresses)
    assert "url(" not in text
    return text, html.unescape(re.sub(r"<style>.*?</style>|<[^>]+>", " ", text, flags=re.S))


EVIL = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Make stores of two labels, one of them hostile, and of a regression, with models."""
    folder = tmp_path_factory.mktemp("pages")
    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 3))
    y = X[:, 0] + 0.5 * rng.normal(size=600)
    labels = np.where(y > 0, "up", f'"{EVIL}"')
    for name, outcome in (("labels", labels), ("targets", y)):
        lines = [",".join(map(str, [*row, own])) for row, own in zip(X, outcome, strict=True)]
        (folder / f"{name}.csv").write_text("a,b,c,out\n" + "\n".join(lines) + "\n")
        more = ["--regression"] if name == "targets" else []
        ran("ingest", folder / f"{name}.csv", folder / name, "--label", "out", *more)
    shared = ("--landmarks", 30, "--tol", 1e-4)
    page = ("--report", folder / "fit.html", "--json", folder / "fit.json")
    ran("fit", folder / "labels", folder / "m", *shared, *page)
    ran("fit", folder / "targets", folder / "r", "--problem", "svr", *shared)
    return folder


def test_the_page_of_a_fit_says_what_its_certificate_says(world):
    text, said = checked(world / "fit.html")
    record = json.loads((world / "fit.json").read_text())
    assert f"{record['relative_gap']:.1e}" in said and "Proved over all 600 rows" in said
    assert f"{record['primal']:.8g}" in said and record["certified_in"] in said
    assert text.count("<figure>") == 3
    ran("report", world / "m", world / "again.html", "--overwrite")
    assert "The table behind labels" in said
    own, again = (
        re.findall(r"<section.*?</section>", t, re.S)
        for t in (text, checked(world / "again.html")[0])
    )
    table = [part for part in own if "The table behind" in part]
    assert [part for part in own if part not in table] == again, "equal models are equal pages"


def test_the_page_of_an_evaluation_shows_what_evaluate_found(world):
    ran("evaluate", world / "m", world / "labels", "--report", world / "e.html")
    text, said = checked(world / "e.html")
    ran("evaluate", world / "m", world / "labels", "--json", world / "e.json")
    record = json.loads((world / "e.json").read_text())
    assert f"{record['error']:.2%}" in said and f"area {record['auc']:.4f}" in said
    assert EVIL in said and EVIL not in text, "a label is shown and not interpreted"
    assert "curve" not in record, "what figures show is not in the way of scripts"
    ran("report", world / "m", world / "labels", world / "e2.html", "--json", world / "e2.json")
    assert (world / "e2.html").read_text() == text
    more = json.loads((world / "e2.json").read_text())["evaluation"]
    assert (
        more["curve"]["recall"][-1] == 1.0
        and sum(more["scores"]["positive"]) == more["by_label"]["up"]["rows"]
    )


def test_a_regression_is_shown_by_target_and_prediction(world):
    ran("report", world / "r", world / "targets", world / "r.html", "--json", world / "r.json")
    assert "Rows by target and by prediction" in checked(world / "r.html")[1]
    record = json.loads((world / "r.json").read_text())["evaluation"]
    joint = np.array(record["joint"]["rows"])
    assert joint.sum() == 600 and joint.shape == (40, 40)
    # Columns are targets: the lowest and the highest row are in the outermost two.
    assert joint[:, 0].sum() >= 1 <= joint[:, -1].sum()
    there = np.flatnonzero(joint.sum(axis=0))
    centre = np.arange(40) @ joint[:, there] / joint[:, there].sum(axis=0)
    assert np.corrcoef(centre, there)[0, 1] > 0.8


def test_a_path_and_a_search_have_pages(world):
    grid = ("--C", ".1,1", "--folds", 2)
    path = ("--kernel", "linear", *grid, "--report", world / "p.html")
    ran("path", world / "labels", world / "p", *path)
    text, said = checked(world / "p.html")
    assert "Largest relative gap" in said and text.count("<figure>") == 4
    small = ("--landmarks", 20, "--gamma", ".1,1")
    ran("tune", world / "labels", world / "t", *grid, *small, "--report", world / "t.html")
    assert "The search" in checked(world / "t.html")[1]
    assert "is a path" in ran("report", world / "p", world / "labels", world / "x.html", code=2)


def test_a_model_without_a_proof_says_so_at_its_head(world):
    given = ("--kernel", "sigmoid", "--exact", "--gamma", 0.1)
    page = world / "s.html"
    ran("fit", world / "labels", world / "s", *given, "--report", page)
    text, said = checked(page)
    assert 'class="verdict unproved"' in text and "Nothing is proved" in said
    bare = Model.load(world / "m")
    bare.provenance["history"], bare.ledger = [], None
    bare.save(world / "bare")
    ran("report", world / "bare", world / "bare.html")
    assert checked(world / "bare.html")[0].count("<figure>") == 0


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("m", "page.txt"), "does not end in .html"),
        (("m", "fit.html"), "exists"),
        (("m", "labels", "targets", "x.html"), "was given 4 names"),
        (("nothing", "x.html"), "there is no model file"),
        (("m", "targets", "x.html"), "--like MODEL"),
    ],
)
def test_what_cannot_be_a_page_is_said(world, given, words):
    before = set(world.iterdir())
    assert words in ran("report", *(world / name for name in given), code=2)
    assert set(world.iterdir()) == before
