"""Univariate distributions as records of formulas, from which the public functions are made.

A `Distribution` holds formulas of the standard distribution, with `loc` 0 and `scale` 1. `function` standardizes the
arguments, and derives a function without a formula of its own from another one. A record has a formula wherever the
derived function would lose accuracy: `log(cdf(x))` underflows in the lower tail of the normal distribution.

Each function has the signature of a function that returns `Arguments`, so that type checkers know its parameters.
"""

import inspect
import math
from collections.abc import Callable, Mapping
from typing import ParamSpec, TypeAlias, final

import numpy as np

import shardwise.numpy as jnp
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import compiled_function
from shardwise.compiler.ir.record import record
from shardwise.numpy.elementwise import promote_inexact
from shardwise.scipy.stats.distribution_docstring import KINDS, distribution_docstring
from shardwise.typing import ArrayLike

Formula: TypeAlias = Callable[..., Array]

EVERY_FUNCTION = tuple(KINDS)

_Parameters = ParamSpec("_Parameters")


@final
class Arguments:
    """The arguments of a call: a point and the shape parameters of the standard distribution, `loc` and `scale`."""

    def __init__(self, *standard: ArrayLike, loc: ArrayLike = 0, scale: ArrayLike = 1):
        self.standard, self.loc, self.scale = standard, loc, scale

    def promote(self, name: str) -> tuple[list[Array], Array, Array]:
        """Return the standard arguments, `loc` and `scale`, promoted to floats and broadcast together.

        `name` is the public function, for error messages.
        """
        *standard, loc, scale = promote_inexact(name, *self.standard, self.loc, self.scale)
        return standard, loc, scale


def log1mexp(x: Array) -> Array:
    """Compute `log(1 - exp(-x))` without cancellation, for small and for large `x`; at 0 it is -inf with gradient 0."""
    is_zero, is_small = x == 0, x < math.log(2)
    small, large = jnp.where(is_small & ~is_zero, x, 1), jnp.where(is_small, 1, x)
    result = jnp.where(is_small, jnp.log(-jnp.expm1(-small)), jnp.log1p(-jnp.exp(-large)))
    return jnp.where(is_zero, -np.inf, result)


def in_unit_interval(q: Array) -> Array:
    """Return whether each element is between 0 and 1."""
    return (q >= 0) & (q <= 1)


# How a function follows from another one. The first one that has a formula is used.
_RELATIONS: dict[str, dict[str, Callable[[Array], Array]]] = {
    "cdf": {"logcdf": jnp.exp, "logsf": lambda log_survival: -jnp.expm1(log_survival)},
    "sf": {"logsf": jnp.exp, "logcdf": lambda log_probability: -jnp.expm1(log_probability)},
    "logcdf": {"cdf": jnp.log, "logsf": lambda log_survival: log1mexp(-log_survival)},
    "logsf": {"sf": jnp.log, "logcdf": lambda log_probability: log1mexp(-log_probability)},
}


@final
@record
class Distribution:
    """Formulas of a standard distribution, and the meaning of its parameters.

    A formula is a function of points or probabilities and of the shape parameters. Those of the log density and the log
    mass are evaluated on the support only.
    """

    title: str  # with its article: "the normal distribution"
    parameters: Mapping[str, str]  # their meaning; a key may list several: "a, b"

    logpdf: Formula | None = None
    logpmf: Formula | None = None
    cdf: Formula | None = None
    logcdf: Formula | None = None
    sf: Formula | None = None
    logsf: Formula | None = None
    ppf: Formula | None = None
    isf: Formula | None = None

    width: float = 1  # `logpdf` is the log density times `width`: log(width * scale) has one rounding error
    is_outside: Formula | None = None  # whether points are outside of the support; None: the support has no bounds
    inside: float = 0  # a point of the support. It replaces those outside, so that the gradient there is not NaN
    outside: str = ""  # where that is, for the docstrings: "below `loc`"
    is_valid: Formula | None = None  # whether shape parameters are valid; all functions are NaN where they are not
    invalid: str = ""  # where that is: "unless `a < b`"
    accepts_complex: tuple[str, ...] = ()  # the functions that are defined for complex arguments

    def function(
        self,
        name: str,
        arguments: Callable[_Parameters, Arguments],
        call: str,
        output: str,
        *,
        note: str = "",
        returns: str = "",
    ) -> Callable[_Parameters, Array]:
        """Return the public function `name`, such as "cdf", with the parameters of `arguments`.

        Args:
            name: a key of `KINDS`.
            arguments: a function of the module that defines the distribution.
            call: the arguments in the example of the docstring.
            output: the result in the example.
            note: a sentence after the summary of the docstring.
            returns: what the function returns, in place of the sentence for its kind.
        """
        label = f"{arguments.__module__.rpartition('.')[2]}.{name}"

        def function(*args: _Parameters.args, **keywords: _Parameters.kwargs) -> Array:
            standard, loc, scale = arguments(*args, **keywords).promote(label)
            return self._evaluate(name, *standard, loc=loc, scale=scale)

        signature = inspect.signature(arguments).replace(return_annotation=Array)
        function.__name__ = function.__qualname__ = name
        function.__module__ = arguments.__module__
        function.__signature__ = signature  # type: ignore[attr-defined]
        function.__annotations__ = {**arguments.__annotations__, "return": Array}
        function.__doc__ = distribution_docstring(
            name,
            label,
            list(signature.parameters),
            title=self.title,
            parameters=self.parameters,
            outside=self.outside,
            invalid=self.invalid,
            accepts_complex=name in self.accepts_complex,
            example=(call, output),
            note=note,
            returns=returns,
        )
        return compiled_function(function)

    def _evaluate(self, name: str, x: Array, *shape: Array, loc: Array, scale: Array) -> Array:
        """Evaluate a function by formulas of the standard distribution."""
        if name in ("pdf", "pmf"):
            return jnp.exp(self._evaluate(f"log{name}", x, *shape, loc=loc, scale=scale))
        if name in ("ppf", "isf"):
            result = self._standard(name, x, *shape) * scale + loc
        elif name in ("logpdf", "logpmf"):
            result = self._log_density(name, (x - loc) / scale, *shape, scale=scale)
        else:
            result = self._standard(name, (x - loc) / scale, *shape)
        return result if self.is_valid is None else jnp.where(self.is_valid(*shape), result, np.nan)

    def _log_density(self, name: str, z: Array, *shape: Array, scale: Array) -> Array:
        """Evaluate the log density or the log mass at standardized points, -inf outside of the support."""
        is_outside = None if self.is_outside is None else self.is_outside(z, *shape)
        if is_outside is not None:
            z = jnp.where(is_outside, self.inside, z)
        result = self._standard(name, z, *shape)
        if name == "logpdf":
            result = result - jnp.log(scale if self.width == 1 else self.width * scale)
        return result if is_outside is None else jnp.where(is_outside, -np.inf, result)

    def _standard(self, name: str, x: Array, *shape: Array) -> Array:
        """Evaluate a function of the standard distribution by its formula, or by a relation to another function."""
        formula: Formula | None = getattr(self, name)
        if formula is not None:
            return formula(x, *shape)
        source, relation = next((source, f) for source, f in _RELATIONS[name].items() if getattr(self, source))
        return relation(self._standard(source, x, *shape))
