"""Reductions: neutral elements, and names by which programs refer to them."""

import pickle

import ml_dtypes
import numpy as np
import pytest

from shardwise.compiler.reduction import REDUCTIONS, reduction_named

FLOATS = {np.float32: [-np.inf, -1.5, 0, np.inf], ml_dtypes.float8_e4m3fn: [-448, -1, 448]}
INTEGERS = {np.int8: [-128, -1, 0, 127], np.uint8: [0, 1, 255], np.bool_: [False, True]}
CASES = [
    *((name, dtype, values) for name in ("sum", "prod", "max", "min") for dtype, values in (FLOATS | INTEGERS).items()),
    *((name, dtype, values) for name in ("and", "or", "xor") for dtype, values in INTEGERS.items()),
    ("logsumexp", np.float32, FLOATS[np.float32]),
]


@pytest.mark.parametrize(("name", "dtype", "values"), CASES, ids=lambda case: getattr(case, "__name__", str(case)))
def test_the_neutral_element_changes_nothing(name, dtype, values):
    reduction = REDUCTIONS[name]
    elements = np.array(values, dtype)
    found = reduction.ufunc(elements, reduction.neutral_scalar(np.dtype(dtype)))
    np.testing.assert_array_equal(found.astype(dtype), elements)


def test_every_reduction_has_a_case():
    assert {name for name, *_ in CASES} == set(REDUCTIONS)


def test_a_reduction_is_one_object_for_each_name():
    for name, reduction in REDUCTIONS.items():
        assert repr(reduction) == name
        assert reduction_named(name) is pickle.loads(pickle.dumps(reduction)) is reduction
    with pytest.raises(ValueError, match="there is no reduction 'mean'; reductions: sum, prod"):
        reduction_named("mean")
