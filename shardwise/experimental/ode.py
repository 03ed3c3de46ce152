"""jax.experimental.ode: initial value problems of ordinary differential equations.

`odeint` makes steps with the Dormand–Prince method of order 5, whose embedded solution of order 4 estimates the error
of a step. Solutions between the ends of a step come from a polynomial of degree 4. The derivative is the adjoint
method: it integrates the state, its cotangent, and those of the arguments backwards in time.

References:
    Hairer, Nørsett, Wanner: Solving Ordinary Differential Equations I, sections II.4 (step sizes), II.5 and II.6.
    Chen, Rubanova, Bettencourt, Duvenaud: Neural Ordinary Differential Equations, 2018 (the adjoint method).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, final

import numpy as np

import shardwise.numpy as jnp
from shardwise import lax, tree
from shardwise.api.arguments import check_function
from shardwise.api.config_contexts import default_matmul_precision
from shardwise.api.jit import jit
from shardwise.api.transformations.closure import closure_convert
from shardwise.api.transformations.custom import custom_vjp
from shardwise.api.transformations.differentiate import vjp
from shardwise.api.transformations.vmap import vmap
from shardwise.base.lazy import publish
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import as_operand
from shardwise.compiler.dtypes import is_inexact
from shardwise.execute.traceback_filter import filter_traceback
from shardwise.flatten_util import ravel_pytree
from shardwise.typing import ArrayLike

Dynamics = Callable[..., Any]

# The coefficients of Dormand and Prince: the times of the stages after the first as fractions of a step, their weights
# of the slopes before, the difference between the weights of orders 5 and 4, and the weights in the middle of a step.
# The last stage is the solution of order 5: its slope is the first one of the next step.
_NODES = np.array([1 / 5, 3 / 10, 4 / 5, 8 / 9, 1, 1])
_WEIGHTS = np.array(
    [
        [1 / 5, 0, 0, 0, 0, 0, 0],
        [3 / 40, 9 / 40, 0, 0, 0, 0, 0],
        [44 / 45, -56 / 15, 32 / 9, 0, 0, 0, 0],
        [19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729, 0, 0, 0],
        [9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656, 0, 0],
        [35 / 384, 0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84, 0],
    ]
)
_ORDER_4 = np.array([1951 / 21600, 0, 22642 / 50085, 451 / 720, -12231 / 42400, 649 / 6300, 1 / 60])
_ERROR_WEIGHTS = _WEIGHTS[-1] - _ORDER_4
_MIDDLE_WEIGHTS = 0.5 * np.array(
    [
        6025192743 / 30085553152,
        0,
        51252292925 / 65400821598,
        -2691868925 / 45128329728,
        187940372067 / 1594534317056,
        -1776094331 / 19743644256,
        11237099 / 235043384,
    ]
)
# The polynomial p(x) on a step [0, 1], from the power 4 down, by the rows of (y(0), y(1), y(½), y'(0), y'(1)).
_QUARTIC = np.array(
    [[-8, -8, 16, -2, 2], [18, 14, -32, 5, -3], [-11, -5, 16, -4, 1], [0, 0, 0, 1, 0], [1, 0, 0, 0, 0]], np.float64
)
_SAFETY, _MOST_GROWTH, _MOST_SHRINKAGE = 0.9, 10.0, 0.2


@final
@dataclass(frozen=True)
class _Options:
    """The tolerances and bounds of `odeint`."""

    rtol: float
    atol: float
    mxstep: float
    hmax: float

    def error_ratio(self, error: Array, y: Array, next_y: Array) -> Array:
        """Return the root mean square of the error, relative to the tolerance; a step is accepted up to 1."""
        tolerance = self.atol + self.rtol * jnp.maximum(jnp.abs(y), jnp.abs(next_y))
        return jnp.sqrt(jnp.mean((jnp.abs(error) / tolerance) ** 2))

    def bounded(self, step: Array) -> Array:
        """Return a step size that is not larger than `hmax`."""
        return jnp.clip(step, 0.0, self.hmax)


class _State(NamedTuple):
    """The last accepted step, from `start` to `t`, and the size of the next one.

    Attributes:
        y: the solution at `t`, a vector.
        slope: its derivative.
        t: the end of the step.
        step: the size of the next step.
        start: the begin of the step.
        polynomial: the coefficients of the solution in between, from the power 4 down.
    """

    y: Any
    slope: Any
    t: Any
    step: Any
    start: Any
    polynomial: Any


@filter_traceback
def odeint(
    func: Dynamics,
    y0: Any,
    t: ArrayLike,
    *args: Any,
    rtol: float = 1.4e-8,
    atol: float = 1.4e-8,
    mxstep: float = np.inf,
    hmax: float = np.inf,
) -> Any:
    """Solve the initial value problem dy/dt = func(y, t, *args) with adaptive Runge-Kutta steps.

    The solution can be differentiated in reverse mode with respect to `y0`, `t`, `args`, and floating values that
    `func` closes over. The gradient is the solution of a second initial value problem, with the same tolerances.

    Args:
        func: the derivative of the state: a function of the state, the time and `args` that returns a pytree like `y0`.
        y0: the state at `t[0]`, a pytree of floating or complex arrays.
        t: the times at which to return the state, increasing floating numbers.
        *args: further arguments of `func`, pytrees of arrays.
        rtol: the tolerance of the error of a step relative to the state.
        atol: the absolute tolerance of the error of a step.
        mxstep: the largest number of steps between two times.
        hmax: the largest size of a step.

    Returns:
        A pytree like `y0` whose arrays have a new leading axis: the states at the times `t`.

    Raises:
        TypeError: if `func` is not callable, if `t` is not of a floating dtype, if `y0` is not of floating or complex
            dtypes, or if `args` are not pytrees of arrays.

    Example:
        >>> decay = lambda y, t, rate: -rate * y
        >>> jax.experimental.ode.odeint(decay, jnp.array(1.0), jnp.array([0.0, 1.0]), 2.0, rtol=1e-6)
        Array([1.        , 0.13533...], dtype=float32)
    """
    check_function("odeint", func)
    times = as_operand(t, "odeint")
    if not jnp.issubdtype(times.dtype, np.floating):
        raise TypeError(f"odeint: t must be an array of a floating dtype, not {times.type}")
    y0 = tree.map(partial(as_operand, name="odeint"), y0)
    if unfit := [leaf.type for leaf in tree.leaves(y0) if not is_inexact(leaf.type.dtype)]:
        raise TypeError(f"odeint: y0 must be of floating or complex dtypes, not {unfit[0]}")
    operands = tree.map(partial(as_operand, name="odeint"), args)
    with default_matmul_precision("highest"):
        return _solve_tree(func, _Options(rtol, atol, mxstep, hmax), y0, times, operands)


@partial(jit, static_argnums=(0, 1))
def _solve_tree(func: Dynamics, options: _Options, y0: Any, times: Array, args: tuple[Any, ...]) -> Any:
    """Solve the problem for a pytree as one for a vector, with the arguments split into parameters and constants."""
    leaves, structure = tree.flatten(args)
    is_parameter = [is_inexact(leaf.type.dtype) for leaf in leaves]  # others, such as integers, have no cotangents
    parameters, constants = (
        [leaf for leaf, varies in zip(leaves, is_parameter, strict=True) if varies is expected]
        for expected in (True, False)
    )
    vector, unravel = ravel_pytree(y0)

    def slope(y: Array, t: Array, parameters: Sequence[Array], constants: Sequence[Array]) -> Array:
        parts = {True: iter(parameters), False: iter(constants)}
        values = structure.unflatten([next(parts[varies]) for varies in is_parameter])
        return ravel_pytree(func(unravel(y), t, *values))[0].astype(y.dtype)

    converted, captured = closure_convert(slope, vector, times[0], parameters, constants)

    def closed_slope(y: Array, t: Array, values: Any, constants: Sequence[Array]) -> Array:
        parameters, captured = values
        return converted(y, t, parameters, constants, *captured)

    return vmap(unravel)(_solve(closed_slope, options, vector, times, (parameters, captured), constants))


@partial(custom_vjp, nondiff_argnums=(0, 1))
def _solve(func: Dynamics, options: _Options, y0: Array, times: Array, values: Any, constants: Any) -> Array:
    """Return the states at all times as rows. A derivative can depend on `values`, but not on `constants`."""

    def slope(y: Array, t: Array) -> Array:
        return func(y, t, values, constants)

    def advance(state: _State, target: Array) -> tuple[_State, Array]:
        def goes_on(counted: tuple[Any, _State]) -> Array:
            count, state = counted
            return (state.t < target) & (count < options.mxstep) & (state.step > 0)

        def step(counted: tuple[Any, _State]) -> tuple[Any, _State]:
            count, state = counted
            return count + 1, _step(slope, options, state)

        _, state = lax.while_loop(goes_on, step, (0, state))
        position = (target - state.start) / (state.t - state.start)
        return state, jnp.polyval(state.polynomial, position.astype(y0.dtype))

    start = times[0]
    first_slope = slope(y0, start)
    first_step = options.bounded(_first_step(slope, options, y0, start, first_slope)).astype(times.dtype)
    state = _State(y0, first_slope, start, first_step, start, jnp.stack([y0] * 5))
    _, states = lax.scan(advance, state, times[1:])
    return jnp.concatenate([y0[None], states])


def _first_step(slope: Dynamics, options: _Options, y: Array, t: Array, first_slope: Array) -> Array:
    """Return a step size from the sizes of the state, the slope and the curvature (Hairer et al., section II.4)."""
    scale = options.atol + jnp.abs(y) * options.rtol
    size, speed = jnp.linalg.norm(y / scale), jnp.linalg.norm(first_slope / scale)
    guess = jnp.where((size < 1e-5) | (speed < 1e-5), 1e-6, 0.01 * size / speed)
    slope_after = slope(y + guess * first_slope, t + guess.astype(t.dtype))
    curvature = jnp.linalg.norm((slope_after - first_slope) / scale) / guess
    is_flat = (speed <= 1e-15) & (curvature <= 1e-15)
    by_curvature = (0.01 / jnp.maximum(speed, curvature)) ** (1 / 5)
    return jnp.minimum(100 * guess, jnp.where(is_flat, jnp.maximum(1e-6, guess * 1e-3), by_curvature))


def _step(slope: Dynamics, options: _Options, state: _State) -> _State:
    """Try a step. If its error is too large, the state stays, with a smaller step size."""
    dtype = state.y.dtype
    size = state.step.astype(dtype)

    def stage(slopes: Array, row: tuple[Array, Array, Array]) -> tuple[Array, None]:
        index, node, weights = row
        new = slope(state.y + size * jnp.dot(weights, slopes), state.t + node * state.step)
        return lax.dynamic_update_index_in_dim(slopes, new, index, 0), None

    slopes = jnp.zeros((7, state.y.size), dtype).at[0].set(state.slope)
    rows = (jnp.arange(1, 7), jnp.asarray(_NODES, state.t.dtype), jnp.asarray(_WEIGHTS, dtype))
    slopes, _ = lax.scan(stage, slopes, rows)
    next_y, middle, error = (
        offset + size * jnp.dot(jnp.asarray(weights, dtype), slopes)
        for offset, weights in ((state.y, _WEIGHTS[-1]), (state.y, _MIDDLE_WEIGHTS), (0.0, _ERROR_WEIGHTS))
    )
    ratio = options.error_ratio(error, state.y, next_y)
    next_size = options.bounded(_next_size(state.step, ratio)).astype(state.step.dtype)
    known = jnp.stack([state.y, next_y, middle, size * slopes[0], size * slopes[6]])
    polynomial = jnp.asarray(_QUARTIC, dtype) @ known
    accepted = _State(next_y, slopes[6], state.t + state.step, next_size, state.t, polynomial)
    rejected = state._replace(step=next_size)
    return tree.map(partial(jnp.where, ratio <= 1), accepted, rejected)


def _next_size(size: Array, ratio: Array) -> Array:
    """Return the step size whose error would be the tolerance, within bounds; no accepted step shrinks the next one."""
    least = jnp.where(ratio < 1, 1.0, _MOST_SHRINKAGE)
    factor = jnp.clip(_SAFETY * ratio ** (-1 / 5), least, _MOST_GROWTH)
    return size * jnp.where(ratio == 0, _MOST_GROWTH, factor)


def _solve_forward(
    func: Dynamics, options: _Options, y0: Array, times: Array, values: Any, constants: Any
) -> tuple[Array, Any]:
    states = _solve(func, options, y0, times, values, constants)
    return states, (states, times, values, constants)


def _solve_backward(func: Dynamics, options: _Options, residuals: Any, cotangent: Array) -> tuple[Any, ...]:
    """Integrate the cotangents backwards, from each time to the one before, and add that of each state on the way."""
    states, times, values, constants = residuals

    def reversed_dynamics(augmented: Any, negative_time: Array, values: Any, constants: Any) -> Any:
        y, y_bar, *_ = augmented
        slope, pullback = vjp(lambda *args: func(*args, constants), y, -negative_time, values)
        return (-slope, *pullback(y_bar))

    def go_back(carry: Any, row: Any) -> Any:
        y_bar, first_time_bar, values_bar = carry
        y, t, before, ct, ct_before = row
        # A later time moves the state at that time; the way back to the first time starts later by the same amount.
        time_bar = jnp.dot(func(y, t, values, constants), ct).real
        solution = odeint(
            reversed_dynamics,
            (y, y_bar, first_time_bar - time_bar, values_bar),
            jnp.stack([-t, -before]),
            values,
            constants,
            **vars(options),
        )
        _, y_bar, first_time_bar, values_bar = tree.map(lambda states: states[1], solution)
        return (y_bar + ct_before, first_time_bar, values_bar), time_bar

    start = (cotangent[-1], jnp.zeros((), times.dtype), tree.map(jnp.zeros_like, values))
    rows = (states[1:], times[1:], times[:-1], cotangent[1:], cotangent[:-1])
    (y_bar, first_time_bar, values_bar), times_bar = lax.scan(go_back, start, rows, reverse=True)
    return y_bar, jnp.concatenate([first_time_bar[None], times_bar]), values_bar, None


_solve.defvjp(_solve_forward, _solve_backward)

publish(__name__)
