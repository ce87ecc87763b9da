"""Plan a fit on a device: whether it gains there, and the bytes that it takes there."""

from __future__ import annotations

from collections.abc import Callable

from bigscreen.data.rows import Rows
from bigscreen.device.columns import column_work_bytes
from bigscreen.device.find import HOST, Device
from bigscreen.device.kernel import place_model
from bigscreen.device.newton import DENSE, dense_bytes
from bigscreen.device.place import CPU
from bigscreen.errors import InputError, in_units
from bigscreen.model.model import Model
from bigscreen.options.train import TrainOptions
from bigscreen.plan.memory import DevicePlan
from bigscreen.plan.tuning import PLAN, PlanTuning


def choose_device(
    data: Rows,
    options: TrainOptions,
    find: Callable[[str], Device],
    fits: int = 1,
    tuning: PlanTuning = PLAN,
) -> Device:
    """Choose the device of a fit, or of ``fits`` fits to the same rows.

    Parameters
    ----------
    find : callable
        Finds the device for a value of the option ``device``, as `device.find.find_device` does.

    Raises
    ------
    InputError
        If "cuda" is wanted, and there is no device, or rows are sparse.
    """
    if options.device == "cuda" and data.is_sparse:
        raise InputError(
            "device cuda computes with dense rows, and these are sparse; leave out `device`, or "
            "ingest the rows with `layout='dense'`"
        )
    if options.device == "cpu":
        return HOST
    if options.device == "auto" and not _gains(data, options, fits, tuning):
        return HOST
    return find(options.device)


def place_scores(
    model: Model,
    data: Rows,
    wanted: str,
    find: Callable[[str], Device],
    tuning: PlanTuning = PLAN,
) -> tuple[Model, Device]:
    """Return a model that computes the scores of a data set on a device or the CPU, and which.

    Parameters
    ----------
    wanted : {"auto", "cpu", "cuda"}
        A value of the option ``device``; "auto" takes a device for many kernel entries only.
    find : callable
        Finds the device for a value of the option, as `device.find.find_device` does.

    Raises
    ------
    InputError
        If "cuda" is wanted, and there is no device, rows are sparse or the model is linear.
    """
    can_place = model.landmarks is not None and not data.is_sparse
    if wanted == "cuda" and not can_place:
        raise InputError(
            "device cuda computes the scores of dense rows by a kernel; of sparse rows, and by a "
            "linear model, the CPU computes them: leave out `device`"
        )
    is_large = data.n_rows * model.coef.shape[1] >= tuning.device_entries
    if wanted == "cpu" or (wanted == "auto" and not (can_place and is_large)):
        return model, HOST
    device = find(wanted)
    return (model if device.place == CPU else place_model(model, device.place)), device


def _gains(data: Rows, options: TrainOptions, fits: int, tuning: PlanTuning) -> bool:
    """Whether a device is worth its start: a large fit of dense rows, with no choice against it."""
    plain = options.can_use_device and options.tuning.start in ("auto", "cold")
    if data.is_sparse or not plain:
        return False
    columns: float = data.n_features if options.kernel == "linear" else options.landmarks
    if options.exact:
        columns = tuning.computed_fraction * data.n_rows
    return fits * data.n_rows * columns >= tuning.device_entries


def plan_device(
    device: Device, data: Rows, options: TrainOptions, workers: int, tuning: PlanTuning = PLAN
) -> DevicePlan | None:
    """Plan the memory of a fit's devices.

    Returns
    -------
    DevicePlan or None
        None if the CPU computes: because ``device`` is the CPU, or has too little memory for a fit
        that did not ask for it.
    """
    if device.free_bytes is None:
        return None
    if options.exact:
        return _plan_columns(device, data, options, workers, tuning)
    m = data.n_features if options.kernel == "linear" else min(options.landmarks, data.n_rows)
    n, entry = -(-data.n_rows // workers), 4 if options.tol >= DENSE.float32_tol else 8
    limit, parts = _limit(device, options, tuning), dense_bytes(n, m)
    work = parts.total
    if work > limit:
        states, matrices = in_units(parts.rows), in_units(parts.own + parts.thread)
        refusal = (
            f"this fit needs about {in_units(work)} on {device.name} and the memory allowed there "
            f"is {in_units(limit)}: {states} for the state of {n} rows, {matrices} for tiles and "
            f"Hessians of {m} columns; allow more (`device_memory`), take fewer landmarks or more "
            "devices, or leave out `device`"
        )
        return _refuse(DevicePlan(device, workers, limit, work, 0, 0, refusal), options)
    features = 0 if options.kernel == "linear" else entry * n * m
    rows = entry * n * data.n_features
    if features and work + features <= limit:
        rows = 0
    else:
        features, rows = 0, rows * (work + rows <= limit)
    return DevicePlan(device, workers, limit, work, features, rows)


def _plan_columns(
    device: Device, data: Rows, options: TrainOptions, workers: int, tuning: PlanTuning
) -> DevicePlan | None:
    """Plan the memory of an exact fit's devices; see `plan_device`.

    Rows are counted in float64, which the end of a fit may need. Cached kernel columns take what
    rows leave, or less if the options say how much.
    """
    assert device.free_bytes is not None
    n, d = -(-data.n_rows // workers), data.n_features
    limit, work = _limit(device, options, tuning), column_work_bytes(d)
    column, rows = 4 * n, 8 * n * d
    least = min(tuning.min_columns, data.n_rows) * column
    if work + least > limit:
        refusal = (
            f"this fit needs about {in_units(work + least)} on {device.name} and the memory "
            f"allowed there is {in_units(limit)}: {in_units(work)} for tiles of kernel entries, "
            f"{in_units(least)} for {least // column} kernel columns of {n} rows; allow more "
            "(`device_memory`), take more devices, or leave out `device`"
        )
        return _refuse(DevicePlan(device, workers, limit, work, 0, 0, refusal), options)
    if work + rows + least > limit:
        rows = 0
    columns = min(limit - work - rows, column * data.n_rows)
    if options.cache is not None:
        columns = min(columns, max(least, options.cache // workers))
    return DevicePlan(device, workers, limit, work, columns // column * column, rows)


def _refuse(plan: DevicePlan, options: TrainOptions) -> DevicePlan | None:
    """Return a plan that does not fit, with its refusal; None if the CPU may compute instead."""
    return None if options.device == "auto" else plan


def _limit(device: Device, options: TrainOptions, tuning: PlanTuning) -> int:
    """Return the bytes to stay within on each device."""
    assert device.free_bytes is not None
    limit = options.device_memory or int(tuning.device_share * device.free_bytes)
    return min(limit, device.free_bytes)
