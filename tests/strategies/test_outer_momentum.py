"""OuterMomentum against its formula in numpy, with the dtypes of the parameters, and its errors."""

import numpy as np
import pytest

import shardwise.numpy as jnp
from shardwise import strategies
from shardwise.errors import StrategyError


@pytest.mark.parametrize("nesterov", [True, False])
def test_three_updates(nesterov):
    rng = np.random.default_rng(0)
    outer = strategies.OuterMomentum(rate=0.3, momentum=0.8, nesterov=nesterov)
    params = {"w": rng.normal(size=5).astype(np.float32)}
    velocity, expected, v = outer.create(params), params["w"].astype(np.float64), 0.0
    for _ in range(3):
        gradient = rng.normal(size=5).astype(np.float32)
        params, velocity = outer.update(params, velocity, {"w": jnp.asarray(gradient)})
        v = 0.8 * v + gradient
        expected = expected - 0.3 * ((gradient + 0.8 * v) if nesterov else v)
        np.testing.assert_allclose(params["w"], expected, rtol=1e-5)


def test_the_velocity_of_narrow_floats_is_float32():
    outer, params = strategies.OuterMomentum(), {"w": jnp.ones(2, jnp.bfloat16)}
    velocity = outer.create(params)
    params, velocity = outer.update(params, velocity, {"w": jnp.full(2, 1e-3)})
    assert params["w"].dtype == jnp.bfloat16 and velocity["w"].dtype == jnp.float32


@pytest.mark.parametrize("values", [{"rate": 0.0}, {"rate": np.inf}, {"momentum": 1.0}, {"momentum": -0.1}])
def test_values_out_of_range_are_errors(values):
    with pytest.raises(StrategyError, match="OuterMomentum: rate must be positive and momentum at least 0"):
        strategies.OuterMomentum(**values)


@pytest.mark.parametrize("leaf", [jnp.arange(3), "text", 1.0])
def test_parameters_are_floating_point_arrays(leaf):
    with pytest.raises(StrategyError, match=r"the parameter 'a/b' is .*, not a floating-point array"):
        strategies.OuterMomentum().create({"a": {"b": leaf}})
