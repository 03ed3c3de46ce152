"""Steps that compute with numbers, beyond plain arithmetic: functions, steps and kinks, bits, and reductions."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

import shardwise
from shardwise import numpy as jnp
from shardwise.compiler.dtypes import is_float
from shardwise.compiler.ir.types import ArrayType
from tests.fuzz import programs
from tests.fuzz.programs import BOUND, Known, Writer
from tests.fuzz.recipe import BF16, BOOL, I32, Constrain, Step

NUMBERS = {
    "function": 2.0, "kink": 1.5, "power": 1.0, "logic": 1.5, "extreme": 2.0, "prod": 1.0, "position": 1.0,
    "whether": 1.0,
}  # fmt: skip

# Of numbers between -1 and 1, with results between -3 and 3.
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
# Where a rounding would show.
KINKS: dict[str, Callable[[Any], Any]] = {
    "abs": abs,
    "sign": jnp.sign,
    "floor": jnp.floor,
    "clip": lambda x: jnp.clip(x, -1, 2),
    "remainder": lambda x: x % 2,
}


class NumberWriter(Writer):
    """Writes recipes with these steps too."""

    def kinds(self) -> dict[str, float]:
        return super().kinds() | NUMBERS

    def _binary(self) -> None:
        if self.rng.random() < 0.85:
            super()._binary()
            return
        pair = self._pair(lambda x: x.exact)
        if pair is not None:
            x, y = pair
            type = ArrayType(tuple(np.broadcast_shapes(x.type.shape, y.type.shape)), x.type.dtype)
            self.add("min", pair, (), type, bound=max(x.bound, y.bound), whole=x.whole and y.whole, exact=True)

    def _function(self) -> None:
        x = self.pick(lambda x: is_float(x.type.dtype))
        if x is not None:
            scale = 2.0 ** -math.ceil(math.log2(max(1.0, x.bound)))
            name = self.rng.choice(tuple(FUNCTIONS))
            self.add("function", (x,), (name, scale), x.type, bound=3, whole=False, exact=False)

    def _kink(self) -> None:
        x = self.pick(lambda x: x.exact and x.type.dtype != BOOL)
        if x is not None:
            name = self.rng.choice(tuple(KINKS))
            whole = x.whole or name in ("sign", "floor")
            self.add("kink", (x,), (name,), x.type, bound=max(2, x.bound), whole=whole, exact=True)

    def _power(self) -> None:
        x = self.pick(lambda x: x.type.dtype != BOOL and (x.whole or x.bound**3 <= BOUND))
        if x is not None:
            y = self.rng.choice((2, 3))
            self.add("power", (x,), (y,), x.type, bound=max(1, x.bound) ** y, whole=x.whole, exact=x.whole)

    def _logic(self) -> None:
        pair = self._pair(lambda x: not is_float(x.type.dtype))
        if pair is not None:
            dtype = pair[0].type.dtype
            name = self.rng.choice(("bitwise_and", "bitwise_or", "bitwise_xor"))
            # Of integers with signs: at most the power of two above both.
            bound = 1 if dtype == BOOL else 2.0 ** math.ceil(math.log2(1 + max(x.bound for x in pair)))
            type = ArrayType(tuple(np.broadcast_shapes(*(x.type.shape for x in pair))), dtype)
            self.add("logic", pair, (name,), type, bound=bound, whole=True, exact=True)

    def _dims(self, x: Known) -> tuple[tuple[int, ...], bool, tuple[int, ...]]:
        """Dims to reduce, whether they are kept, and the shape that is left."""
        dims = tuple(sorted(self.rng.sample(range(x.type.ndim), self.rng.randint(1, x.type.ndim))))
        keep = self.rng.random() < 0.3
        shape = tuple(1 if dim in dims else size for dim, size in enumerate(x.type.shape) if keep or dim not in dims)
        return dims, keep, shape

    def _extreme(self) -> None:
        x = self.pick(lambda x: x.type.ndim > 0 and x.exact)
        if x is not None:
            dims, keep, shape = self._dims(x)
            name = self.rng.choice(("max", "min"))
            type = ArrayType(shape, x.type.dtype)
            self.add("reduce", (x,), (name, dims, keep), type, bound=x.bound, whole=x.whole, exact=True)

    def _prod(self) -> None:
        x = self.pick(lambda x: x.type.ndim > 0 and x.type.dtype != BF16)
        if x is not None:
            dims, keep, shape = self._dims(x)
            powers = math.prod(x.type.shape[dim] for dim in dims) * math.log2(max(1.0, x.bound))
            if powers > (math.log2(BOUND) if is_float(x.type.dtype) else 1000):
                return
            type = ArrayType(shape, I32 if x.type.dtype == BOOL else x.type.dtype)
            self.add("reduce", (x,), ("prod", dims, keep), type, bound=2.0**powers, whole=x.whole, exact=x.whole)

    def _whether(self) -> None:
        x = self.pick(lambda x: x.type.ndim > 0 and x.exact)
        if x is not None:
            dims, keep, shape = self._dims(x)
            name = self.rng.choice(("all", "any"))
            self.add("reduce", (x,), (name, dims, keep), ArrayType(shape, BOOL), bound=1, whole=True, exact=True)

    def _position(self) -> None:
        x = self.pick(lambda x: x.type.ndim > 0 and x.exact)
        if x is not None:
            dim = self.rng.randrange(x.type.ndim)
            name = self.rng.choice(("argmax", "argmin"))
            type = ArrayType(x.type.without((dim,)).shape, I32)
            self.add("position", (x,), (name, dim), type, bound=x.type.shape[dim], whole=True, exact=True)


def apply_step(step: Step, xs: list[Any], constrain: Constrain) -> Any:
    """What one step gives, of a kind that has one result."""
    match step.kind, step.params:
        case "min", ():
            return jnp.minimum(*xs)
        case "function", (name, scale):
            return FUNCTIONS[name](xs[0] * scale)
        case "kink", (name,):
            return KINKS[name](xs[0])
        case "power", (y,):
            return xs[0] ** y
        case "logic", (name,):
            return getattr(jnp, name)(*xs)
        case "reduce", (name, dims, keep):
            return getattr(jnp, name)(xs[0], dims, keepdims=keep)
        case "position", (name, dim):
            return getattr(jnp, name)(xs[0], dim)
        case _:
            return programs.apply_step(step, xs, constrain)
