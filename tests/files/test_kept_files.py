"""What a run keeps of a part, and what one that resumes it takes over."""

from pathlib import Path

import numpy as np
import pytest

from bigscreen.files.kept_files import KeptFiles
from bigscreen.files.sealed import read_sealed


def test_a_run_that_resumes_takes_over_what_was_kept(tmp_path: Path) -> None:
    folder = tmp_path / "walk-all"
    KeptFiles(folder, "run/all", resume=False).write("point-0", {"value": 1.5}, {"a": np.arange(3)})
    record, arrays = KeptFiles(folder, "run/all", resume=True).read("point-0") or (None, {})
    assert record == {"value": 1.5} and arrays["a"].tolist() == [0, 1, 2]
    assert KeptFiles(folder, "run/all", resume=True).read("point-1") is None
    assert KeptFiles(folder, "run/all", resume=False).read("point-0") is None
    with pytest.warns(UserWarning, match="belongs elsewhere"):
        assert KeptFiles(folder, "other/all", resume=True).read("point-0") is None


def test_files_and_seals_are_those_of_earlier_versions(tmp_path: Path) -> None:
    """A seal has the ending of a fit's files, and not that of a path's or a search's."""
    kept = KeptFiles(tmp_path, "run/all", resume=True)
    kept.write("done.kept", 1, {})
    kept.write("point-0", 2, {})
    assert read_sealed(tmp_path / "done.kept", "run/all/done.kept") == (1, {})
    assert read_sealed(tmp_path / "point-0.kept", "run/all/point-0") == (2, {})


def test_the_files_of_a_pattern_go_but_for_one(tmp_path: Path) -> None:
    kept = KeptFiles(tmp_path, "run/all", resume=True)
    for name in ("state-0", "state-1", "point-0"):
        kept.write(name, None, {})
    kept.forget("state-*", but="state-1")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["point-0.kept", "state-1.kept"]


def test_nothing_is_kept_without_a_folder() -> None:
    kept = KeptFiles(None, "run/all", resume=True)
    kept.write("point-0", 1, {})
    kept.forget("point-*", but="none")
    assert kept.read("point-0") is None
