"""When steps have changed for good, as numbers of their ops and their peaks tell."""

from umadvise.training.loop.step_shapes import StepShapes


def test_steps_have_changed_once_another_one_came_twice_in_a_row() -> None:
    shapes = StepShapes()
    assert not any(shapes.changed(ops, 1000) for ops in (10, 20, 20))  # none was recorded
    shapes.recorded()
    assert [shapes.changed(ops, 1000) for ops in (20, 30, 20, 30, 30)] == [False, False, False, False, True]
    shapes.recorded()
    assert not shapes.changed(30, 1000)


def test_a_peak_that_hardly_differs_is_the_same() -> None:
    shapes = StepShapes()
    shapes.changed(10, 1000)
    shapes.recorded()
    assert [shapes.changed(10, peak) for peak in (1005, 1005, 2000, 2000)] == [False, False, False, True]
