"""The benchmark that halves and doubles tuned values."""

from dataclasses import dataclass, field

from bigscreen.solvers.block.tuning import BlockTuning
from bigscreen.solvers.newton.tuning import NewtonTuning
from pipelines.bench.tuning import changed, kinds, numbers


@dataclass(frozen=True)
class SomeTuning:
    rows: int
    part: float = 0.5
    passes: int = 3
    is_on: bool = True
    name: str = "x"
    sizes: tuple[int, ...] = field(default=(1, 2))


def test_a_value_is_changed_in_instances_made_before_and_meanwhile_and_then_as_it_was():
    before = SomeTuning(1)
    with changed(SomeTuning, "passes", 6):
        assert before.passes == 6 and SomeTuning(2).passes == 6 and SomeTuning(2).part == 0.5
    assert before.passes == 3 and SomeTuning(2).passes == 3


def test_only_numbers_are_tuned_and_all_solvers_are_found():
    assert numbers(SomeTuning) == {"part": 0.5, "passes": 3}
    assert {BlockTuning, NewtonTuning} <= set(kinds())
    assert all(numbers(kind) for kind in kinds() if kind.__name__ != "EndingTuning")
