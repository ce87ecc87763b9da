"""What a run keeps of a part, and what one that resumes it takes over."""

from pathlib import Path

import numpy as np
import pytest

from bigscreen.files.kept import Kept
from bigscreen.files.sealed import read_sealed


def test_a_run_that_resumes_takes_over_what_was_kept(tmp_path: Path) -> None:
    folder = tmp_path / "walk-all"
    Kept(folder, "run/all", resume=False).keep("point-0", {"value": 1.5}, {"a": np.arange(3)})
    record, arrays = Kept(folder, "run/all", resume=True).kept("point-0") or (None, {})
    assert record == {"value": 1.5} and arrays["a"].tolist() == [0, 1, 2]
    assert Kept(folder, "run/all", resume=True).kept("point-1") is None
    assert Kept(folder, "run/all", resume=False).kept("point-0") is None
    with pytest.warns(UserWarning, match="belongs elsewhere"):
        assert Kept(folder, "other/all", resume=True).kept("point-0") is None


def test_files_and_seals_are_those_of_earlier_versions(tmp_path: Path) -> None:
    """A seal has the ending of a fit's files, and not that of a path's or a search's."""
    kept = Kept(tmp_path, "run/all", resume=True)
    kept.keep("done.kept", 1, {})
    kept.keep("point-0", 2, {})
    assert read_sealed(tmp_path / "done.kept", "run/all/done.kept") == (1, {})
    assert read_sealed(tmp_path / "point-0.kept", "run/all/point-0") == (2, {})


def test_the_files_of_a_pattern_go_but_for_one(tmp_path: Path) -> None:
    kept = Kept(tmp_path, "run/all", resume=True)
    for name in ("state-0", "state-1", "point-0"):
        kept.keep(name, None, {})
    kept.forget("state-*", but="state-1")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["point-0.kept", "state-1.kept"]


def test_nothing_is_kept_without_a_folder() -> None:
    kept = Kept(None, "run/all", resume=True)
    kept.keep("point-0", 1, {})
    kept.forget("point-*", but="none")
    assert kept.kept("point-0") is None
