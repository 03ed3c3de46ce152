"""Predictions for an H200 compared with recorded times: no error may grow. Nothing runs."""

import pytest

from benchmarks.predictions import MEASURED_ON_H200, models, predict

# The errors of the predicted times with the built-in chip, in percent. A change of the cost model may lower them.
ERRORS = {
    "MLP": -2.9,
    "conv net": 0.9,
    "vision transformer": -2.1,
    "mixture of experts": -3.0,
    "attention at 8192": 2.4,
    "871M transformer": -4.2,
    "871M transformer, remat": -1.7,
}
MAX_ERROR = 10
BY_DEFAULT = ("MLP", "mixture of experts", "attention at 8192")
MODELS = {name: (step, arguments) for name, step, arguments in models()}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, id=name.replace(" ", "_"), marks=() if name in BY_DEFAULT else pytest.mark.slow)
        for name in MEASURED_ON_H200
    ],
)
def test_no_error_grows(name):
    error = 100 * (1e3 * predict(*MODELS[name], "h200").seconds / MEASURED_ON_H200[name] - 1)
    assert abs(error) <= abs(ERRORS[name]) + 0.1


def test_the_recorded_errors_meet_the_bound():
    assert {*ERRORS} == {*MODELS} == {*MEASURED_ON_H200}
    assert max(map(abs, ERRORS.values())) <= MAX_ERROR
