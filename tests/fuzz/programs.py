"""Random programs of plain steps: a Writer adds one random step after the other, `apply_step` runs one.

Two things are tracked for every value while a recipe is written, so that the check can be as sharp as possible:
`whole` (small integers: any order of summation gives the same bits) and `exact` (the bits do not depend on rounding).
Comparisons, maxima and conversions to integers are drawn for exact values only, because a rounding there would show as
a different answer.
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
LARGEST = 2048  # elements of one value
BOUND = 1e4  # of a value that is not an integer
SLIDINGS = ((1, 1, 2), (-1, 0, 1, 2), (-1, 0, 1, 2), (1, 1, 2), (1, 1, 2))  # strides, padding, dilations
EXACT_UP_TO = {F32: 2**24, BF16: 2**8}


@dataclass(frozen=True)
class Known:
    """What the writer knows of a value: its number, type, largest magnitude, and the facts of this module's head."""

    number: int
    type: ArrayType
    bound: float
    whole: bool
    exact: bool
    constant: bool = False


KINDS = {
    "binary": 5, "scalar": 2, "neg": 1, "exp": 1.5, "div": 1.5, "compare": 1.5, "select": 2, "convert": 2,
    "constant": 1.5, "broadcast": 2.5, "reshape": 4, "transpose": 3, "sum": 4, "dot": 4, "constrain": 3, "array": 0.3,
    "slice": 1.5, "pad": 1.5, "concatenate": 2, "reverse": 1, "name": 0.4,
    "cumulative": 1.5, "sort": 1, "largest": 1,
    "take": 1.5, "update": 1.5, "dynamic_slice": 1, "dynamic_update": 1, "put": 1,
    "conv": 1, "window": 1, "roll": 1, "softmax": 1, "spectrum": 1, "draw": 0.7, "factored": 0.7,
}  # fmt: skip


class Writer:
    """Writes one recipe."""

    def __init__(self, rng: Random, mesh: dict[str, int], depth: int = 0):
        self.rng = rng
        self.mesh = mesh
        self.depth = depth
        self.known: list[Known] = []
        self.steps: list[Step] = []
        self.count = 0

    def input(self, type: ArrayType, like: Known | None = None) -> None:
        integers = not is_float(type.dtype) or self.rng.random() < 0.75
        fresh = Known(self.count, type, 1 if type.dtype == BOOL else 3, integers, True)
        self.known.append(fresh if like is None else replace(like, number=self.count, type=type, constant=False))
        self.count += 1

    def add(self, kind: str, args: Sequence[Known], params: Sequence[Any], type: ArrayType, **facts: Any) -> Known:
        """One more step with one result."""
        free = all(x.constant for x in args)
        found = Known(self.count, type, facts["bound"], facts["whole"], facts["exact"], free)
        limit = EXACT_UP_TO.get(type.dtype, math.inf)
        if found.whole and found.bound >= limit:
            found = replace(found, whole=False, exact=False)
        self.steps.append(Step(kind, tuple(x.number for x in args), tuple(params), (type,)))
        self.known.append(found)
        self.count += 1
        return found

    def pick(self, wanted: Callable[[Known], bool] = lambda x: True) -> Known | None:
        """A value that fits; newer ones and those that depend on inputs are drawn more often."""
        fits = [x for x in self.known if not x.type.weak and x.type.size and wanted(x)]
        weights = [(0.3 if x.constant else 1.0) * (1 + 2 * i / len(fits)) for i, x in enumerate(fits)]
        return self.rng.choices(fits, weights)[0] if fits else None

    def kinds(self) -> dict[str, float]:
        """The kinds of steps, and how often each is drawn."""
        return KINDS

    def step(self) -> None:
        """Try to add one random step."""
        kinds = self.kinds()
        kind = self.rng.choices(list(kinds), list(kinds.values()))[0]
        getattr(self, f"_{kind}")()

    def _pair(self, wanted: Callable[[Known], bool]) -> tuple[Known, Known] | None:
        """Two values of one dtype whose shapes broadcast."""
        x = self.pick(wanted)
        if x is None:
            return None

        def fits(y: Known) -> bool:
            if y.type.dtype != x.type.dtype or not wanted(y):
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
        whole = x.whole and y.whole
        exact = whole or (kind == "max" and x.exact and y.exact)
        if is_float(x.type.dtype) and not whole and bounds[kind] > BOUND:
            return
        shape = tuple(np.broadcast_shapes(x.type.shape, y.type.shape))
        self.add(kind, pair, (), ArrayType(shape, x.type.dtype), bound=bounds[kind], whole=whole, exact=exact)

    def _scalar(self) -> None:
        x = self.pick(lambda x: x.type.dtype != BOOL and (x.whole or x.bound < BOUND / 4))
        if x is None:
            return
        kind, number = self.rng.choice(("add_scalar", "mul_scalar")), self.rng.choice((-2, -1, 0, 1, 2, 3))
        bound = x.bound + abs(number) if kind == "add_scalar" else x.bound * abs(number)
        self.add(kind, (x,), (number,), x.type, bound=bound, whole=x.whole, exact=x.whole)

    def _neg(self) -> None:
        x = self.pick(lambda x: x.type.dtype != BOOL)
        if x is not None:
            self.add("neg", (x,), (), x.type, bound=x.bound, whole=x.whole, exact=x.exact)

    def _exp(self) -> None:
        x = self.pick(lambda x: is_float(x.type.dtype))
        if x is not None:
            scale = 2.0 ** -math.ceil(math.log2(max(1.0, x.bound)))
            self.add("exp", (x,), (scale,), x.type, bound=math.e, whole=False, exact=False)

    def _div(self) -> None:
        """By a square plus one: never near zero."""
        pair = self._pair(lambda x: is_float(x.type.dtype) and x.bound <= BOUND)
        if pair is not None:
            shape = tuple(np.broadcast_shapes(*(x.type.shape for x in pair)))
            type = ArrayType(shape, pair[0].type.dtype)
            self.add("div", pair, (), type, bound=pair[0].bound, whole=False, exact=False)

    def _compare(self) -> None:
        pair = self._pair(lambda x: x.exact)
        if pair is not None:
            shape = tuple(np.broadcast_shapes(*(x.type.shape for x in pair)))
            direction = self.rng.choice(("EQ", "NE", "LT", "LE", "GT", "GE"))
            self.add("compare", pair, (direction,), ArrayType(shape, BOOL), bound=1, whole=True, exact=True)

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
        facts = {"bound": max(x.bound, y.bound), "whole": x.whole and y.whole, "exact": x.exact and y.exact}
        self.add("select", (which, x, y), (), ArrayType(shape, x.type.dtype), **facts)

    def _convert(self) -> None:
        x = self.pick()
        assert x is not None
        dtype = self.rng.choice((F32, F32, I32, BOOL, BF16))
        if dtype != x.type.dtype:
            self.converted(x, dtype)

    def converted(self, x: Known, dtype: np.dtype) -> Known | None:
        """A value as another dtype, unless that would show a rounding."""
        if not is_float(dtype) and not (x.exact and x.bound < 2**31):
            return None
        if dtype in EXACT_UP_TO and x.bound > BOUND and not (x.whole and x.bound < EXACT_UP_TO[dtype]):
            return None
        whole = x.whole or not is_float(dtype)
        bound = 1 if dtype == BOOL else x.bound
        widens = (x.type.dtype, dtype) == (BF16, F32)
        return self.add("convert", (x,), (dtype,), ArrayType(x.type.shape, dtype), bound=bound, whole=whole,
                        exact=whole or (x.exact and widens))  # fmt: skip

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
            self.add("iota", (), (shape, dim, dtype), ArrayType(shape, dtype), bound=shape[dim], whole=True, exact=True)
        else:
            number = self.rng.choice((0, 1, 2, -1)) if dtype != BOOL else self.rng.random() < 0.5
            self.add("full", (), (shape, number, dtype), ArrayType(shape, dtype), bound=2, whole=True, exact=True)

    def _array(self) -> None:
        """An array that the function closes over."""
        like = self.pick()
        assert like is not None
        shape = like.type.shape
        numbers = tuple(self.rng.randint(-2, 2) for _ in range(math.prod(shape)))
        dtype = self.rng.choice((F32, I32))
        self.add("array", (), (shape, numbers, dtype), ArrayType(shape, dtype), bound=2, whole=True, exact=True)

    def number(self, number: Any) -> None:
        """A Python number, for an output."""
        dtype = {bool: BOOL, int: I32, float: F32}[type(number)]
        kind = ArrayType((), dtype, weak=dtype != BOOL)
        self.add("number", (), (number,), kind, bound=2, whole=True, exact=True)

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
        self.add("broadcast", (x,), (tuple(shape), tuple(dims)), type, bound=x.bound, whole=x.whole, exact=x.exact)

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
            self.add("reshape", (x,), (tuple(shape),), type, bound=x.bound, whole=x.whole, exact=x.exact)

    def _transpose(self) -> None:
        x = self.pick(lambda x: x.type.ndim > 1)
        if x is not None:
            order = self.rng.sample(range(x.type.ndim), x.type.ndim)
            type = ArrayType(tuple(x.type.shape[dim] for dim in order), x.type.dtype)
            self.add("transpose", (x,), (tuple(order),), type, bound=x.bound, whole=x.whole, exact=x.exact)

    def _slice(self) -> None:
        """Never down to nothing: sizes of zero are for the laws."""
        x = self.pick(lambda x: x.type.ndim > 0)
        if x is None:
            return
        parts = []
        for size in x.type.shape:
            start, limit = sorted(self.rng.sample(range(size + 1), 2))
            parts.append((start, limit, self.rng.choice((1, 1, 2, 3))) if self.rng.random() < 0.5 else (0, size, 1))
        fields = tuple(zip(*parts, strict=True))
        type = Slice(*fields).out_type(x.type)
        self.add("slice", (x,), fields, type, bound=x.bound, whole=x.whole, exact=x.exact)

    def _pad(self) -> None:
        """With a number, or with a scalar of the program."""
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
            self.add("pad", (x,), (number, tuple(counts)), type, bound=max(1, x.bound), whole=x.whole, exact=x.exact)
        else:
            facts = {"bound": max(x.bound, value.bound), "whole": x.whole and value.whole}
            self.add("pad", (x, value), (None, tuple(counts)), type, **facts, exact=x.exact and value.exact)

    def _concatenate(self) -> None:
        x = self.pick(lambda x: x.type.ndim > 0)
        if x is None:
            return
        dim = self.rng.randrange(x.type.ndim)
        others = x.type.without((dim,)).shape

        def fits(y: Known) -> bool:
            alike = y.type.dtype == x.type.dtype and y.type.ndim == x.type.ndim
            return alike and y.type.without((dim,)).shape == others

        parts = [part for part in (x, *(self.pick(fits) for _ in range(self.rng.randint(1, 2)))) if part is not None]
        type = Concatenate(dim).out_type(*(part.type for part in parts))
        if type.size <= LARGEST:
            whole, exact = all(part.whole for part in parts), all(part.exact for part in parts)
            bound = max(part.bound for part in parts)
            self.add("concatenate", parts, (dim,), type, bound=bound, whole=whole, exact=exact)

    def _reverse(self) -> None:
        x = self.pick(lambda x: x.type.ndim > 0)
        if x is not None:
            dims = tuple(self.rng.sample(range(x.type.ndim), self.rng.randint(1, x.type.ndim)))
            self.add("reverse", (x,), (dims,), x.type, bound=x.bound, whole=x.whole, exact=x.exact)

    def _index(self) -> tuple[tuple[Known, ...], tuple[tuple[int, ...], tuple[int, ...]] | None, tuple[int, ...]]:
        """Integers to index with, some of them outside: a value of the program, or numbers; and their shape."""
        known = self.pick(lambda x: x.type.dtype == I32 and x.exact and x.type.ndim < 3 and x.type.size <= 24)
        if known is not None and self.rng.random() < 0.6:
            return (known,), None, known.type.shape
        shape = tuple(self.rng.randint(1, 4) for _ in range(self.rng.randint(0, 2)))
        return (), (shape, tuple(self.rng.randint(-9, 9) for _ in range(math.prod(shape)))), shape

    def _take(self) -> None:
        x = self.pick(lambda x: x.type.ndim > 0)
        if x is None:
            return
        args, numbers, places = self._index()
        dim = self.rng.randrange(x.type.ndim)
        shape = (*x.type.shape[:dim], *places, *x.type.shape[dim + 1 :])
        if math.prod(shape) <= LARGEST and len(shape) < 6:
            way = self.rng.choice(("index", "fill", "wrap"))
            facts = {"bound": max(1, x.bound), "whole": x.whole, "exact": x.exact}
            self.add("take", (x, *args), (dim, numbers, way), ArrayType(shape, x.type.dtype), **facts)

    def _update(self) -> None:
        x = self.pick(lambda x: x.type.ndim > 0)
        if x is None:
            return
        args, numbers, places = self._index()
        dim = self.rng.randrange(x.type.ndim)
        shape = (*x.type.shape[:dim], *places, *x.type.shape[dim + 1 :])
        how = self.rng.choice(("set", "add", "max") if x.exact else ("set", "add"))
        if math.prod(shape) > LARGEST or len(shape) >= 6:
            return
        value = self.fitted(ArrayType(shape, x.type.dtype))
        if how == "max" and not value.exact:
            return
        self._met("update", how, x, value, args, (dim, numbers), math.prod(places))

    def _put(self) -> None:
        """At slices, which are known."""
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
        how = self.rng.choice(("set", "add", "max") if x.exact else ("set", "add"))
        value = self.fitted(ArrayType(shape, x.type.dtype))
        if how == "max" and not value.exact:
            return
        self._met("put", how, x, value, (), (tuple(parts),), 1)

    def _met(
        self, kind: str, how: str, x: Known, value: Known, args: Sequence[Known], params: Sequence[Any], often: int
    ) -> None:
        """A value that meets another at some places, at each as often as that."""
        whole = x.whole and value.whole
        bound = x.bound + often * value.bound if how == "add" else max(x.bound, value.bound)
        if x.type.dtype == BOOL:
            bound = 1
        if is_float(x.type.dtype) and not whole and bound > BOUND:
            return
        exact = whole if how == "add" else x.exact and value.exact
        self.add(kind, (x, value, *args), (how, *params), x.type, bound=bound, whole=whole, exact=exact)

    def _starts(self, ndim: int) -> tuple[tuple[Known, ...], tuple[int | None, ...]]:
        """Where a slice begins: scalars of the program, or numbers."""
        numbers, args = [], []
        for _ in range(ndim):
            known = self.pick(lambda x: x.type.dtype == I32 and x.exact and not x.type.ndim)
            if known is not None and self.rng.random() < 0.5:
                args.append(known)
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
        self.add("dynamic_slice", (x, *args), (sizes, numbers), type, bound=x.bound, whole=x.whole, exact=x.exact)

    def _dynamic_update(self) -> None:
        x = self.pick(lambda x: x.type.ndim > 0)
        if x is None:
            return
        sizes = tuple(size if self.rng.random() < 0.4 else self.rng.randint(1, size) for size in x.type.shape)
        value = self.fitted(ArrayType(sizes, x.type.dtype))
        args, numbers = self._starts(x.type.ndim)
        facts = {"bound": max(x.bound, value.bound), "whole": x.whole and value.whole}
        exact = x.exact and value.exact
        self.add("dynamic_update", (x, value, *args), (numbers,), x.type, **facts, exact=exact)

    def _cumulative(self) -> None:
        """Maxima and minima of exact values, as ties would show a rounding."""
        x = self.pick(lambda x: x.type.ndim > 0)
        if x is None:
            return
        dim, reverse = self.rng.randrange(x.type.ndim), self.rng.random() < 0.5
        count = x.type.shape[dim]
        hows = ["max", "min"] * x.exact + ["sum", "sum", "prod"] * (x.type.dtype != BOOL)
        hows += ["logsumexp"] * is_float(x.type.dtype)
        if not hows:
            return
        how = self.rng.choice(hows)
        logarithm = math.log(max(1.0, x.bound)) * count
        if how == "prod" and logarithm > math.log(BOUND):
            return
        bounds = {"sum": x.bound * count, "prod": math.exp(min(logarithm, 700)), "logsumexp": x.bound + math.log(count)}
        bound = bounds.get(how, x.bound)
        if is_float(x.type.dtype) and not x.whole and bound > BOUND:
            return
        whole = x.whole and how != "logsumexp"
        exact = whole or (how in ("max", "min") and x.exact)
        self.add("cumulative", (x,), (dim, how, reverse), x.type, bound=bound, whole=whole, exact=exact)

    def _sort(self) -> None:
        """A value by itself, or by others that are exact."""
        x = self.pick(lambda x: x.type.ndim > 0)
        if x is None:
            return
        key = self.pick(lambda y: y.type.shape == x.type.shape and y.exact)
        if key is None:
            return
        dim, descending = self.rng.randrange(x.type.ndim), self.rng.random() < 0.3
        self.add("sort", (key, x), (dim, descending), x.type, bound=x.bound, whole=x.whole, exact=x.exact)

    def _largest(self) -> None:
        x = self.pick(lambda x: x.type.ndim > 0 and x.exact)
        if x is None:
            return
        size = x.type.shape[-1]
        k, places = self.rng.randint(1, size), self.rng.random() < 0.4
        shape = (*x.type.shape[:-1], k)
        if places:
            self.add("largest", (x,), (k, places), ArrayType(shape, I32), bound=size, whole=True, exact=True)
        else:
            kind = ArrayType(shape, x.type.dtype)
            self.add("largest", (x,), (k, places), kind, bound=x.bound, whole=x.whole, exact=x.exact)

    def _sum(self) -> None:
        x = self.pick(lambda x: x.type.ndim > 0)
        if x is None:
            return
        dims = tuple(sorted(self.rng.sample(range(x.type.ndim), self.rng.randint(1, x.type.ndim))))
        keep = self.rng.random() < 0.3
        bound = x.bound * math.prod(x.type.shape[dim] for dim in dims)
        if is_float(x.type.dtype) and not x.whole and bound > BOUND:
            return
        shape = tuple(1 if dim in dims else size for dim, size in enumerate(x.type.shape) if keep or dim not in dims)
        dtype = I32 if x.type.dtype == BOOL else x.type.dtype
        self.add("sum", (x,), (dims, keep), ArrayType(shape, dtype), bound=bound, whole=x.whole, exact=x.whole)

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
        whole = x.whole and y.whole
        if type.size > LARGEST or (is_float(type.dtype) and not whole and bound > BOUND):
            return
        self.add("dot", (x, y), lists, type, bound=bound, whole=whole, exact=whole)

    def _conv(self) -> None:
        """Dims of equal size are summed over, or a batch of convolutions; one or two others of each are spatial."""
        x = self.pick(lambda x: x.type.ndim > 0 and x.type.dtype != BOOL)
        y = None if x is None else self.pick(lambda y: y.type.ndim > 0 and y.type.dtype == x.type.dtype)
        if x is None or y is None:
            return
        count = self.rng.randint(1, min(2, x.type.ndim, y.type.ndim))
        left, right = ([""] * z.type.ndim for z in (x, y))
        for names in (left, right):
            for number, dim in enumerate(self.rng.sample(range(len(names)), count)):
                names[dim] = str(number)
        fresh = iter("abcdefghijklmnop")
        summed, out = 1, [str(number) for number in range(count)]
        for dim, name in enumerate(left):
            if name:
                continue
            left[dim] = next(fresh)
            alike = [at for at, other in enumerate(right) if not other and y.type.shape[at] == x.type.shape[dim]]
            if alike and self.rng.random() < 0.8:
                right[self.rng.choice(alike)] = left[dim]
                if self.rng.random() < 0.7:
                    summed *= x.type.shape[dim]
                    continue
            out.append(left[dim])
        right = [name or next(fresh) for name in right]
        out += [name for name in right if name not in (*left, *out)]
        self.rng.shuffle(out)
        columns = [[self.rng.choice(numbers) for _ in range(count)] for numbers in SLIDINGS]
        windows = [y.type.shape[right.index(str(number))] for number in range(count)]
        params = (*map("".join, (left, right, out)), *map(tuple, columns))
        type = Conv(*params, x.type.dtype).out_type(x.type, y.type)
        whole = x.whole and y.whole
        bound = x.bound * y.bound * summed * math.prod(windows)
        if not 0 < type.size <= LARGEST or max(windows) > 8 or (is_float(type.dtype) and not whole and bound > BOUND):
            return
        self.add("conv", (x, y), params, type, bound=bound, whole=whole, exact=whole)

    def _window(self) -> None:
        """No window of a maximum lies outside of the array: it would be infinite."""
        how = self.rng.choice(("sum", "max", "min"))
        x = self.pick(lambda x: x.type.ndim > 0 and x.type.dtype != BOOL and (how == "sum" or x.exact))
        if x is None:
            return
        parts = []
        for size in x.type.shape:
            window = self.rng.randint(1, min(size, 4))
            before, after = (self.rng.randint(0, window - 1) for _ in range(2))
            stride, base, dilation = (self.rng.choice((1, 1, 2)) for _ in range(3))
            inside = (window, stride, before, after, 1, 1)
            free = (window, stride, before, after, base, dilation)
            parts.append((1, 1, 0, 0, 1, 1) if self.rng.random() < 0.5 else free if how == "sum" else inside)
        fields = (how, *zip(*parts, strict=True))
        type = ReduceWindow(reduction_named(how), *fields[1:]).out_type(x.type)
        bound = x.bound * (math.prod(part[0] for part in parts) if how == "sum" else 1)
        if not 0 < type.size <= LARGEST or (is_float(type.dtype) and not x.whole and bound > BOUND):
            return
        self.add("window", (x,), fields, type, bound=bound, whole=x.whole, exact=x.whole or how != "sum")

    def _roll(self) -> None:
        x = self.pick(lambda x: x.type.ndim > 0)
        if x is not None:
            dim, shift = self.rng.randrange(x.type.ndim), self.rng.randint(-9, 9)
            self.add("roll", (x,), (shift, dim), x.type, bound=x.bound, whole=x.whole, exact=x.exact)

    def _softmax(self) -> None:
        x = self.pick(lambda x: x.type.ndim > 0 and is_float(x.type.dtype) and x.bound <= 50)
        if x is not None:
            self.add("softmax", (x,), (self.rng.randrange(x.type.ndim),), x.type, bound=1, whole=False, exact=False)

    def _spectrum(self) -> None:
        """The real part of a Fourier transform."""
        x = self.pick(lambda x: x.type.ndim > 0 and x.type.dtype == F32)
        if x is not None:
            dim = self.rng.randrange(x.type.ndim)
            if x.bound * x.type.shape[dim] <= BOUND:
                self.add("spectrum", (x,), (dim,), x.type, bound=x.bound * x.type.shape[dim], whole=False, exact=False)

    def _draw(self) -> None:
        """Random integers: the same on every layout."""
        shape = self.shape()
        self.add("draw", (), (shape, self.rng.randrange(1000)), ArrayType(shape, I32), bound=64, whole=True, exact=True)

    def _factored(self) -> None:
        """The Cholesky factor of a matrix that is made positive."""
        x = self.pick(lambda x: x.type.ndim > 1 and x.type.dtype == F32)
        if x is None:
            return
        rows, columns = x.type.shape[-2:]
        shape = (*x.type.shape[:-1], rows)
        if math.prod(shape) <= LARGEST:
            scale = 1 / (1 + columns * x.bound**2)
            self.add("factored", (x,), (scale,), ArrayType(shape, F32), bound=2, whole=False, exact=False)

    def _constrain(self) -> None:
        x = self.pick()
        assert x is not None
        spec = random_spec(self.rng, x.type.shape, self.mesh, unconstrained=True)
        self.add("constrain", (x,), (spec,), x.type, bound=x.bound, whole=x.whole, exact=x.exact)
        self.known[-1] = replace(self.known[-1], constant=False)

    def _name(self) -> None:
        """A name that policies of checkpoint know."""
        x = self.pick()
        assert x is not None
        label = self.rng.choice("pq")
        self.add("name", (x,), (label,), x.type, bound=x.bound, whole=x.whole, exact=x.exact)

    def fitted(self, type: ArrayType) -> Known:
        """A value of this type: one that is there, or one that is made."""
        there = [x for x in self.known if x.type == type]
        if there and self.rng.random() < 0.6:
            return self.rng.choice(there[-3:])
        made = self._turned_into(type)
        if made is not None:
            return made
        number = True if type.dtype == BOOL else 1
        return self.add("full", (), (type.shape, number, type.dtype), type, bound=1, whole=True, exact=True)

    def _turned_into(self, type: ArrayType) -> Known | None:
        """Some value, summed up, converted and broadcast as it needs to be; None where that would show a rounding."""
        x = self.pick(lambda x: x.type.shape == type.shape or x.bound * x.type.size <= BOUND)
        if x is not None and x.type.shape != type.shape and x.type.ndim:
            kind = ArrayType((), I32 if x.type.dtype == BOOL else x.type.dtype)
            dims = tuple(range(x.type.ndim))
            x = self.add("sum", (x,), (dims, False), kind, bound=x.bound * x.type.size, whole=x.whole, exact=x.whole)
        if x is not None and x.type.dtype != type.dtype:
            x = self.converted(x, type.dtype)
        if x is not None and x.type.shape != type.shape:
            x = self.add("broadcast", (x,), (type.shape, ()), type, bound=x.bound, whole=x.whole, exact=x.exact)
        return x

    @property
    def inputs(self) -> int:
        """How many inputs the recipe has."""
        return self.count - sum(len(step.results) for step in self.steps)

    def recipe(self, outputs: Sequence[Known]) -> Recipe:
        """What was written, with these outputs."""
        inputs = self.known[: self.inputs]
        return Recipe(
            tuple(x.type for x in inputs),
            tuple(self.steps),
            tuple(x.number for x in outputs),
            tuple(x.exact for x in outputs),
            tuple(x.whole for x in inputs),
        )


def starts_of(numbers: Sequence[int | None], given: Sequence[Any]) -> list[Any]:
    """Where a slice begins: numbers, and values where there is none."""
    rest = iter(given)
    return [next(rest) if number is None else number for number in numbers]


def apply_step(step: Step, xs: list[Any], constrain: Constrain) -> Any:
    """What one step gives, of a kind that has one result."""
    match step.kind, step.params:
        case "add", ():
            found = xs[0] + xs[1]
        case "sub", ():
            found = xs[0] - xs[1]
        case "mul", ():
            found = xs[0] * xs[1]
        case "max", ():
            found = jnp.maximum(*xs)
        case "add_scalar", (number,):
            found = xs[0] + number
        case "mul_scalar", (number,):
            found = number * xs[0]
        case "neg", ():
            found = -xs[0]
        case "exp", (scale,):
            found = jnp.exp(xs[0] * scale)
        case "div", ():
            below = xs[1] * xs[1] + 1
            found = xs[0] / below if xs[0].shape != below.shape else Div()(xs[0], below)
        case "compare", (direction,):
            compare = {"EQ": "equal", "NE": "not_equal", "LT": "less", "LE": "less_equal", "GT": "greater"}
            found = getattr(jnp, compare.get(direction, "greater_equal"))(*xs)
        case "select", ():
            found = jnp.where(*xs)
        case "convert", (dtype,):
            found = xs[0].astype(dtype)
        case "iota", (shape, dim, dtype):
            found = Iota(shape, dim, dtype)()
        case "full", (shape, number, dtype):
            found = Full(shape, Scalar.of(number, dtype))()
        case "array", (shape, numbers, dtype):
            found = jnp.asarray(np.array(numbers, dtype).reshape(shape))
        case "number", (number,):
            found = number
        case "broadcast", (shape, dims):
            found = Broadcast(shape, dims)(xs[0])
        case "reshape", (shape,):
            found = xs[0].reshape(shape)
        case "transpose", (order,):
            found = xs[0].transpose(order)
        case "slice", (start, limit, stride):
            found = shardwise.lax.slice(xs[0], start, limit, stride)
        case "pad", (number, counts):
            value = xs[1] if len(xs) > 1 else number
            found = shardwise.lax.pad(xs[0], value, counts)
        case "concatenate", (dim,):
            found = jnp.concatenate(xs, dim)
        case "reverse", (dims,):
            found = jnp.flip(xs[0], dims)
        case "take", (dim, numbers, way):
            index = xs[1] if numbers is None else np.array(numbers[1], np.int32).reshape(numbers[0])
            if way == "index":
                found = xs[0][(*(slice(None),) * dim, index)]
            else:
                found = jnp.take(xs[0], index, axis=dim, mode=way, fill_value=1)
        case "update", (how, dim, numbers):
            index = xs[2] if numbers is None else np.array(numbers[1], np.int32).reshape(numbers[0])
            found = getattr(xs[0].at[(*(slice(None),) * dim, index)], how)(xs[1])
        case "put", (how, parts):
            found = getattr(xs[0].at[tuple(slice(*part) for part in parts)], how)(xs[1])
        case "dynamic_slice", (sizes, numbers):
            found = shardwise.lax.dynamic_slice(xs[0], starts_of(numbers, xs[1:]), sizes)
        case "dynamic_update", (numbers,):
            found = shardwise.lax.dynamic_update_slice(xs[0], xs[1], starts_of(numbers, xs[2:]))
        case "cumulative", (dim, how, reverse):
            found = Cumulative(dim, reduction_named(how), reverse)(xs[0])
        case "sort", (dim, descending):
            found = Sort(dim, 1, descending)(*xs)[1]
        case "largest", (k, places):
            found = lax.top_k(xs[0], k)[places]
        case "sum", (dims, keep):
            found = xs[0].sum(dims, keepdims=keep)
        case "dot", (contract, batch):
            found = Dot(contract, batch)(*xs)
        case "conv", (left, right, out, *lists):
            found = Conv(left, right, out, *lists, xs[0].dtype)(*xs)
        case "window", (how, *fields):
            found = ReduceWindow(reduction_named(how), *fields)(xs[0])
        case "roll", (shift, dim):
            found = jnp.roll(xs[0], shift, dim)
        case "softmax", (dim,):
            found = shardwise.nn.softmax(xs[0], dim)
        case "spectrum", (dim,):
            found = jnp.fft.fft(xs[0], axis=dim).real
        case "draw", (shape, seed):
            bits = shardwise.random.bits(shardwise.random.PRNGKey(seed), shape)
            found = (bits >> 26).astype(np.int32)
        case "factored", (scale,):
            product = xs[0] @ jnp.swapaxes(xs[0], -1, -2) * scale
            found = shardwise.lax.linalg.cholesky(product + jnp.eye(product.shape[-1]))
        case "constrain", (spec,):
            found = constrain(xs[0], spec)
        case "name", (label,):
            found = checkpoint_name(xs[0], label)
        case "clip", (bound,):
            found = jnp.clip(xs[0], -bound, bound)
        case _:
            raise AssertionError(step.kind)
    return found
