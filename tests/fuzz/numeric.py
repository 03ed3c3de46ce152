"""Numeric steps beyond basic arithmetic: smooth and nonsmooth functions, bitwise ops, and reductions."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

import shardwise
from shardwise import numpy as jnp
from shardwise.compiler.dtypes import is_float
from shardwise.compiler.ir.types import ArrayType
from tests.fuzz import programs
from tests.fuzz.programs import BOUND, ValueFacts, Writer
from tests.fuzz.recipe import BF16, BOOL, I32, Constrain, Step

NUMERIC_STEPS = {
    "function": 2.0, "nonsmooth": 1.5, "power": 1.0, "bitwise": 1.5, "reduce_minmax": 2.0, "prod": 1.0,
    "argminmax": 1.0, "all_any": 1.0,
}  # fmt: skip

# Functions on [-1, 1], with results between -3 and 3.
FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    **{
        name: getattr(jnp, name) for name in ("expm1", "sin", "cos", "tan", "arctan", "sinh", "cosh", "tanh", "arcsinh")
    },
    **{name: getattr(shardwise.lax, name) for name in ("logistic", "erf", "erfc")},
    "log": lambda x: jnp.log(x * x + 0.5),
    "log1p": lambda x: jnp.log1p(x * x),
    "sqrt": lambda x: jnp.sqrt(x * x + 0.5),
    "rsqrt": lambda x: shardwise.lax.rsqrt(x * x + 0.5),
    "cbrt": lambda x: jnp.cbrt(x * x + 0.5),
    "pow": lambda x: (x * x + 0.5) ** x,
    "arctan2": lambda x: jnp.arctan2(x, x * x + 0.5),
}
# Functions of exact values only: rounding would change their results.
NONSMOOTH: dict[str, Callable[[Any], Any]] = {
    "abs": abs,
    "sign": jnp.sign,
    "floor": jnp.floor,
    "clip": lambda x: jnp.clip(x, -1, 2),
    "remainder": lambda x: x % 2,
}


class NumericWriter(Writer):
    """Writes recipes with numeric steps."""

    def kinds(self) -> dict[str, float]:
        return super().kinds() | NUMERIC_STEPS

    def _binary(self) -> None:
        if self.rng.random() < 0.85:
            super()._binary()
            return
        pair = self._pair(lambda x: x.exact)
        if pair is not None:
            x, y = pair
            type = ArrayType(tuple(np.broadcast_shapes(x.type.shape, y.type.shape)), x.type.dtype)
            self.add("min", pair, (), type, bound=max(x.bound, y.bound), integral=x.integral and y.integral, exact=True)

    def _function(self) -> None:
        x = self.pick(lambda x: is_float(x.type.dtype))
        if x is not None:
            scale = 2.0 ** -math.ceil(math.log2(max(1.0, x.bound)))
            name = self.rng.choice(tuple(FUNCTIONS))
            self.add("function", (x,), (name, scale), x.type, bound=3, integral=False, exact=False)

    def _nonsmooth(self) -> None:
        x = self.pick(lambda x: x.exact and x.type.dtype != BOOL)
        if x is not None:
            name = self.rng.choice(tuple(NONSMOOTH))
            integral = x.integral or name in ("sign", "floor")
            self.add("nonsmooth", (x,), (name,), x.type, bound=max(2, x.bound), integral=integral, exact=True)

    def _power(self) -> None:
        x = self.pick(lambda x: x.type.dtype != BOOL and x.bound <= (1e30 if x.integral else BOUND ** (1 / 3)))
        if x is not None:
            y = self.rng.choice((2, 3))
            self.add("power", (x,), (y,), x.type, bound=max(1, x.bound) ** y, integral=x.integral, exact=x.integral)

    def _bitwise(self) -> None:
        pair = self._pair(lambda x: not is_float(x.type.dtype))
        if pair is not None:
            dtype = pair[0].type.dtype
            name = self.rng.choice(("bitwise_and", "bitwise_or", "bitwise_xor"))
            # The result is at most the next power of two above both operands.
            bound = 1 if dtype == BOOL else 2.0 ** math.ceil(math.log2(1 + max(x.bound for x in pair)))
            type = ArrayType(tuple(np.broadcast_shapes(*(x.type.shape for x in pair))), dtype)
            self.add("bitwise", pair, (name,), type, bound=bound, integral=True, exact=True)

    def _dims(self, x: ValueFacts) -> tuple[tuple[int, ...], bool, tuple[int, ...]]:
        """Return the dims to reduce, whether to keep them, and the shape of the result."""
        dims = tuple(sorted(self.rng.sample(range(x.type.ndim), self.rng.randint(1, x.type.ndim))))
        keep = self.rng.random() < 0.3
        shape = tuple(1 if dim in dims else size for dim, size in enumerate(x.type.shape) if keep or dim not in dims)
        return dims, keep, shape

    def _reduce_minmax(self) -> None:
        x = self.pick(lambda x: x.type.ndim > 0 and x.exact)
        if x is not None:
            dims, keep, shape = self._dims(x)
            name = self.rng.choice(("max", "min"))
            type = ArrayType(shape, x.type.dtype)
            self.add("reduce", (x,), (name, dims, keep), type, bound=x.bound, integral=x.integral, exact=True)

    def _prod(self) -> None:
        x = self.pick(lambda x: x.type.ndim > 0 and x.type.dtype != BF16)
        if x is not None:
            dims, keep, shape = self._dims(x)
            powers = math.prod(x.type.shape[dim] for dim in dims) * math.log2(max(1.0, x.bound))
            if powers > (math.log2(BOUND) if is_float(x.type.dtype) else 1000):
                return
            type = ArrayType(shape, I32 if x.type.dtype == BOOL else x.type.dtype)
            self.add(
                "reduce", (x,), ("prod", dims, keep), type, bound=2.0**powers, integral=x.integral, exact=x.integral
            )

    def _all_any(self) -> None:
        x = self.pick(lambda x: x.type.ndim > 0 and x.exact)
        if x is not None:
            dims, keep, shape = self._dims(x)
            name = self.rng.choice(("all", "any"))
            self.add("reduce", (x,), (name, dims, keep), ArrayType(shape, BOOL), bound=1, integral=True, exact=True)

    def _argminmax(self) -> None:
        x = self.pick(lambda x: x.type.ndim > 0 and x.exact)
        if x is not None:
            dim = self.rng.randrange(x.type.ndim)
            name = self.rng.choice(("argmax", "argmin"))
            type = ArrayType(x.type.without((dim,)).shape, I32)
            self.add("argminmax", (x,), (name, dim), type, bound=x.type.shape[dim], integral=True, exact=True)


def apply_step(step: Step, xs: list[Any], constrain: Constrain) -> Any:
    """Return the result of a step."""
    match step.kind, step.params:
        case "min", ():
            return jnp.minimum(*xs)
        case "function", (name, scale):
            return FUNCTIONS[name](xs[0] * scale)
        case "nonsmooth", (name,):
            return NONSMOOTH[name](xs[0])
        case "power", (y,):
            return xs[0] ** y
        case "bitwise", (name,):
            return getattr(jnp, name)(*xs)
        case "reduce", (name, dims, keep):
            return getattr(jnp, name)(xs[0], dims, keepdims=keep)
        case "argminmax", (name, dim):
            return getattr(jnp, name)(xs[0], dim)
        case _:
            return programs.apply_step(step, xs, constrain)
