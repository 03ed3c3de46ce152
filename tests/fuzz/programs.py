"""Random programs. A Recipe is a program as data; `function_of` makes it a Python function that can be traced.

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

import ml_dtypes
import numpy as np

import shardwise
from shardwise import numpy as jnp
from shardwise.compiler.ir.types import ArrayType, Scalar, is_float, short_name
from shardwise.compiler.ops.dot import Dot
from shardwise.compiler.ops.elementwise import Div
from shardwise.compiler.ops.shape import Broadcast, Full, Iota
from tests.fuzz.layouts import Spec, random_spec, spec_text

F32, I32, BOOL, BF16 = (np.dtype(kind) for kind in (np.float32, np.int32, np.bool_, ml_dtypes.bfloat16))
SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16)
LARGEST = 2048  # elements of one value
BOUND = 1e4  # of a value that is not an integer
EXACT_UP_TO = {F32: 2**24, BF16: 2**8}

Constrain = Callable[[Any, Spec], Any]


@dataclass(frozen=True)
class Step:
    """One op of a recipe: values by number, static parameters, types of the results."""

    kind: str
    args: tuple[int, ...]
    params: tuple[Any, ...]
    results: tuple[ArrayType, ...]

    def __str__(self) -> str:
        params = ", ".join(spec_text(p) if self.kind == "constrain" else str(p) for p in self.params)
        return f"{self.kind}[{params}] {' '.join(f'v{arg}' for arg in self.args)}"


@dataclass(frozen=True)
class Recipe:
    """Values are numbered: inputs first, then the results of each step. `exact` says which outputs are."""

    inputs: tuple[ArrayType, ...]
    steps: tuple[Step, ...]
    outputs: tuple[int, ...]
    exact: tuple[bool, ...]
    integers: tuple[bool, ...]  # inputs that hold small integers

    def __str__(self) -> str:
        lines = [f"recipe({', '.join(f'v{i}: {t}' for i, t in enumerate(self.inputs))})"]
        number = len(self.inputs)
        for step in self.steps:
            names = ", ".join(f"v{number + i}: {t}" for i, t in enumerate(step.results))
            number += len(step.results)
            lines.append(f"  {names} = {step}".replace("\n", "\n  "))
        lines.append(f"  return {', '.join(f'v{i}' for i in self.outputs)}")
        return "\n".join(lines)

    @property
    def types(self) -> list[ArrayType]:
        """The type of every value."""
        return [*self.inputs, *(type for step in self.steps for type in step.results)]


@dataclass(frozen=True)
class _Known:
    """What the writer knows of a value: its number, type, and largest magnitude."""

    number: int
    type: ArrayType
    bound: float
    whole: bool
    exact: bool
    constant: bool = False


class _Writer:
    """Writes one recipe."""

    def __init__(self, rng: Random, mesh: dict[str, int], depth: int = 0):
        self.rng = rng
        self.mesh = mesh
        self.depth = depth
        self.known: list[_Known] = []
        self.steps: list[Step] = []
        self.count = 0

    def input(self, type: ArrayType, like: _Known | None = None) -> None:
        integers = not is_float(type.dtype) or self.rng.random() < 0.75
        fresh = _Known(self.count, type, 1 if type.dtype == BOOL else 3, integers, True)
        self.known.append(fresh if like is None else replace(like, number=self.count, type=type, constant=False))
        self.count += 1

    def add(self, kind: str, args: Sequence[_Known], params: Sequence[Any], type: ArrayType, **facts: Any) -> _Known:
        """One more step with one result."""
        free = all(x.constant for x in args)
        found = _Known(self.count, type, facts["bound"], facts["whole"], facts["exact"], free)
        limit = EXACT_UP_TO.get(type.dtype, math.inf)
        if found.whole and found.bound >= limit:
            found = replace(found, whole=False, exact=False)
        self.steps.append(Step(kind, tuple(x.number for x in args), tuple(params), (type,)))
        self.known.append(found)
        self.count += 1
        return found

    def pick(self, wanted: Callable[[_Known], bool] = lambda x: True) -> _Known | None:
        """A value that fits; newer ones and those that depend on inputs are drawn more often."""
        fits = [x for x in self.known if not x.type.weak and wanted(x)]
        weights = [(0.3 if x.constant else 1.0) * (1 + 2 * i / len(fits)) for i, x in enumerate(fits)]
        return self.rng.choices(fits, weights)[0] if fits else None

    def step(self) -> None:
        """Try to add one random step."""
        kinds = {
            "binary": 5, "scalar": 2, "neg": 1, "exp": 1.5, "div": 1.5, "compare": 1.5, "select": 2, "convert": 2,
            "constant": 1.5, "broadcast": 2.5, "reshape": 4, "transpose": 3, "sum": 4, "dot": 4, "call": 1.5,
            "constrain": 3, "array": 0.3,
        }  # fmt: skip
        if self.depth:
            kinds["call"] = 0.3 if self.depth == 1 else 0
        kind = self.rng.choices(list(kinds), list(kinds.values()))[0]
        getattr(self, f"_{kind}")()

    def _pair(self, wanted: Callable[[_Known], bool]) -> tuple[_Known, _Known] | None:
        """Two values of one dtype whose shapes broadcast."""
        x = self.pick(wanted)
        if x is None:
            return None

        def fits(y: _Known) -> bool:
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
        if dtype == x.type.dtype or (not is_float(dtype) and not (x.exact and x.bound < 2**31)):
            return
        if dtype in EXACT_UP_TO and x.bound > BOUND and not (x.whole and x.bound < EXACT_UP_TO[dtype]):
            return
        whole = x.whole or not is_float(dtype)
        bound = 1 if dtype == BOOL else x.bound
        widens = (x.type.dtype, dtype) == (BF16, F32)
        self.add("convert", (x,), (dtype,), ArrayType(x.type.shape, dtype), bound=bound, whole=whole,
                 exact=whole or (x.exact and widens))  # fmt: skip

    def _shape(self, most: int = 3) -> tuple[int, ...]:
        sizes = [self.rng.choice(SIZES) for _ in range(self.rng.randint(0, most))]
        while math.prod(sizes) > LARGEST:
            sizes.pop()
        return tuple(sizes)

    def _constant(self) -> None:
        like = self.pick()
        shape = like.type.shape if like is not None and self.rng.random() < 0.7 else self._shape()
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

    def _constrain(self) -> None:
        x = self.pick()
        assert x is not None
        spec = random_spec(self.rng, x.type.shape, self.mesh, unconstrained=True)
        self.add("constrain", (x,), (spec,), x.type, bound=x.bound, whole=x.whole, exact=x.exact)
        self.known[-1] = replace(self.known[-1], constant=False)

    def _call(self) -> None:
        """A jit inside: some of its inputs are arguments, the others it closes over."""
        args = [x for x in (self.pick() for _ in range(self.rng.randint(1, 3))) if x is not None]
        inner = _Writer(self.rng, self.mesh, self.depth + 1)
        for x in args:
            inner.input(x.type, like=x)
        for _ in range(self.rng.randint(1, 4)):
            inner.step()
        outputs = [self.rng.choice(inner.known) for _ in range(self.rng.randint(1, 2))]
        recipe = inner.recipe([x.number for x in outputs])
        arguments = self.rng.randint(1, len(args))
        types = tuple(x.type for x in outputs)
        self.steps.append(Step("call", tuple(x.number for x in args), (arguments, recipe), types))
        for x in outputs:
            self.known.append(replace(x, number=self.count, constant=False))
            self.count += 1

    def recipe(self, outputs: Sequence[int], inputs: int | None = None) -> Recipe:
        count = self.count - sum(len(step.results) for step in self.steps)
        exact = tuple(self.known[number].exact for number in outputs)
        integers = tuple(x.whole for x in self.known[:count])
        types = tuple(x.type for x in self.known[:count])
        return Recipe(types, tuple(self.steps), tuple(outputs), exact, integers)


def random_recipe(rng: Random, mesh: dict[str, int]) -> Recipe:
    """A program of one to a dozen steps."""
    writer = _Writer(rng, mesh)
    common = writer._shape()
    for _ in range(rng.randint(1, 4)):
        shape = common if rng.random() < 0.4 else writer._shape()
        if rng.random() < 0.3:  # shares some sizes, so that products and sums fit
            shape = tuple(rng.sample(common, len(common)))
        writer.input(ArrayType(shape, rng.choice((F32, F32, F32, I32, BOOL, BF16))))
    for _ in range(rng.randint(1, 14)):
        writer.step()
    if rng.random() < 0.1:
        writer.number(rng.choice((2, -1.5, True)))
    # Mostly what nothing else uses, so that little is dead; also inputs, constants, and the same value twice.
    used = {number for step in writer.steps for number in step.args}
    ends = [
        x.number for x in writer.known if x.number not in used and x.number >= len(writer.known) - len(writer.steps)
    ]
    outputs = rng.sample(ends, min(len(ends), rng.randint(1, 4)))
    outputs += [rng.choice(writer.known).number for _ in range(rng.choice((0, 0, 1, 2)))]
    return writer.recipe(outputs or [0])


def function_of(recipe: Recipe, constrain: Constrain) -> Callable[..., tuple[Any, ...]]:
    """The recipe as a Python function of arrays."""

    def program(*args: Any) -> tuple[Any, ...]:
        values = list(args)
        for step in recipe.steps:
            values += _apply(step, [values[number] for number in step.args], constrain)
        return tuple(values[number] for number in recipe.outputs)

    return program


def _apply(step: Step, xs: list[Any], constrain: Constrain) -> list[Any]:
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
        case "sum", (dims, keep):
            found = xs[0].sum(dims, keepdims=keep)
        case "dot", (contract, batch):
            found = Dot(contract, batch)(*xs)
        case "constrain", (spec,):
            found = constrain(xs[0], spec)
        case "call", (arguments, inner):
            body = function_of(inner, constrain)
            closed = xs[arguments:]
            return list(shardwise.jit(lambda *args: body(*args, *closed))(*xs[:arguments]))
        case _:
            raise AssertionError(step.kind)
    return [found]


def random_array(rng: np.random.Generator, type: ArrayType, integers: bool) -> np.ndarray:
    """Small integers, or numbers between -3 and 3."""
    if type.dtype == BOOL:
        return rng.random(type.shape) < 0.5
    if integers:
        return rng.integers(-3, 4, type.shape).astype(type.dtype)
    return (rng.random(type.shape) * 6 - 3).astype(type.dtype)


def has_narrow_floats(recipe: Recipe) -> bool:
    """Whether bfloat16 takes part: tolerances are wide then."""
    inner = [step.params[1] for step in recipe.steps if step.kind == "call"]
    return any(short_name(type.dtype) == "bf16" for type in recipe.types) or any(map(has_narrow_floats, inner))
