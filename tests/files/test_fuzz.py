"""Spoilt files are found in one sentence, or change nothing: some cases of ``fuzz_cases``."""

import pytest
from fuzz_cases import OUTCOMES, Fuzz

CASES = 160


@pytest.fixture(scope="module")
def fuzz(tmp_path_factory):
    return Fuzz(tmp_path_factory.mktemp("fuzz"))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_no_spoilt_file_gives_another_answer(fuzz):
    outcomes = dict.fromkeys(OUTCOMES, 0)
    for number in range(CASES):
        outcome, told, said = fuzz.run(number)
        assert outcome in ("found", "harmless"), f"case {number}: {told}\n{said}"
        outcomes[outcome] += 1
    # It does spoil something, and does not only break everything.
    assert min(outcomes["found"], outcomes["harmless"]) > CASES // 5
