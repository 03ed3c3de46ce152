"""scipy.optimize: minimization by BFGS, with a line search for the strong Wolfe conditions."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

import shardwise.numpy as jnp
from shardwise.api.control import while_loop
from shardwise.api.transformations.differentiate import value_and_grad
from shardwise.base.lazy import publish
from shardwise.compiler.arrays.operands import as_inexact

_CONVERGED, _ITERATION_LIMIT, _LINE_SEARCH_FAILED, _LINE_SEARCH_LIMIT, _RUNNING = 0, 1, 3, 5, -1
_SUFFICIENT_DECREASE, _CURVATURE = 1e-4, 0.9


class OptimizeResults(NamedTuple):
    """The result of a minimization.

    Attributes:
        x: the minimizer.
        success: whether the gradient is small enough there.
        status: 0 converged, 1 the limit of iterations is reached, 3 the line search found no step, 5 the limit of
            iterations of the line search is reached.
        fun: the value of the function at `x`.
        jac: its gradient at `x`.
        hess_inv: the approximation of the inverse of its Hessian.
        nfev: how often the function was evaluated.
        njev: how often its gradient was evaluated.
        nit: the number of iterations.

    Example:
        >>> int(jax.scipy.optimize.minimize(lambda x: (x[0] - 2.0) ** 2, jnp.zeros(1), method="BFGS").status)
        0
    """

    x: Any
    success: Any
    status: Any
    fun: Any
    jac: Any
    hess_inv: Any
    nfev: Any
    njev: Any
    nit: Any


def minimize(
    fun: Callable[..., Any],
    x0: Any,
    args: tuple[Any, ...] = (),
    *,
    method: str,
    tol: float | None = None,
    options: Mapping[str, Any] | None = None,
) -> OptimizeResults:
    """Minimize a differentiable function of a vector.

    The search can be compiled and vmapped. The vector and the arrays that `fun` reads may be sharded. Forward-mode
    derivatives follow its steps; reverse mode is not supported, as for every `while_loop`.

    Args:
        fun: the function `fun(x, *args)`, which returns a scalar.
        x0: the vector where the search starts.
        args: further arguments of `fun`.
        method: "BFGS", in any case.
        tol: the default of the option `gtol`.
        options: a dict with the entries `gtol`, the norm of the gradient below which the search ends (1e-5); `norm`,
            the order of this norm (infinity); `maxiter`, the limit of iterations (200 per element of `x0`); and
            `line_search_maxiter`, that of a line search (10).

    Returns:
        The minimizer and how it was found.

    Raises:
        ValueError: if `method` or an option is unknown, or `x0` is not a vector.
        TypeError: if `args` is not a tuple, or `fun` does not return a real scalar.

    Example:
        >>> result = jax.scipy.optimize.minimize(lambda x: jnp.sum((x - 3.0) ** 2), jnp.zeros(2), method="BFGS")
        >>> bool(result.success), bool(jnp.allclose(result.x, 3.0))
        (True, True)
    """
    if not isinstance(args, tuple):
        raise TypeError(f"minimize: args must be a tuple of arguments of fun, not {args!r}")
    if str(method).lower() != "bfgs":
        raise ValueError(f"minimize: method must be 'BFGS', not {method!r}")
    start = as_inexact(x0, "minimize")
    if start.ndim != 1:
        raise ValueError(f"minimize: x0 must be a vector, not {start.type}; `flatten_util.ravel_pytree` creates one")
    settings: dict[str, Any] = {
        "gtol": 1e-5 if tol is None else tol,
        "norm": np.inf,
        "maxiter": None,
        "line_search_maxiter": 10,
    }
    if unknown := sorted(set(options or {}) - set(settings)):
        raise ValueError(f"minimize: BFGS has no option {unknown[0]!r}; it has {', '.join(settings)}")
    settings |= options or {}
    limit = 200 * start.size if settings["maxiter"] is None else settings["maxiter"]
    evaluate = value_and_grad(lambda x: fun(x, *args))

    def is_small(gradient: Any) -> Any:
        return jnp.linalg.norm(gradient, ord=settings["norm"]) < settings["gtol"]

    def step(state: _State) -> _State:
        return _bfgs_step(state, evaluate, is_small, settings["line_search_maxiter"], limit)

    value, gradient = evaluate(start)
    initial = _State(
        start,
        jnp.asarray(value, start.dtype),
        gradient,
        jnp.eye(start.size, dtype=start.dtype),
        jnp.where(is_small(gradient), _CONVERGED, jnp.array(_RUNNING if limit > 0 else _ITERATION_LIMIT)),
        jnp.array(1),
        jnp.array(0),
    )
    final = while_loop(lambda state: state.status == _RUNNING, step, initial)
    return OptimizeResults(
        final.x,
        final.status == _CONVERGED,
        final.status,
        final.value,
        final.gradient,
        final.inverse_hessian,
        final.evaluations,
        final.evaluations,
        final.iteration,
    )


class _State(NamedTuple):
    """The state of BFGS."""

    x: Any
    value: Any
    gradient: Any
    inverse_hessian: Any
    status: Any
    evaluations: Any
    iteration: Any


def _bfgs_step(
    state: _State, evaluate: Callable[..., Any], is_small: Callable[..., Any], line_search_limit: int, limit: int
) -> _State:
    """Search along the quasi-Newton direction, and update the inverse Hessian by the change of the gradient."""
    direction = -(state.inverse_hessian @ state.gradient)
    # The first direction is the gradient, whose length says nothing about the length of the step.
    first_length = jnp.where(state.iteration == 0, jnp.minimum(1, 1.01 / jnp.linalg.norm(state.gradient)), 1)
    search = _line_search(state, direction, first_length.astype(state.x.dtype), evaluate, line_search_limit)
    low = search.low
    displacement = low.length * direction
    change = low.gradient - state.gradient
    curvature = change @ displacement
    is_convex = (curvature > 0) & jnp.isfinite(curvature)
    scale = 1 / jnp.where(is_convex, curvature, 1)
    product = state.inverse_hessian @ change
    update = (1 + scale * (change @ product)) * scale * jnp.outer(displacement, displacement)
    update -= scale * (jnp.outer(displacement, product) + jnp.outer(product, displacement))
    iteration = state.iteration + 1
    failure = jnp.where(search.count >= line_search_limit, _LINE_SEARCH_LIMIT, _LINE_SEARCH_FAILED)
    status = jnp.where(iteration >= limit, _ITERATION_LIMIT, _RUNNING)
    status = jnp.where(search.is_found, status, failure)
    return _State(
        state.x + displacement,
        low.value,
        low.gradient,
        jnp.where(is_convex, state.inverse_hessian + update, state.inverse_hessian),
        jnp.where(is_small(low.gradient), _CONVERGED, status),
        state.evaluations + search.count,
        iteration,
    )


class _Point(NamedTuple):
    """A point on the line: the length of the step, the value, the gradient, and the slope along the line."""

    length: Any
    value: Any
    gradient: Any
    slope: Any


class _Search(NamedTuple):
    """The state of a line search.

    `low` is the best point with sufficient decrease. Once `is_bracketed`, a step that satisfies the conditions lies
    between it and `high`.
    """

    low: _Point
    high: _Point
    trial: Any
    is_bracketed: Any
    is_found: Any
    count: Any


def _line_search(state: _State, direction: Any, first_length: Any, evaluate: Callable[..., Any], limit: int) -> _Search:
    """Find a step with sufficient decrease and a small slope. Every iteration evaluates the function once."""
    origin = _Point(jnp.zeros_like(first_length), state.value, state.gradient, state.gradient @ direction)

    def improve(search: _Search) -> _Search:
        value, gradient = evaluate(state.x + search.trial * direction)
        point = _Point(search.trial, value.astype(state.x.dtype), gradient, gradient @ direction)
        return _next_interval(search, point, origin)

    def continues(search: _Search) -> Any:
        is_empty = search.is_bracketed & (search.trial == search.low.length)
        return ~search.is_found & ~is_empty & (search.count < limit)

    start = _Search(origin, origin, first_length, jnp.array(False), jnp.array(False), jnp.array(0))
    return while_loop(continues, improve, start)


def _next_interval(search: _Search, point: _Point, origin: _Point) -> _Search:
    """Replace an end of the interval by the evaluated point, and choose the next trial."""
    low, high = search.low, search.high
    decreases = point.value <= origin.value + _SUFFICIENT_DECREASE * point.length * origin.slope
    is_found = decreases & (jnp.abs(point.slope) <= -_CURVATURE * origin.slope)
    is_better = decreases & (point.value < low.value)
    # The end opposite to the slope at `point`, where the function is higher: before a bracket is found, that is `low`.
    turns = jnp.where(search.is_bracketed, point.slope * (high.length - low.length) >= 0, point.slope >= 0)
    is_bracketed = search.is_bracketed | ~is_better | turns
    new_high = _select(is_better, _select(turns, low, high), point)
    new_low = _select(is_found | is_better, point, low)
    trial = jnp.where(is_bracketed, _cubic_minimizer(new_low, new_high), 2 * point.length)
    return _Search(new_low, new_high, trial, is_bracketed, is_found, search.count + 1)


def _select(condition: Any, first: _Point, second: _Point) -> _Point:
    return _Point(*(jnp.where(condition, x, y) for x, y in zip(first, second, strict=True)))


def _cubic_minimizer(low: _Point, high: _Point) -> Any:
    """Return where the cubic through two values and slopes is lowest, kept away from the ends; else the midpoint."""
    width = high.length - low.length
    sum_of_slopes = low.slope + high.slope - 3 * (high.value - low.value) / width
    discriminant = sum_of_slopes**2 - low.slope * high.slope
    root = jnp.sign(width) * jnp.sqrt(discriminant)
    fraction = 1 - (high.slope + root - sum_of_slopes) / (high.slope - low.slope + 2 * root)
    fraction = jnp.where(jnp.isfinite(fraction), fraction, 0.5)
    return low.length + jnp.clip(fraction, 0.1, 0.9) * width


publish(__name__)
