"""The page of benchmarks is made from the results that are committed."""

import re

from places import ROOT

from pipelines.bench import page


def test_the_page_of_benchmarks_is_what_the_results_say():
    assert page.PAGE.read_text() == page.page(), "run `python -m pipelines.bench.page`"


def test_every_command_of_the_results_is_a_script():
    for record in page.records():
        for table in record["tables"]:
            for name in re.findall(r"python -m (pipelines[\w.]*)", table.get("command", "")):
                path = ROOT / name.replace(".", "/")
                assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), name


def test_results_have_places_of_their_own_and_no_other_fields():
    records = page.records()
    assert len({record["order"] for record in records}) == len(records)
    assert all(set(record) == {"order", "title", "about", "tables"} for record in records)
    known = {"caption", "columns", "rows", "command", "machine", "date", "commit", "notes"}
    assert all(set(table) <= known for record in records for table in record["tables"])
