"""Steps with nested recipes: calls, loops, branches, checkpoint, custom derivatives.

The facts of a loop's carry must hold after every iteration: the writer assumes them, and adapts the result of the body.
Predicates and trip counts depend on exact values only.
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
from shardwise.api.transformations.remat import checkpoint_policies
from shardwise.compiler.dtypes import is_float
from shardwise.compiler.ir.types import ArrayType
from tests.fuzz.numeric import NumericWriter, apply_step
from tests.fuzz.programs import BOUND, EXACT_UP_TO, LARGEST, ValueFacts
from tests.fuzz.recipe import BF16, BOOL, F32, I32, Constrain, Recipe, Step

CONTROL_STEPS = {
    "call": 1.2, "scan": 1.6, "fori": 0.5, "while": 0.5, "cond": 1.0, "switch": 0.5, "remat": 0.8, "custom_jvp": 0.4,
    "custom_vjp": 0.4, "accumulate": 0.8,
}  # fmt: skip
MAX_DEPTH = 2
MAX_ITERATIONS = 4
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


class ControlWriter(NumericWriter):
    """Writes recipes with control flow. `forward`: inside of a custom_jvp, whose rule uses forward mode."""

    def __init__(self, rng: Random, mesh: dict[str, int], depth: int = 0, forward: bool = False):
        super().__init__(rng, mesh, depth)
        self.forward = forward

    def kinds(self) -> dict[str, float]:
        rarer = 1.0 if self.depth == 0 else 0.35
        control = {kind: rarer * weight for kind, weight in CONTROL_STEPS.items() if self.depth < MAX_DEPTH}
        if self.forward:
            control.pop("custom_vjp", None)
        return super().kinds() | control

    def inner(self, inputs: Sequence[ValueFacts], forward: bool = False) -> "ControlWriter":
        """Return the writer of a nested recipe, with a few steps."""
        writer = ControlWriter(self.rng, self.mesh, self.depth + 1, self.forward or forward)
        for x in inputs:
            writer.input(x.type, like=x)
        for _ in range(self.rng.randint(1, 4)):
            writer.step()
        return writer

    def add_control(
        self, kind: str, args: Sequence[ValueFacts], params: Sequence[Any], results: Sequence[ValueFacts]
    ) -> None:
        """Append a step whose results have the facts of these values."""
        types = tuple(x.type for x in results)
        self.steps.append(Step(kind, tuple(x.number for x in args), tuple(params), types))
        for x in results:
            self.known.append(replace(x, number=self.count, constant=False))
            self.count += 1

    def some(self, least: int, most: int, condition: Callable[[ValueFacts], bool] = lambda x: True) -> list[ValueFacts]:
        """Return a few random values that satisfy `condition`."""
        results = (self.pick(condition) for _ in range(self.rng.randint(least, most)))
        return [x for x in results if x is not None]

    def outputs(self, least: int, most: int) -> list[ValueFacts]:
        return [self.rng.choice(self.known) for _ in range(self.rng.randint(least, most))]

    def _call(self) -> None:
        """Call a jitted function: some of its inputs are arguments, it closes over the others."""
        args = self.some(1, 3)
        inner = self.inner(args)
        outputs = inner.outputs(1, 2)
        self.add_control("call", args, (self.rng.randint(1, len(args)), inner.recipe(outputs)), outputs)

    def _remat(self) -> None:
        """Call a function under checkpoint."""
        args = self.some(1, 3)
        inner = self.inner(args)
        outputs = inner.outputs(1, 2)
        params = (self.rng.randint(1, len(args)), self.rng.choice(list(POLICIES)), self.rng.random() < 0.8)
        self.add_control("remat", args, (*params, inner.recipe(outputs)), outputs)

    def _custom_jvp(self) -> None:
        """Call a custom_jvp whose rule is the function's own derivative."""
        args = self.some(1, 3)
        inner = self.inner(args, forward=True)
        outputs = inner.outputs(1, 2)
        self.add_control("custom_jvp", args, (inner.recipe(outputs),), outputs)

    def _custom_vjp(self) -> None:
        args = self.some(1, 3)
        inner = self.inner(args)
        outputs = inner.outputs(1, 2)
        self.add_control("custom_vjp", args, (inner.recipe(outputs),), outputs)

    def _cond(self) -> None:
        """Branch on a boolean, or on whether an integer is zero."""
        self._branch("cond", self.rng.choice((FLAG, FLAG, INDEX)), 2)

    def _switch(self) -> None:
        self._branch("switch", INDEX, self.rng.randint(1, 3))

    def _branch(self, kind: str, type: ArrayType, count: int) -> None:
        """Some inputs of the branches are operands, they close over the others."""
        predicate = self.value_of_type(type)
        args = self.some(1, 3)
        first, *others = (self.inner(args) for _ in range(count))
        rows = [first.outputs(1, 2)]
        rows += [[other.value_of_type(x.type) for x in rows[0]] for other in others]
        recipes = [writer.recipe(row) for writer, row in zip((first, *others), rows, strict=True)]
        results = [_join_facts(column) for column in zip(*rows, strict=True)]
        self.add_control(kind, (predicate, *args), (self.rng.randint(0, len(args)), *recipes), results)

    def _scan(self) -> None:
        length = self.rng.choice((0, 1, 2, 3, 3, 4))
        consts = self.some(0, 2)
        starts = self.some(0, 2, _can_be_carried)
        slices = [self._value_of_length(length) for _ in range(self.rng.randint(0 if starts else 1, 2))]
        carried = [self._carry_facts(x) for x in starts]
        rows = [replace(x, type=x.type.without((0,))) for x in slices]
        inner = self.inner([*consts, *carried, *rows])
        after = [inner.next_carry(len(consts) + place) for place in range(len(carried))]
        per_step = [y for y in inner.outputs(0 if after else 1, 2) if y.type.size * length <= LARGEST]
        params = (len(consts), len(carried), length, self.rng.random() < 0.3, self.rng.choice((1, 1, 2, True)))
        stacked = [replace(y, type=y.type.with_shape((length, *y.type.shape))) for y in per_step]
        if not after and not per_step:
            return
        self.add_control(
            "scan",
            (*consts, *starts, *slices),
            (*params, inner.recipe([*after, *per_step])),
            [*carried, *stacked],
        )

    def _accumulate(self) -> None:
        """Add up sums in nested loops, as the gradients of scanned layers are added up over microbatches.

        The inner loop stacks its terms or adds them up, and the outer loop adds up the results of the inner one.
        """
        lengths = outer, inner_length = self.rng.randint(1, 3), self.rng.randint(1, 3)
        consts = self.some(0, 1)
        rows, slices = ([self._value_of_length(length) for _ in range(self.rng.randint(1, 2))] for length in lengths)
        inner = self.inner([*consts, *(replace(x, type=x.type.without((0,))) for x in (*rows, *slices))])
        for _ in range(self.rng.randint(1, 2)):
            self.rng.choice((inner._sum, inner._dot))()
        terms = [x for x in inner.known[-3:] if _can_be_accumulated(x, outer * inner_length)]
        if not terms:
            return
        stacked = tuple(self.rng.random() < 0.6 for _ in terms)
        results = []
        for x, is_stacked in zip(terms, stacked, strict=True):
            shape, count = (
                ((inner_length, *x.type.shape), outer) if is_stacked else (x.type.shape, outer * inner_length)
            )
            results.append(replace(x, type=x.type.with_shape(shape), bound=count * x.bound, exact=x.integral))
        params = (len(consts), len(rows), lengths, stacked, self.rng.random() < 0.3)
        self.add_control("accumulate", (*consts, *rows, *slices), (*params, inner.recipe(terms)), results)

    def _fori(self) -> None:
        """Loop up to a traced or a static bound."""
        consts, starts = self.some(0, 2), self.some(1, 2, _can_be_carried)
        if not starts:
            return
        until = None if self.rng.random() < 0.6 else self.rng.randint(0, MAX_ITERATIONS)
        stop = [self.value_of_type(INDEX)] if until is None else []
        carried = [self._carry_facts(x) for x in starts]
        index = ValueFacts(0, INDEX, MAX_ITERATIONS, True, True)
        inner = self.inner([index, *consts, *carried])
        after = [inner.next_carry(1 + len(consts) + place) for place in range(len(carried))]
        self.add_control("fori", (*stop, *consts, *starts), (until, len(consts), inner.recipe(after)), carried)

    def _while(self) -> None:
        """Loop while a computed boolean is true, for a few iterations at most."""
        consts, starts = self.some(0, 2), self.some(1, 2, _can_be_carried)
        if not starts:
            return
        carried = [self._carry_facts(x) for x in starts]
        test, inner = self.inner([*consts, *carried]), self.inner([*consts, *carried])
        condition = test.recipe([test.value_of_type(FLAG)])
        after = [inner.next_carry(len(consts) + place) for place in range(len(carried))]
        self.add_control("while", (*consts, *starts), (len(consts), condition, inner.recipe(after)), carried)

    def _value_of_length(self, length: int) -> ValueFacts:
        """Return a value whose first dim has this size."""
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
            return self.add("slice", (long,), fields, type, bound=long.bound, integral=long.integral, exact=long.exact)
        x = self.pick(lambda x: x.type.size * length <= LARGEST)
        if x is None:
            x = self.known[0]
        shape = (length, *x.type.shape)
        dims = tuple(range(1, len(shape)))
        type = x.type.with_shape(shape)
        return self.add("broadcast", (x,), (shape, dims), type, bound=x.bound, integral=x.integral, exact=x.exact)

    def _carry_facts(self, start: ValueFacts) -> ValueFacts:
        """Return the facts that hold before and after every iteration of a carry with this initial value."""
        integral = start.integral and (not is_float(start.type.dtype) or self.rng.random() < 0.8)
        bound = 1 if start.type.dtype == BOOL else math.ceil(max(start.bound, self.rng.choice((4, 16))))
        return replace(start, bound=bound, integral=integral, exact=integral)

    def next_carry(self, place: int) -> ValueFacts:
        """Return a new value for the carry at this input, with the type and the facts of the carry."""
        carry = self.known[place]
        results = self.value_of_type(carry.type)
        if self.rng.random() < 0.5 and carry.type.dtype != BOOL:
            integral = results.integral and carry.integral
            bound = results.bound + carry.bound
            results = self.add("add", (carry, results), (), carry.type, bound=bound, integral=integral, exact=integral)
        if carry.integral and not results.integral:
            results = self.add("neg", (carry,), (), carry.type, bound=carry.bound, integral=True, exact=True)
        if results.bound <= carry.bound or carry.type.dtype == BOOL:
            return results
        if carry.integral:
            return self.add(
                "clip", (results,), (int(carry.bound),), carry.type, bound=carry.bound, integral=True, exact=True
            )
        scale = 2.0 ** -math.ceil(math.log2(results.bound / carry.bound))
        return self.add("mul_scalar", (results,), (scale,), carry.type, bound=carry.bound, integral=False, exact=False)


def _can_be_carried(x: ValueFacts) -> bool:
    return x.bound <= BOUND and x.bound < EXACT_UP_TO.get(x.type.dtype, math.inf)


def _can_be_accumulated(x: ValueFacts, count: int) -> bool:
    largest = EXACT_UP_TO.get(x.type.dtype, 2**31) if x.integral else BOUND
    return (
        x.type.dtype != BOOL
        and not x.type.weak
        and x.bound * count < largest
        and x.type.size * MAX_ITERATIONS <= LARGEST
    )


def _join_facts(values: Sequence[ValueFacts]) -> ValueFacts:
    """Return the facts of a value that is one of these."""
    return replace(
        values[0],
        bound=max(x.bound for x in values),
        integral=all(x.integral for x in values),
        exact=all(x.exact for x in values),
    )


def random_recipe(rng: Random, mesh: dict[str, int]) -> Recipe:
    """Return a random recipe of one to fourteen steps."""
    writer = ControlWriter(rng, mesh)
    common = writer.shape()
    for _ in range(rng.randint(1, 4)):
        shape = common if rng.random() < 0.4 else writer.shape()
        if rng.random() < 0.3:  # share sizes, so that binary ops are possible
            shape = tuple(rng.sample(common, len(common)))
        writer.input(ArrayType(shape, rng.choice((F32, F32, F32, I32, BOOL, BF16))))
    for _ in range(rng.randint(1, 14)):
        writer.step()
    if rng.random() < 0.1:
        writer.number(rng.choice((2, -1.5, True)))
    # Most outputs are otherwise unused values, so that little is dead; some are inputs, constants, or duplicates.
    used = {number for step in writer.steps for number in step.args}
    ends = [x for x in writer.known if x.number not in used and x.number >= writer.inputs]
    outputs = rng.sample(ends, min(len(ends), rng.randint(1, 4)))
    outputs += [rng.choice(writer.known) for _ in range(rng.choice((0, 0, 1, 2)))]
    return writer.recipe(outputs or writer.known[:1])


def has_no_reverse_mode(recipe: Recipe) -> bool:
    """Return whether it has a loop with a dynamic trip count, which has no reverse mode."""
    return any(step.kind == "while" or (step.kind == "fori" and step.params[0] is None) for step in recipe.all_steps)


def has_no_forward_mode(recipe: Recipe) -> bool:
    """Return whether it has a custom_vjp, which has no forward mode."""
    return any(step.kind == "custom_vjp" for step in recipe.all_steps)


class Typing:
    """What a recipe does for the types of its values: nothing. `explicit.py` has the one for Explicit mesh axes."""

    def apply(self, step: Step, xs: list[Any], constrain: Constrain) -> Any:
        """Return the result of a step without nested recipes."""
        return apply_step(step, xs, constrain)

    def like(self, results: Sequence[Any], examples: Sequence[Any]) -> list[Any]:
        """Return results with the types of the examples: a loop's carry has one type."""
        return list(results)

    def unsharded_rows(self, xs: Sequence[Any]) -> list[Any]:
        """Return arrays that a scan can slice: their first dim is not sharded."""
        return list(xs)


UNTYPED = Typing()


def function_of(recipe: Recipe, constrain: Constrain, typing: Typing = UNTYPED) -> Callable[..., tuple[Any, ...]]:
    """Return the recipe as a Python function of arrays."""

    def program(*args: Any) -> tuple[Any, ...]:
        values = list(args)
        for step in recipe.steps:
            xs = [values[number] for number in step.args]
            if step.inner:
                values += _apply_control(step, xs, constrain, typing)
            else:
                values.append(typing.apply(step, xs, constrain))
        return tuple(values[number] for number in recipe.outputs)

    return program


def _apply_control(step: Step, xs: list[Any], constrain: Constrain, typing: Typing) -> list[Any]:
    functions = [function_of(inner, constrain, typing) for inner in step.inner]
    body = functions[-1]
    results: Any
    match step.kind, step.params:
        case "call", (arguments, _):
            results = shardwise.jit(_close_over(body, xs[arguments:]))(*xs[:arguments])
        case "remat", (arguments, policy, prevent_cse, _):
            rematerialized = shardwise.checkpoint(
                _close_over(body, xs[arguments:]), policy=POLICIES[policy], prevent_cse=prevent_cse
            )
            results = rematerialized(*xs[:arguments])
        case "custom_jvp", _:
            function = shardwise.custom_jvp(body)
            function.defjvp(lambda primals, tangents: shardwise.jvp(body, primals, tangents))
            results = function(*xs)
        case "custom_vjp", _:
            function = shardwise.custom_vjp(body)
            function.defvjp(lambda *args: (body(*args), args), lambda args, ct: shardwise.vjp(body, *args)[1](ct))
            results = function(*xs)
        case "cond", (operands, *_):
            false_fun, true_fun = (_close_over(_replicating(f, typing), xs[1 + operands :]) for f in functions)
            results = lax.cond(xs[0], true_fun, false_fun, *xs[1 : 1 + operands])
        case "switch", (operands, *_):
            branches = [_close_over(_replicating(f, typing), xs[1 + operands :]) for f in functions]
            results = lax.switch(xs[0], branches, *xs[1 : 1 + operands])
        case "scan", (consts, carried, length, reverse, unroll, _):
            results = _scan_step(body, xs, consts, carried, length, reverse, unroll, typing)
        case "accumulate", (consts, rows, lengths, stacked, reverse, _):
            operands = xs[:consts], xs[consts : consts + rows], xs[consts + rows :]
            zeros = [jnp.zeros(type.shape, type.dtype) for type in step.results]
            results = _accumulate_step(body, *operands, zeros, lengths, stacked, reverse, typing)
        case "fori", (until, consts, _):
            if until is None:
                stop, *xs = xs
                until = jnp.clip(stop, 0, MAX_ITERATIONS)
            results = lax.fori_loop(
                0, until, lambda i, carry: tuple(typing.like(body(i, *xs[:consts], *carry), carry)), tuple(xs[consts:])
            )
        case "while", (consts, *_):
            results = _while_loop(*functions, xs[:consts], xs[consts:], typing)
        case _:
            raise AssertionError(step.kind)
    return list(results)


def _close_over(function: Callable[..., Any], closed: Sequence[Any]) -> Callable[..., Any]:
    """Return the function with its last arguments bound."""
    return lambda *args: function(*args, *closed)


def _replicating(function: Callable[..., Any], typing: Typing) -> Callable[..., Any]:
    """Return the function with replicated results: the branches of a cond return the same types."""
    return lambda *args: tuple(typing.like(results := function(*args), [None] * len(results)))


def _scan_step(
    body: Callable[..., Any],
    xs: list[Any],
    consts: int,
    carried: int,
    length: int,
    reverse: bool,
    unroll: int | bool,
    typing: Typing,
) -> list[Any]:
    def iteration(carry: Any, rows: Any) -> Any:
        results = body(*xs[:consts], *carry, *rows)
        return tuple(typing.like(results[:carried], carry)), results[carried:]

    starts, slices = tuple(xs[consts : consts + carried]), tuple(typing.unsharded_rows(xs[consts + carried :]))
    ends, stacks = lax.scan(iteration, starts, slices, length=length, reverse=reverse, unroll=unroll)
    return [*ends, *stacks]


def _accumulate_step(
    body: Callable[..., Any],
    consts: Sequence[Any],
    rows: Sequence[Any],
    slices: Sequence[Any],
    zeros: Sequence[Any],
    lengths: tuple[int, int],
    stacked: Sequence[bool],
    reverse: bool,
    typing: Typing,
) -> Any:
    """Add up the results of `body` over the slices of `rows`, and over those of `slices` unless they are stacked."""
    rows, slices = typing.unsharded_rows(rows), typing.unsharded_rows(slices)

    def inner_loop(row: Sequence[Any]) -> list[Any]:
        def iteration(totals: Any, layer: Any) -> Any:
            terms = body(*consts, *row, *layer)
            added = [x for x, is_stacked in zip(terms, stacked, strict=True) if not is_stacked]
            kept = [x for x, is_stacked in zip(terms, stacked, strict=True) if is_stacked]
            return typing.like([total + x for total, x in zip(totals, added, strict=True)], totals), kept

        starts = [zero for zero, is_stacked in zip(zeros, stacked, strict=True) if not is_stacked]
        totals, stacks = map(iter, lax.scan(iteration, starts, slices, length=lengths[1], reverse=reverse))
        return [next(stacks if is_stacked else totals) for is_stacked in stacked]

    def iteration(totals: Any, row: Any) -> Any:
        return typing.like([total + x for total, x in zip(totals, inner_loop(row), strict=True)], totals), None

    return lax.scan(iteration, list(zeros), rows, length=lengths[0])[0]


def _while_loop(
    test: Callable[..., Any], body: Callable[..., Any], consts: Sequence[Any], starts: Sequence[Any], typing: Typing
) -> Any:
    def keep_going(state: Any) -> Any:
        iteration, carry = state
        return jnp.logical_and(iteration < MAX_ITERATIONS, test(*consts, *carry)[0])

    def step(state: Any) -> Any:
        iteration, carry = state
        return iteration + 1, tuple(typing.like(body(*consts, *carry), carry))

    return lax.while_loop(keep_going, step, (jnp.asarray(np.int32(0)), tuple(starts)))[1]
