"""Steps that hold recipes: calls, loops, branches, checkpoint, functions with rules of their own.

What is known of a loop's carry must hold after every turn: the writer assumes it, and makes what the body gives fit it.
Which way a program goes depends on exact values only.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np

import shardwise
from shardwise import lax
from shardwise import numpy as jnp
from shardwise.api.remat import checkpoint_policies
from shardwise.compiler.dtypes import is_float
from shardwise.compiler.ir.types import ArrayType
from tests.fuzz.numbers import NumberWriter, apply_step
from tests.fuzz.programs import BOUND, EXACT_UP_TO, LARGEST, Known
from tests.fuzz.recipe import BF16, BOOL, F32, I32, Constrain, Recipe, Step

HOLDING = {
    "call": 1.2, "scan": 1.6, "fori": 0.5, "while": 0.5, "cond": 1.0, "switch": 0.5, "remat": 0.8, "custom_jvp": 0.4,
    "custom_vjp": 0.4,
}  # fmt: skip
DEEPEST = 2
MOST_TURNS = 4
INDEX = ArrayType((), I32)
FLAG = ArrayType((), BOOL)

POLICIES: dict[str, Any] = {
    "default": None,
    "everything": checkpoint_policies.everything_saveable,
    "nothing": checkpoint_policies.nothing_saveable,
    "dots": checkpoint_policies.dots_saveable,
    "no batch": checkpoint_policies.dots_with_no_batch_dims_saveable,
    "p": checkpoint_policies.save_only_these_names("p"),
    "not p": checkpoint_policies.save_anything_except_these_names("p"),
    "named, not q": checkpoint_policies.save_any_names_but_these("q"),
}


class HoldingWriter(NumberWriter):
    """Writes recipes whose steps may hold recipes. `forward`: under a rule in forward mode."""

    def __init__(self, rng: Random, mesh: dict[str, int], depth: int = 0, forward: bool = False):
        super().__init__(rng, mesh, depth)
        self.forward = forward

    def kinds(self) -> dict[str, float]:
        rarer = 1.0 if self.depth == 0 else 0.35
        holding = {kind: rarer * weight for kind, weight in HOLDING.items() if self.depth < DEEPEST}
        if self.forward:
            holding.pop("custom_vjp", None)
        return super().kinds() | holding

    def inner(self, inputs: Sequence[Known], forward: bool = False) -> "HoldingWriter":
        """The writer of a recipe that a step holds, with a few steps."""
        writer = HoldingWriter(self.rng, self.mesh, self.depth + 1, self.forward or forward)
        for x in inputs:
            writer.input(x.type, like=x)
        for _ in range(self.rng.randint(1, 4)):
            writer.step()
        return writer

    def hold(self, kind: str, args: Sequence[Known], params: Sequence[Any], results: Sequence[Known]) -> None:
        """One more step, whose results are like these values."""
        types = tuple(x.type for x in results)
        self.steps.append(Step(kind, tuple(x.number for x in args), tuple(params), types))
        for x in results:
            self.known.append(replace(x, number=self.count, constant=False))
            self.count += 1

    def some(self, least: int, most: int, wanted: Callable[[Known], bool] = lambda x: True) -> list[Known]:
        """A few values."""
        found = (self.pick(wanted) for _ in range(self.rng.randint(least, most)))
        return [x for x in found if x is not None]

    def outputs(self, least: int, most: int) -> list[Known]:
        return [self.rng.choice(self.known) for _ in range(self.rng.randint(least, most))]

    def _call(self) -> None:
        """A jit inside: some of its inputs are arguments, the others it closes over."""
        args = self.some(1, 3)
        inner = self.inner(args)
        outputs = inner.outputs(1, 2)
        self.hold("call", args, (self.rng.randint(1, len(args)), inner.recipe(outputs)), outputs)

    def _remat(self) -> None:
        """As a call, but values may be computed again."""
        args = self.some(1, 3)
        inner = self.inner(args)
        outputs = inner.outputs(1, 2)
        params = (self.rng.randint(1, len(args)), self.rng.choice(list(POLICIES)), self.rng.random() < 0.8)
        self.hold("remat", args, (*params, inner.recipe(outputs)), outputs)

    def _custom_jvp(self) -> None:
        """A function whose rule is its own derivative."""
        args = self.some(1, 3)
        inner = self.inner(args, forward=True)
        outputs = inner.outputs(1, 2)
        self.hold("custom_jvp", args, (inner.recipe(outputs),), outputs)

    def _custom_vjp(self) -> None:
        args = self.some(1, 3)
        inner = self.inner(args)
        outputs = inner.outputs(1, 2)
        self.hold("custom_vjp", args, (inner.recipe(outputs),), outputs)

    def _cond(self) -> None:
        """By a flag, or by a number that is zero or not."""
        self._branch("cond", self.rng.choice((FLAG, FLAG, INDEX)), 2)

    def _switch(self) -> None:
        self._branch("switch", INDEX, self.rng.randint(1, 3))

    def _branch(self, kind: str, type: ArrayType, count: int) -> None:
        """Some of what the branches take are operands, the rest they close over."""
        which = self.fitted(type)
        args = self.some(1, 3)
        first, *others = (self.inner(args) for _ in range(count))
        rows = [first.outputs(1, 2)]
        rows += [[other.fitted(x.type) for x in rows[0]] for other in others]
        recipes = [writer.recipe(row) for writer, row in zip((first, *others), rows, strict=True)]
        results = [_either(column) for column in zip(*rows, strict=True)]
        self.hold(kind, (which, *args), (self.rng.randint(0, len(args)), *recipes), results)

    def _scan(self) -> None:
        length = self.rng.choice((0, 1, 2, 3, 3, 4))
        consts = self.some(0, 2)
        starts = self.some(0, 2, _can_be_carried)
        slices = [self._sliced(length) for _ in range(self.rng.randint(0 if starts else 1, 2))]
        carried = [self._carried(x) for x in starts]
        rows = [replace(x, type=x.type.without((0,))) for x in slices]
        inner = self.inner([*consts, *carried, *rows])
        after = [inner.settled(len(consts) + place) for place in range(len(carried))]
        given = [y for y in inner.outputs(0 if after else 1, 2) if y.type.size * length <= LARGEST]
        params = (len(consts), len(carried), length, self.rng.random() < 0.3, self.rng.choice((1, 1, 2, True)))
        stacked = [replace(y, type=y.type.with_shape((length, *y.type.shape))) for y in given]
        if not after and not given:
            return
        self.hold(
            "scan",
            (*consts, *starts, *slices),
            (*params, inner.recipe([*after, *given])),
            [*carried, *stacked],
        )

    def _fori(self) -> None:
        """Up to a number that is traced, or known."""
        consts, starts = self.some(0, 2), self.some(1, 2, _can_be_carried)
        if not starts:
            return
        until = None if self.rng.random() < 0.6 else self.rng.randint(0, MOST_TURNS)
        stop = [self.fitted(INDEX)] if until is None else []
        carried = [self._carried(x) for x in starts]
        index = Known(0, INDEX, MOST_TURNS, True, True)
        inner = self.inner([index, *consts, *carried])
        after = [inner.settled(1 + len(consts) + place) for place in range(len(carried))]
        self.hold("fori", (*stop, *consts, *starts), (until, len(consts), inner.recipe(after)), carried)

    def _while(self) -> None:
        """As long as a flag that the loop computes is true; a few turns at most."""
        consts, starts = self.some(0, 2), self.some(1, 2, _can_be_carried)
        if not starts:
            return
        carried = [self._carried(x) for x in starts]
        test, inner = self.inner([*consts, *carried]), self.inner([*consts, *carried])
        goes_on = test.recipe([test.fitted(FLAG)])
        after = [inner.settled(len(consts) + place) for place in range(len(carried))]
        self.hold("while", (*consts, *starts), (len(consts), goes_on, inner.recipe(after)), carried)

    def _sliced(self, length: int) -> Known:
        """A value with so many slices."""
        fits = [x for x in self.known if not x.type.weak and x.type.shape[:1] == (length,)]
        if fits and self.rng.random() < 0.7:
            return self.rng.choice(fits)
        long = self.pick(lambda x: x.type.ndim > 0 and x.type.shape[0] > length)
        if long is not None and self.rng.random() < 0.6:
            shape = long.type.shape
            start = self.rng.randint(0, shape[0] - length)
            fields = (
                (start, *[0] * (len(shape) - 1)),
                (start + length, *shape[1:]),
                (1,) * len(shape),
            )
            type = long.type.with_shape((length, *shape[1:]))
            return self.add("slice", (long,), fields, type, bound=long.bound, whole=long.whole, exact=long.exact)
        x = self.pick(lambda x: x.type.size * length <= LARGEST)
        if x is None:
            x = self.known[0]
        shape = (length, *x.type.shape)
        dims = tuple(range(1, len(shape)))
        type = x.type.with_shape(shape)
        return self.add("broadcast", (x,), (shape, dims), type, bound=x.bound, whole=x.whole, exact=x.exact)

    def _carried(self, start: Known) -> Known:
        """What is assumed of a carry that starts as this value, before and after every turn."""
        whole = start.whole and (not is_float(start.type.dtype) or self.rng.random() < 0.8)
        bound = 1 if start.type.dtype == BOOL else math.ceil(max(start.bound, self.rng.choice((4, 16))))
        return replace(start, bound=bound, whole=whole, exact=whole)

    def settled(self, place: int) -> Known:
        """A value that can follow on the carry at this input: of its type, and as is assumed of it."""
        carry = self.known[place]
        found = self.fitted(carry.type)
        if self.rng.random() < 0.5 and carry.type.dtype != BOOL:
            whole = found.whole and carry.whole
            bound = found.bound + carry.bound
            found = self.add("add", (carry, found), (), carry.type, bound=bound, whole=whole, exact=whole)
        if carry.whole and not found.whole:
            found = self.add("neg", (carry,), (), carry.type, bound=carry.bound, whole=True, exact=True)
        if found.bound <= carry.bound or carry.type.dtype == BOOL:
            return found
        if carry.whole:
            return self.add(
                "clip", (found,), (int(carry.bound),), carry.type, bound=carry.bound, whole=True, exact=True
            )
        scale = 2.0 ** -math.ceil(math.log2(found.bound / carry.bound))
        return self.add("mul_scalar", (found,), (scale,), carry.type, bound=carry.bound, whole=False, exact=False)


def _can_be_carried(x: Known) -> bool:
    return x.bound <= BOUND and x.bound < EXACT_UP_TO.get(x.type.dtype, math.inf)


def _either(values: Sequence[Known]) -> Known:
    """What is known of a value that is one of these."""
    return replace(
        values[0],
        bound=max(x.bound for x in values),
        whole=all(x.whole for x in values),
        exact=all(x.exact for x in values),
    )


def random_recipe(rng: Random, mesh: dict[str, int]) -> Recipe:
    """A program of one to a dozen steps."""
    writer = HoldingWriter(rng, mesh)
    common = writer.shape()
    for _ in range(rng.randint(1, 4)):
        shape = common if rng.random() < 0.4 else writer.shape()
        if rng.random() < 0.3:  # shares some sizes, so that products and sums fit
            shape = tuple(rng.sample(common, len(common)))
        writer.input(ArrayType(shape, rng.choice((F32, F32, F32, I32, BOOL, BF16))))
    for _ in range(rng.randint(1, 14)):
        writer.step()
    if rng.random() < 0.1:
        writer.number(rng.choice((2, -1.5, True)))
    # Mostly what nothing else uses, so that little is dead; also inputs, constants, and the same value twice.
    used = {number for step in writer.steps for number in step.args}
    ends = [x for x in writer.known if x.number not in used and x.number >= writer.inputs]
    outputs = rng.sample(ends, min(len(ends), rng.randint(1, 4)))
    outputs += [rng.choice(writer.known) for _ in range(rng.choice((0, 0, 1, 2)))]
    return writer.recipe(outputs or writer.known[:1])


def only_forward(recipe: Recipe) -> bool:
    """Whether it has a loop that runs for as long as values say: such a loop has no reverse mode."""
    return any(step.kind == "while" or (step.kind == "fori" and step.params[0] is None) for step in recipe.all_steps)


def only_reverse(recipe: Recipe) -> bool:
    """Whether it has a function with a rule for reverse mode alone."""
    return any(step.kind == "custom_vjp" for step in recipe.all_steps)


def function_of(recipe: Recipe, constrain: Constrain) -> Callable[..., tuple[Any, ...]]:
    """The recipe as a Python function of arrays."""

    def program(*args: Any) -> tuple[Any, ...]:
        values = list(args)
        for step in recipe.steps:
            xs = [values[number] for number in step.args]
            values += _held(step, xs, constrain) if step.inner else [apply_step(step, xs, constrain)]
        return tuple(values[number] for number in recipe.outputs)

    return program


def _held(step: Step, xs: list[Any], constrain: Constrain) -> list[Any]:
    functions = [function_of(inner, constrain) for inner in step.inner]
    body = functions[-1]
    found: Any
    match step.kind, step.params:
        case "call", (arguments, _):
            found = shardwise.jit(_closing(body, xs[arguments:]))(*xs[:arguments])
        case "remat", (arguments, policy, prevent_cse, _):
            again = shardwise.checkpoint(
                _closing(body, xs[arguments:]), policy=POLICIES[policy], prevent_cse=prevent_cse
            )
            found = again(*xs[:arguments])
        case "custom_jvp", _:
            function = shardwise.custom_jvp(body)
            function.defjvp(lambda primals, tangents: shardwise.jvp(body, primals, tangents))
            found = function(*xs)
        case "custom_vjp", _:
            function = shardwise.custom_vjp(body)
            function.defvjp(lambda *args: (body(*args), args), lambda args, ct: shardwise.vjp(body, *args)[1](ct))
            found = function(*xs)
        case "cond", (operands, *_):
            false_fun, true_fun = (_closing(f, xs[1 + operands :]) for f in functions)
            found = lax.cond(xs[0], true_fun, false_fun, *xs[1 : 1 + operands])
        case "switch", (operands, *_):
            branches = [_closing(f, xs[1 + operands :]) for f in functions]
            found = lax.switch(xs[0], branches, *xs[1 : 1 + operands])
        case "scan", (consts, carried, length, reverse, unroll, _):
            found = _scanned(body, xs, consts, carried, length, reverse, unroll)
        case "fori", (until, consts, _):
            if until is None:
                stop, *xs = xs
                until = jnp.clip(stop, 0, MOST_TURNS)
            found = lax.fori_loop(0, until, lambda i, carry: body(i, *xs[:consts], *carry), tuple(xs[consts:]))
        case "while", (consts, *_):
            found = _looped(*functions, xs[:consts], xs[consts:])
        case _:
            raise AssertionError(step.kind)
    return list(found)


def _closing(function: Callable[..., Any], closed: Sequence[Any]) -> Callable[..., Any]:
    """The function of its first arguments alone."""
    return lambda *args: function(*args, *closed)


def _scanned(
    body: Callable[..., Any], xs: list[Any], consts: int, carried: int, length: int, reverse: bool, unroll: int | bool
) -> list[Any]:
    def turn(carry: Any, rows: Any) -> Any:
        found = body(*xs[:consts], *carry, *rows)
        return found[:carried], found[carried:]

    starts, slices = tuple(xs[consts : consts + carried]), tuple(xs[consts + carried :])
    ends, stacks = lax.scan(turn, starts, slices, length=length, reverse=reverse, unroll=unroll)
    return [*ends, *stacks]


def _looped(test: Callable[..., Any], body: Callable[..., Any], consts: Sequence[Any], starts: Sequence[Any]) -> Any:
    def goes_on(state: Any) -> Any:
        turn, carry = state
        return jnp.logical_and(turn < MOST_TURNS, test(*consts, *carry)[0])

    def step(state: Any) -> Any:
        turn, carry = state
        return turn + 1, body(*consts, *carry)

    return lax.while_loop(goes_on, step, (jnp.asarray(np.int32(0)), tuple(starts)))[1]
