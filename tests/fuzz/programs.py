"""Random programs of basic steps: a Writer appends random steps to a recipe, and `apply_step` runs one step.

The writer tracks two facts of every value, so that results can be compared as strictly as possible: `integral` (small
integers, whose sum does not depend on the order) and `exact` (the bits do not depend on rounding). Comparisons, maxima
and conversions to integers are only applied to exact values, because rounding would change their results.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import numpy as np

import shardwise
from shardwise import lax
from shardwise import numpy as jnp
from shardwise.ad_checkpoint import checkpoint_name
from shardwise.compiler.dtypes import is_float
from shardwise.compiler.ir.types import ArrayType, Scalar
from shardwise.compiler.ops.contract.conv import Conv
from shardwise.compiler.ops.contract.dot import Dot
from shardwise.compiler.ops.elementwise.arithmetic import Div
from shardwise.compiler.ops.indexing.sort import Sort
from shardwise.compiler.ops.reduce.broadcast import Broadcast
from shardwise.compiler.ops.reduce.cumulative import Cumulative
from shardwise.compiler.ops.reduce.reduce_window import ReduceWindow
from shardwise.compiler.ops.shape.constants import Full
from shardwise.compiler.ops.shape.iota import Iota
from shardwise.compiler.ops.shape.slicing import Concatenate, Pad, Slice
from shardwise.compiler.reduction import reduction_named
from tests.fuzz.layouts import random_spec
from tests.fuzz.recipe import BF16, BOOL, F32, I32, Constrain, Recipe, Step

SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16)
LARGEST = 2048  # elements per value
BOUND = 1e4  # the largest magnitude of a value that is not integral
WINDOW_PARAMS = ((1, 1, 2), (-1, 0, 1, 2), (-1, 0, 1, 2), (1, 1, 2), (1, 1, 2))  # strides, padding, dilations
EXACT_UP_TO = {F32: 2**24, BF16: 2**8}


@dataclass(frozen=True)
class ValueFacts:
    """The number, type and largest magnitude of a value, and whether it is integral, exact and constant."""

    number: int
    type: ArrayType
    bound: float
    integral: bool
    exact: bool
    constant: bool = False


KINDS = {
    "binary": 5, "scalar": 2, "neg": 1, "exp": 1.5, "div": 1.5, "compare": 1.5, "select": 2, "convert": 2,
    "constant": 1.5, "broadcast": 2.5, "reshape": 4, "transpose": 3, "sum": 4, "dot": 4, "constrain": 3, "array": 0.3,
    "slice": 1.5, "pad": 1.5, "concatenate": 2, "reverse": 1, "name": 0.4,
    "cumulative": 1.5, "sort": 1, "top_k": 1,
    "take": 1.5, "update": 1.5, "dynamic_slice": 1, "dynamic_update": 1, "put": 1,
    "conv": 1, "window": 1, "roll": 1, "softmax": 1, "fft": 1, "random_bits": 0.7, "cholesky": 0.7,
}  # fmt: skip


class Writer:
    """Writes one random recipe."""

    def __init__(self, rng: Random, mesh: dict[str, int], depth: int = 0):
        self.rng = rng
        self.mesh = mesh
        self.depth = depth
        self.known: list[ValueFacts] = []
        self.steps: list[Step] = []
        self.count = 0

    def input(self, type: ArrayType, like: ValueFacts | None = None) -> None:
        integers = not is_float(type.dtype) or self.rng.random() < 0.75
        fresh = ValueFacts(self.count, type, 1 if type.dtype == BOOL else 3, integers, True)
        self.known.append(fresh if like is None else replace(like, number=self.count, type=type, constant=False))
        self.count += 1

    def add(
        self, kind: str, args: Sequence[ValueFacts], params: Sequence[Any], type: ArrayType, **facts: Any
    ) -> ValueFacts:
        """Append a step with one result."""
        constant = all(x.constant for x in args)
        result = ValueFacts(self.count, type, facts["bound"], facts["integral"], facts["exact"], constant)
        limit = EXACT_UP_TO.get(type.dtype, math.inf)
        if result.integral and result.bound >= limit:
            result = replace(result, integral=False, exact=False)
        self.steps.append(Step(kind, tuple(x.number for x in args), tuple(params), (type,)))
        self.known.append(result)
        self.count += 1
        return result

    def pick(self, condition: Callable[[ValueFacts], bool] = lambda x: True) -> ValueFacts | None:
        """Return a random value that satisfies `condition`, or None. New and non-constant values are more likely."""
        fits = [x for x in self.known if not x.type.weak and x.type.size and condition(x)]
        weights = [(0.3 if x.constant else 1.0) * (1 + 2 * i / len(fits)) for i, x in enumerate(fits)]
        return self.rng.choices(fits, weights)[0] if fits else None

    def kinds(self) -> dict[str, float]:
        """Return the kinds of steps and their weights."""
        return KINDS

    def step(self) -> None:
        """Try to add one random step."""
        kinds = self.kinds()
        kind = self.rng.choices(list(kinds), list(kinds.values()))[0]
        getattr(self, f"_{kind}")()

    def _pair(self, condition: Callable[[ValueFacts], bool]) -> tuple[ValueFacts, ValueFacts] | None:
        """Return two values of one dtype whose shapes broadcast."""
        x = self.pick(condition)
        if x is None:
            return None

        def fits(y: ValueFacts) -> bool:
            if y.type.dtype != x.type.dtype or not condition(y):
                return False
            try:
                return math.prod(np.broadcast_shapes(x.type.shape, y.type.shape)) <= LARGEST
            except ValueError:
                return False

        same = self.pick(lambda y: fits(y) and y.type.shape == x.type.shape)
        y = same if self.rng.random() < 0.7 else self.pick(fits)
        return None if y is None else ((x, y) if self.rng.random() < 0.5 else (y, x))

    def _binary(self) -> None:
        kind = self.rng.choice(("add", "add", "sub", "mul", "max"))
        pair = self._pair(lambda x: (kind != "max" or x.exact) and (kind != "sub" or x.type.dtype != BOOL))
        if pair is None:
            return
        x, y = pair
        total = x.bound + y.bound
        bounds = {"add": total, "sub": total, "mul": x.bound * y.bound, "max": max(x.bound, y.bound)}
        integral = x.integral and y.integral
        exact = integral or (kind == "max" and x.exact and y.exact)
        if is_float(x.type.dtype) and not integral and bounds[kind] > BOUND:
            return
        shape = tuple(np.broadcast_shapes(x.type.shape, y.type.shape))
        self.add(kind, pair, (), ArrayType(shape, x.type.dtype), bound=bounds[kind], integral=integral, exact=exact)

    def _scalar(self) -> None:
        x = self.pick(lambda x: x.type.dtype != BOOL and (x.integral or x.bound < BOUND / 4))
        if x is None:
            return
        kind, number = self.rng.choice(("add_scalar", "mul_scalar")), self.rng.choice((-2, -1, 0, 1, 2, 3))
        bound = x.bound + abs(number) if kind == "add_scalar" else x.bound * abs(number)
        self.add(kind, (x,), (number,), x.type, bound=bound, integral=x.integral, exact=x.integral)

    def _neg(self) -> None:
        x = self.pick(lambda x: x.type.dtype != BOOL)
        if x is not None:
            self.add("neg", (x,), (), x.type, bound=x.bound, integral=x.integral, exact=x.exact)

    def _exp(self) -> None:
        x = self.pick(lambda x: is_float(x.type.dtype))
        if x is not None:
            scale = 2.0 ** -math.ceil(math.log2(max(1.0, x.bound)))
            self.add("exp", (x,), (scale,), x.type, bound=math.e, integral=False, exact=False)

    def _div(self) -> None:
        """Divide by a square plus one, which is never near zero."""
        pair = self._pair(lambda x: is_float(x.type.dtype) and x.bound <= BOUND)
        if pair is not None:
            shape = tuple(np.broadcast_shapes(*(x.type.shape for x in pair)))
            type = ArrayType(shape, pair[0].type.dtype)
            self.add("div", pair, (), type, bound=pair[0].bound, integral=False, exact=False)

    def _compare(self) -> None:
        pair = self._pair(lambda x: x.exact)
        if pair is not None:
            shape = tuple(np.broadcast_shapes(*(x.type.shape for x in pair)))
            direction = self.rng.choice(("EQ", "NE", "LT", "LE", "GT", "GE"))
            self.add("compare", pair, (direction,), ArrayType(shape, BOOL), bound=1, integral=True, exact=True)

    def _select(self) -> None:
        which = self.pick(lambda x: x.type.dtype == BOOL)
        pair = self._pair(lambda x: True)
        if which is None or pair is None:
            return
        try:
            shape = tuple(np.broadcast_shapes(which.type.shape, *(x.type.shape for x in pair)))
        except ValueError:
            return
        if math.prod(shape) > LARGEST:
            return
        x, y = pair
        facts = {"bound": max(x.bound, y.bound), "integral": x.integral and y.integral, "exact": x.exact and y.exact}
        self.add("select", (which, x, y), (), ArrayType(shape, x.type.dtype), **facts)

    def _convert(self) -> None:
        x = self.pick()
        assert x is not None
        dtype = self.rng.choice((F32, F32, I32, BOOL, BF16))
        if dtype != x.type.dtype:
            self.converted(x, dtype)

    def converted(self, x: ValueFacts, dtype: np.dtype) -> ValueFacts | None:
        """Convert a value, unless its rounding would change the result; then return None."""
        if not is_float(dtype) and not (x.exact and x.bound < 2**31):
            return None
        if dtype in EXACT_UP_TO and x.bound > BOUND and not (x.integral and x.bound < EXACT_UP_TO[dtype]):
            return None
        integral = x.integral or not is_float(dtype)
        bound = 1 if dtype == BOOL else x.bound
        widens = (x.type.dtype, dtype) == (BF16, F32)
        return self.add("convert", (x,), (dtype,), ArrayType(x.type.shape, dtype), bound=bound, integral=integral,
                        exact=integral or (x.exact and widens))  # fmt: skip

    def shape(self, most: int = 3) -> tuple[int, ...]:
        sizes = [self.rng.choice(SIZES) for _ in range(self.rng.randint(0, most))]
        while math.prod(sizes) > LARGEST:
            sizes.pop()
        return tuple(sizes)

    def _constant(self) -> None:
        like = self.pick()
        shape = like.type.shape if like is not None and self.rng.random() < 0.7 else self.shape()
        dtype = self.rng.choice((F32, I32, BF16, BOOL))
        if shape and dtype != BOOL and self.rng.random() < 0.6:
            dim = self.rng.randrange(len(shape))
            self.add(
                "iota", (), (shape, dim, dtype), ArrayType(shape, dtype), bound=shape[dim], integral=True, exact=True
            )
        else:
            number = self.rng.choice((0, 1, 2, -1)) if dtype != BOOL else self.rng.random() < 0.5
            self.add("full", (), (shape, number, dtype), ArrayType(shape, dtype), bound=2, integral=True, exact=True)

    def _array(self) -> None:
        """Add an array that the function closes over."""
        like = self.pick()
        assert like is not None
        shape = like.type.shape
        numbers = tuple(self.rng.randint(-2, 2) for _ in range(math.prod(shape)))
        dtype = self.rng.choice((F32, I32))
        self.add("array", (), (shape, numbers, dtype), ArrayType(shape, dtype), bound=2, integral=True, exact=True)

    def number(self, number: Any) -> None:
        """Add a Python scalar, to be an output."""
        dtype = {bool: BOOL, int: I32, float: F32}[type(number)]
        scalar = ArrayType((), dtype, weak=dtype != BOOL)
        self.add("number", (), (number,), scalar, bound=2, integral=True, exact=True)

    def _broadcast(self) -> None:
        x = self.pick(lambda x: x.type.size * 2 <= LARGEST and x.type.ndim < 4)
        if x is None:
            return
        shape = list(x.type.shape)
        dims = list(range(len(shape)))
        for _ in range(self.rng.randint(1, 2)):
            size = self.rng.choice([s for s in SIZES if math.prod(shape) * s <= LARGEST])
            at = self.rng.randint(0, len(shape))
            shape.insert(at, size)
            dims = [dim + (dim >= at) for dim in dims]
        type = ArrayType(tuple(shape), x.type.dtype)
        self.add(
            "broadcast", (x,), (tuple(shape), tuple(dims)), type, bound=x.bound, integral=x.integral, exact=x.exact
        )

    def _reshape(self) -> None:
        x = self.pick()
        assert x is not None
        shape = list(x.type.shape)
        for _ in range(self.rng.randint(1, 3)):
            move = self.rng.random()
            if move < 0.35 and len(shape) > 1:  # merge two dims
                at = self.rng.randrange(len(shape) - 1)
                shape[at : at + 2] = [shape[at] * shape[at + 1]]
            elif move < 0.8 and shape:  # split one
                at = self.rng.randrange(len(shape))
                small = self.rng.choice([d for d in range(1, shape[at] + 1) if shape[at] % d == 0])
                shape[at : at + 1] = [small, shape[at] // small]
            elif move < 0.9:
                shape.insert(self.rng.randint(0, len(shape)), 1)
            else:
                shape = [size for size in shape if size != 1]
        if tuple(shape) != x.type.shape and len(shape) < 6:
            type = ArrayType(tuple(shape), x.type.dtype)
            self.add("reshape", (x,), (tuple(shape),), type, bound=x.bound, integral=x.integral, exact=x.exact)

    def _transpose(self) -> None:
        x = self.pick(lambda x: x.type.ndim > 1)
        if x is not None:
            order = self.rng.sample(range(x.type.ndim), x.type.ndim)
            type = ArrayType(tuple(x.type.shape[dim] for dim in order), x.type.dtype)
            self.add("transpose", (x,), (tuple(order),), type, bound=x.bound, integral=x.integral, exact=x.exact)

    def _slice(self) -> None:
        """Slice to at least one element; the op laws cover empty slices."""
        x = self.pick(lambda x: x.type.ndim > 0)
        if x is None:
            return
        parts = []
        for size in x.type.shape:
            start, limit = sorted(self.rng.sample(range(size + 1), 2))
            parts.append((start, limit, self.rng.choice((1, 1, 2, 3))) if self.rng.random() < 0.5 else (0, size, 1))
        fields = tuple(zip(*parts, strict=True))
        type = Slice(*fields).out_type(x.type)
        self.add("slice", (x,), fields, type, bound=x.bound, integral=x.integral, exact=x.exact)

    def _pad(self) -> None:
        """Pad with a Python scalar, or with a scalar of the program."""
        x = self.pick(lambda x: x.type.ndim > 0)
        if x is None:
            return
        counts = [
            (self.rng.randint(-1, 2), self.rng.randint(-1, 2), self.rng.choice((0, 0, 1)))
            if self.rng.random() < 0.5
            else (0, 0, 0)
            for _ in x.type.shape
        ]
        value = self.pick(lambda y: y.type.shape == () and y.type.dtype == x.type.dtype)
        number = self.rng.choice((0, 1, -1)) if x.type.dtype != BOOL else self.rng.random() < 0.5
        low, high, interior = zip(*counts, strict=True)
        padded = zip(x.type.shape, counts, strict=True)
        if any(size + before + after < 1 for size, (before, after, _) in padded):
            return
        type = Pad(low, high, interior).out_type(x.type, ArrayType((), x.type.dtype))
        if type.size > LARGEST:
            return
        if value is None or self.rng.random() < 0.5:
            self.add(
                "pad", (x,), (number, tuple(counts)), type, bound=max(1, x.bound), integral=x.integral, exact=x.exact
            )
        else:
            facts = {"bound": max(x.bound, value.bound), "integral": x.integral and value.integral}
            self.add("pad", (x, value), (None, tuple(counts)), type, **facts, exact=x.exact and value.exact)

    def _concatenate(self) -> None:
        x = self.pick(lambda x: x.type.ndim > 0)
        if x is None:
            return
        dim = self.rng.randrange(x.type.ndim)
        others = x.type.without((dim,)).shape

        def fits(y: ValueFacts) -> bool:
            matching = y.type.dtype == x.type.dtype and y.type.ndim == x.type.ndim
            return matching and y.type.without((dim,)).shape == others

        parts = [part for part in (x, *(self.pick(fits) for _ in range(self.rng.randint(1, 2)))) if part is not None]
        type = Concatenate(dim).out_type(*(part.type for part in parts))
        if type.size <= LARGEST:
            integral, exact = all(part.integral for part in parts), all(part.exact for part in parts)
            bound = max(part.bound for part in parts)
            self.add("concatenate", parts, (dim,), type, bound=bound, integral=integral, exact=exact)

    def _reverse(self) -> None:
        x = self.pick(lambda x: x.type.ndim > 0)
        if x is not None:
            dims = tuple(self.rng.sample(range(x.type.ndim), self.rng.randint(1, x.type.ndim)))
            self.add("reverse", (x,), (dims,), x.type, bound=x.bound, integral=x.integral, exact=x.exact)

    def _index(self) -> tuple[tuple[ValueFacts, ...], tuple[tuple[int, ...], tuple[int, ...]] | None, tuple[int, ...]]:
        """Return indices, some out of bounds: a value of the program or constants; and their shape."""
        traced = self.pick(lambda x: x.type.dtype == I32 and x.exact and x.type.ndim < 3 and x.type.size <= 24)
        if traced is not None and self.rng.random() < 0.6:
            return (traced,), None, traced.type.shape
        shape = tuple(self.rng.randint(1, 4) for _ in range(self.rng.randint(0, 2)))
        return (), (shape, tuple(self.rng.randint(-9, 9) for _ in range(math.prod(shape)))), shape

    def _take(self) -> None:
        x = self.pick(lambda x: x.type.ndim > 0)
        if x is None:
            return
        args, numbers, index_shape = self._index()
        dim = self.rng.randrange(x.type.ndim)
        shape = (*x.type.shape[:dim], *index_shape, *x.type.shape[dim + 1 :])
        if math.prod(shape) <= LARGEST and len(shape) < 6:
            mode = self.rng.choice(("index", "fill", "wrap"))
            facts = {"bound": max(1, x.bound), "integral": x.integral, "exact": x.exact}
            self.add("take", (x, *args), (dim, numbers, mode), ArrayType(shape, x.type.dtype), **facts)

    def _update(self) -> None:
        x = self.pick(lambda x: x.type.ndim > 0)
        if x is None:
            return
        args, numbers, index_shape = self._index()
        dim = self.rng.randrange(x.type.ndim)
        shape = (*x.type.shape[:dim], *index_shape, *x.type.shape[dim + 1 :])
        mode = self.rng.choice(("set", "add", "max") if x.exact else ("set", "add"))
        if math.prod(shape) > LARGEST or len(shape) >= 6:
            return
        value = self.value_of_type(ArrayType(shape, x.type.dtype))
        if mode == "max" and not value.exact:
            return
        self._add_update("update", mode, x, value, args, (dim, numbers), math.prod(index_shape))

    def _put(self) -> None:
        """Update static slices."""
        x = self.pick(lambda x: x.type.ndim > 0)
        if x is None:
            return
        parts = []
        for size in x.type.shape:
            start, limit = sorted(self.rng.sample(range(size + 1), 2))
            part = (start, limit, self.rng.choice((1, 1, 2))) if self.rng.random() < 0.6 else (0, size, 1)
            parts.append(part)
        shape = tuple(len(range(*part)) for part in parts)
        if self.rng.random() < 0.4:
            shape = shape[1:]
        mode = self.rng.choice(("set", "add", "max") if x.exact else ("set", "add"))
        value = self.value_of_type(ArrayType(shape, x.type.dtype))
        if mode == "max" and not value.exact:
            return
        self._add_update("put", mode, x, value, (), (tuple(parts),), 1)

    def _add_update(
        self,
        kind: str,
        mode: str,
        x: ValueFacts,
        value: ValueFacts,
        args: Sequence[ValueFacts],
        params: Sequence[Any],
        repeats: int,
    ) -> None:
        """Append a step that combines `value` with `x` at some positions, up to `repeats` times at each."""
        integral = x.integral and value.integral
        bound = x.bound + repeats * value.bound if mode == "add" else max(x.bound, value.bound)
        if x.type.dtype == BOOL:
            bound = 1
        if is_float(x.type.dtype) and not integral and bound > BOUND:
            return
        exact = integral if mode == "add" else x.exact and value.exact
        self.add(kind, (x, value, *args), (mode, *params), x.type, bound=bound, integral=integral, exact=exact)

    def _starts(self, ndim: int) -> tuple[tuple[ValueFacts, ...], tuple[int | None, ...]]:
        """Return start indices: scalars of the program or constants."""
        numbers, args = [], []
        for _ in range(ndim):
            traced = self.pick(lambda x: x.type.dtype == I32 and x.exact and not x.type.ndim)
            if traced is not None and self.rng.random() < 0.5:
                args.append(traced)
                numbers.append(None)
            else:
                numbers.append(self.rng.randint(-9, 9))
        return tuple(args), tuple(numbers)

    def _dynamic_slice(self) -> None:
        x = self.pick(lambda x: x.type.ndim > 0)
        if x is None:
            return
        sizes = tuple(size if self.rng.random() < 0.4 else self.rng.randint(1, size) for size in x.type.shape)
        args, numbers = self._starts(x.type.ndim)
        type = ArrayType(sizes, x.type.dtype)
        self.add("dynamic_slice", (x, *args), (sizes, numbers), type, bound=x.bound, integral=x.integral, exact=x.exact)

    def _dynamic_update(self) -> None:
        x = self.pick(lambda x: x.type.ndim > 0)
        if x is None:
            return
        sizes = tuple(size if self.rng.random() < 0.4 else self.rng.randint(1, size) for size in x.type.shape)
        value = self.value_of_type(ArrayType(sizes, x.type.dtype))
        args, numbers = self._starts(x.type.ndim)
        facts = {"bound": max(x.bound, value.bound), "integral": x.integral and value.integral}
        exact = x.exact and value.exact
        self.add("dynamic_update", (x, value, *args), (numbers,), x.type, **facts, exact=exact)

    def _cumulative(self) -> None:
        """Maxima and minima are of exact values only: rounding would break ties."""
        x = self.pick(lambda x: x.type.ndim > 0)
        if x is None:
            return
        dim, reverse = self.rng.randrange(x.type.ndim), self.rng.random() < 0.5
        count = x.type.shape[dim]
        modes = ["max", "min"] * x.exact + ["sum", "sum", "prod"] * (x.type.dtype != BOOL)
        modes += ["logsumexp"] * is_float(x.type.dtype)
        if not modes:
            return
        mode = self.rng.choice(modes)
        logarithm = math.log(max(1.0, x.bound)) * count
        if mode == "prod" and logarithm > math.log(BOUND):
            return
        bounds = {"sum": x.bound * count, "prod": math.exp(min(logarithm, 700)), "logsumexp": x.bound + math.log(count)}
        bound = bounds.get(mode, x.bound)
        if is_float(x.type.dtype) and not x.integral and bound > BOUND:
            return
        integral = x.integral and mode != "logsumexp"
        exact = integral or (mode in ("max", "min") and x.exact)
        self.add("cumulative", (x,), (dim, mode, reverse), x.type, bound=bound, integral=integral, exact=exact)

    def _sort(self) -> None:
        """Sort a value by exact keys."""
        x = self.pick(lambda x: x.type.ndim > 0)
        if x is None:
            return
        key = self.pick(lambda y: y.type.shape == x.type.shape and y.exact)
        if key is None:
            return
        dim, descending = self.rng.randrange(x.type.ndim), self.rng.random() < 0.3
        self.add("sort", (key, x), (dim, descending), x.type, bound=x.bound, integral=x.integral, exact=x.exact)

    def _top_k(self) -> None:
        x = self.pick(lambda x: x.type.ndim > 0 and x.exact)
        if x is None:
            return
        size = x.type.shape[-1]
        k, indices = self.rng.randint(1, size), self.rng.random() < 0.4
        shape = (*x.type.shape[:-1], k)
        if indices:
            self.add("top_k", (x,), (k, indices), ArrayType(shape, I32), bound=size, integral=True, exact=True)
        else:
            self.add(
                "top_k",
                (x,),
                (k, indices),
                ArrayType(shape, x.type.dtype),
                bound=x.bound,
                integral=x.integral,
                exact=x.exact,
            )

    def _sum(self) -> None:
        x = self.pick(lambda x: x.type.ndim > 0)
        if x is None:
            return
        dims = tuple(sorted(self.rng.sample(range(x.type.ndim), self.rng.randint(1, x.type.ndim))))
        keep = self.rng.random() < 0.3
        bound = x.bound * math.prod(x.type.shape[dim] for dim in dims)
        if is_float(x.type.dtype) and not x.integral and bound > BOUND:
            return
        shape = tuple(1 if dim in dims else size for dim, size in enumerate(x.type.shape) if keep or dim not in dims)
        dtype = I32 if x.type.dtype == BOOL else x.type.dtype
        self.add("sum", (x,), (dims, keep), ArrayType(shape, dtype), bound=bound, integral=x.integral, exact=x.integral)

    def _dot(self) -> None:
        x = self.pick(lambda x: x.type.ndim > 0 and x.type.dtype != BOOL)
        if x is None:
            return
        y = (
            self.pick(
                lambda y: y.type.dtype == x.type.dtype and bool(set(y.type.shape) & set(x.type.shape)) and y is not x
            )
            or x
        )
        pairs = [(a, b) for a in range(x.type.ndim) for b in range(y.type.ndim) if x.type.shape[a] == y.type.shape[b]]
        self.rng.shuffle(pairs)
        contract: list[tuple[int, int]] = []
        batch: list[tuple[int, int]] = []
        for a, b in pairs:
            if not any(a == c or b == d for c, d in contract + batch):
                self.rng.choice((contract, contract, batch, [])).append((a, b))
        lists = [tuple(tuple(pair[side] for pair in part) for side in (0, 1)) for part in (contract, batch)]
        type = Dot(*lists).out_type(x.type.strong(), y.type.strong())
        bound = x.bound * y.bound * math.prod(x.type.shape[a] for a, _ in contract)
        integral = x.integral and y.integral
        if type.size > LARGEST or (is_float(type.dtype) and not integral and bound > BOUND):
            return
        self.add("dot", (x, y), lists, type, bound=bound, integral=integral, exact=integral)

    def _conv(self) -> None:
        """Dims of equal size are contracted or batched; one or two other dims of each operand are spatial."""
        x = self.pick(lambda x: x.type.ndim > 0 and x.type.dtype != BOOL)
        y = None if x is None else self.pick(lambda y: y.type.ndim > 0 and y.type.dtype == x.type.dtype)
        if x is None or y is None:
            return
        count = self.rng.randint(1, min(2, x.type.ndim, y.type.ndim))
        left, right = ([""] * z.type.ndim for z in (x, y))
        for names in (left, right):
            for index, dim in enumerate(self.rng.sample(range(len(names)), count)):
                names[dim] = str(index)
        fresh = iter("abcdefghijklmnop")
        summed, out = 1, [str(index) for index in range(count)]
        for dim, name in enumerate(left):
            if name:
                continue
            left[dim] = next(fresh)
            matching = [at for at, other in enumerate(right) if not other and y.type.shape[at] == x.type.shape[dim]]
            if matching and self.rng.random() < 0.8:
                right[self.rng.choice(matching)] = left[dim]
                if self.rng.random() < 0.7:
                    summed *= x.type.shape[dim]
                    continue
            out.append(left[dim])
        right = [name or next(fresh) for name in right]
        out += [name for name in right if name not in (*left, *out)]
        self.rng.shuffle(out)
        columns = [[self.rng.choice(numbers) for _ in range(count)] for numbers in WINDOW_PARAMS]
        windows = [y.type.shape[right.index(str(index))] for index in range(count)]
        params = (*map("".join, (left, right, out)), *map(tuple, columns))
        type = Conv(*params, x.type.dtype).out_type(x.type, y.type)
        integral = x.integral and y.integral
        bound = x.bound * y.bound * summed * math.prod(windows)
        if (
            not 0 < type.size <= LARGEST
            or max(windows) > 8
            or (is_float(type.dtype) and not integral and bound > BOUND)
        ):
            return
        self.add("conv", (x, y), params, type, bound=bound, integral=integral, exact=integral)

    def _window(self) -> None:
        """Every window of a maximum overlaps the array: the maximum of none is infinite."""
        mode = self.rng.choice(("sum", "max", "min"))
        x = self.pick(lambda x: x.type.ndim > 0 and x.type.dtype != BOOL and (mode == "sum" or x.exact))
        if x is None:
            return
        parts = []
        for size in x.type.shape:
            window = self.rng.randint(1, min(size, 4))
            before, after = (self.rng.randint(0, window - 1) for _ in range(2))
            stride, base, dilation = (self.rng.choice((1, 1, 2)) for _ in range(3))
            undilated = (window, stride, before, after, 1, 1)
            dilated = (window, stride, before, after, base, dilation)
            parts.append((1, 1, 0, 0, 1, 1) if self.rng.random() < 0.5 else dilated if mode == "sum" else undilated)
        fields = (mode, *zip(*parts, strict=True))
        type = ReduceWindow(reduction_named(mode), *fields[1:]).out_type(x.type)
        bound = x.bound * (math.prod(part[0] for part in parts) if mode == "sum" else 1)
        if not 0 < type.size <= LARGEST or (is_float(type.dtype) and not x.integral and bound > BOUND):
            return
        self.add("window", (x,), fields, type, bound=bound, integral=x.integral, exact=x.integral or mode != "sum")

    def _roll(self) -> None:
        x = self.pick(lambda x: x.type.ndim > 0)
        if x is not None:
            dim, shift = self.rng.randrange(x.type.ndim), self.rng.randint(-9, 9)
            self.add("roll", (x,), (shift, dim), x.type, bound=x.bound, integral=x.integral, exact=x.exact)

    def _softmax(self) -> None:
        x = self.pick(lambda x: x.type.ndim > 0 and is_float(x.type.dtype) and x.bound <= 50)
        if x is not None:
            self.add("softmax", (x,), (self.rng.randrange(x.type.ndim),), x.type, bound=1, integral=False, exact=False)

    def _fft(self) -> None:
        """Add the real part of a Fourier transform."""
        x = self.pick(lambda x: x.type.ndim > 0 and x.type.dtype == F32)
        if x is not None:
            dim = self.rng.randrange(x.type.ndim)
            if x.bound * x.type.shape[dim] <= BOUND:
                self.add("fft", (x,), (dim,), x.type, bound=x.bound * x.type.shape[dim], integral=False, exact=False)

    def _random_bits(self) -> None:
        """Add random integers, which must not depend on the layout."""
        shape = self.shape()
        self.add(
            "random_bits",
            (),
            (shape, self.rng.randrange(1000)),
            ArrayType(shape, I32),
            bound=64,
            integral=True,
            exact=True,
        )

    def _cholesky(self) -> None:
        """Add the Cholesky factor of `x @ x.T` + identity."""
        x = self.pick(lambda x: x.type.ndim > 1 and x.type.dtype == F32)
        if x is None:
            return
        rows, columns = x.type.shape[-2:]
        shape = (*x.type.shape[:-1], rows)
        if math.prod(shape) <= LARGEST:
            scale = 1 / (1 + columns * x.bound**2)
            self.add("cholesky", (x,), (scale,), ArrayType(shape, F32), bound=2, integral=False, exact=False)

    def _constrain(self) -> None:
        x = self.pick()
        assert x is not None
        spec = random_spec(self.rng, x.type.shape, self.mesh, unconstrained=True)
        self.add("constrain", (x,), (spec,), x.type, bound=x.bound, integral=x.integral, exact=x.exact)
        self.known[-1] = replace(self.known[-1], constant=False)

    def _name(self) -> None:
        """Name a value for the policies of checkpoint."""
        x = self.pick()
        assert x is not None
        label = self.rng.choice("pq")
        self.add("name", (x,), (label,), x.type, bound=x.bound, integral=x.integral, exact=x.exact)

    def value_of_type(self, type: ArrayType) -> ValueFacts:
        """Return a value of this type: an existing or a new one."""
        existing = [x for x in self.known if x.type == type]
        if existing and self.rng.random() < 0.6:
            return self.rng.choice(existing[-3:])
        made = self._coerce(type)
        if made is not None:
            return made
        number = True if type.dtype == BOOL else 1
        return self.add("full", (), (type.shape, number, type.dtype), type, bound=1, integral=True, exact=True)

    def _coerce(self, type: ArrayType) -> ValueFacts | None:
        """Sum, convert and broadcast some value to this type; return None if rounding would change the result."""
        x = self.pick(lambda x: x.type.shape == type.shape or x.bound * x.type.size <= BOUND)
        if x is not None and x.type.shape != type.shape and x.type.ndim:
            scalar = ArrayType((), I32 if x.type.dtype == BOOL else x.type.dtype)
            dims = tuple(range(x.type.ndim))
            x = self.add(
                "sum", (x,), (dims, False), scalar, bound=x.bound * x.type.size, integral=x.integral, exact=x.integral
            )
        if x is not None and x.type.dtype != type.dtype:
            x = self.converted(x, type.dtype)
        if x is not None and x.type.shape != type.shape:
            x = self.add("broadcast", (x,), (type.shape, ()), type, bound=x.bound, integral=x.integral, exact=x.exact)
        return x

    @property
    def inputs(self) -> int:
        """The number of inputs."""
        return self.count - sum(len(step.results) for step in self.steps)

    def recipe(self, outputs: Sequence[ValueFacts]) -> Recipe:
        """Return the recipe with these outputs."""
        inputs = self.known[: self.inputs]
        return Recipe(
            tuple(x.type for x in inputs),
            tuple(self.steps),
            tuple(x.number for x in outputs),
            tuple(x.exact for x in outputs),
            tuple(x.integral for x in inputs),
        )


def starts_of(numbers: Sequence[int | None], traced: Sequence[Any]) -> list[Any]:
    """Return start indices: constants, and traced values in place of None."""
    rest = iter(traced)
    return [next(rest) if number is None else number for number in numbers]


def apply_step(step: Step, xs: list[Any], constrain: Constrain) -> Any:
    """Return the result of a step."""
    match step.kind, step.params:
        case "add", ():
            result = xs[0] + xs[1]
        case "sub", ():
            result = xs[0] - xs[1]
        case "mul", ():
            result = xs[0] * xs[1]
        case "max", ():
            result = jnp.maximum(*xs)
        case "add_scalar", (number,):
            result = xs[0] + number
        case "mul_scalar", (number,):
            result = number * xs[0]
        case "neg", ():
            result = -xs[0]
        case "exp", (scale,):
            result = jnp.exp(xs[0] * scale)
        case "div", ():
            divisor = xs[1] * xs[1] + 1
            result = xs[0] / divisor if xs[0].shape != divisor.shape else Div()(xs[0], divisor)
        case "compare", (direction,):
            compare = {"EQ": "equal", "NE": "not_equal", "LT": "less", "LE": "less_equal", "GT": "greater"}
            result = getattr(jnp, compare.get(direction, "greater_equal"))(*xs)
        case "select", ():
            result = jnp.where(*xs)
        case "convert", (dtype,):
            result = xs[0].astype(dtype)
        case "iota", (shape, dim, dtype):
            result = Iota(shape, dim, dtype)()
        case "full", (shape, number, dtype):
            result = Full(shape, Scalar.from_value(number, dtype))()
        case "array", (shape, numbers, dtype):
            result = jnp.asarray(np.array(numbers, dtype).reshape(shape))
        case "number", (number,):
            result = number
        case "broadcast", (shape, dims):
            result = Broadcast(shape, dims)(xs[0])
        case "reshape", (shape,):
            result = xs[0].reshape(shape)
        case "transpose", (order,):
            result = xs[0].transpose(order)
        case "slice", (start, limit, stride):
            result = shardwise.lax.slice(xs[0], start, limit, stride)
        case "pad", (number, counts):
            value = xs[1] if len(xs) > 1 else number
            result = shardwise.lax.pad(xs[0], value, counts)
        case "concatenate", (dim,):
            result = jnp.concatenate(xs, dim)
        case "reverse", (dims,):
            result = jnp.flip(xs[0], dims)
        case "take", (dim, numbers, mode):
            index = xs[1] if numbers is None else np.array(numbers[1], np.int32).reshape(numbers[0])
            if mode == "index":
                result = xs[0][(*(slice(None),) * dim, index)]
            else:
                result = jnp.take(xs[0], index, axis=dim, mode=mode, fill_value=1)
        case "update", (mode, dim, numbers):
            index = xs[2] if numbers is None else np.array(numbers[1], np.int32).reshape(numbers[0])
            result = getattr(xs[0].at[(*(slice(None),) * dim, index)], mode)(xs[1])
        case "put", (mode, parts):
            result = getattr(xs[0].at[tuple(slice(*part) for part in parts)], mode)(xs[1])
        case "dynamic_slice", (sizes, numbers):
            result = shardwise.lax.dynamic_slice(xs[0], starts_of(numbers, xs[1:]), sizes)
        case "dynamic_update", (numbers,):
            result = shardwise.lax.dynamic_update_slice(xs[0], xs[1], starts_of(numbers, xs[2:]))
        case "cumulative", (dim, mode, reverse):
            result = Cumulative(dim, reduction_named(mode), reverse)(xs[0])
        case "sort", (dim, descending):
            result = Sort(dim, 1, descending)(*xs)[1]
        case "top_k", (k, indices):
            # The sign of a zero depends on the order of a sum, and top_k orders 0.0 before -0.0.
            x = jnp.where(xs[0] == 0, jnp.zeros_like(xs[0]), xs[0]) if is_float(xs[0].dtype) else xs[0]
            result = lax.top_k(x, k)[indices]
        case "sum", (dims, keep):
            result = xs[0].sum(dims, keepdims=keep)
        case "dot", (contract, batch):
            result = Dot(contract, batch)(*xs)
        case "conv", (left, right, out, *lists):
            result = Conv(left, right, out, *lists, xs[0].dtype)(*xs)
        case "window", (mode, *fields):
            result = ReduceWindow(reduction_named(mode), *fields)(xs[0])
        case "roll", (shift, dim):
            result = jnp.roll(xs[0], shift, dim)
        case "softmax", (dim,):
            result = shardwise.nn.softmax(xs[0], dim)
        case "fft", (dim,):
            result = jnp.fft.fft(xs[0], axis=dim).real
        case "random_bits", (shape, seed):
            bits = shardwise.random.bits(shardwise.random.PRNGKey(seed), shape)
            result = (bits >> 26).astype(np.int32)
        case "cholesky", (scale,):
            product = xs[0] @ jnp.swapaxes(xs[0], -1, -2) * scale
            result = shardwise.lax.linalg.cholesky(product + jnp.eye(product.shape[-1]))
        case "constrain", (spec,):
            result = constrain(xs[0], spec)
        case "name", (label,):
            result = checkpoint_name(xs[0], label)
        case "clip", (bound,):
            result = jnp.clip(xs[0], -bound, bound)
        case _:
            raise AssertionError(step.kind)
    return result
