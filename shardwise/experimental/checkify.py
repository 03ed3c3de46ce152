"""checkify: checks of run-time values inside compiled functions, which return an error instead of raising it.

    function  --make_jaxpr-->  jaxpr  --_run-->  (Error, results)

Every place that can fail has a number. While the jaxpr is evaluated, the state of the checks passes through loops and
branches: the number of the first place that failed, or 0, and the values that its message shows. The body of a
`shard_map` or `pmap` has a state per device.
"""

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, TypeVar, final

import numpy as np

from shardwise import lax, tree
from shardwise import numpy as jnp
from shardwise.api.ahead_of_time.inspect import make_jaxpr
from shardwise.api.arguments import check_function
from shardwise.api.jaxprs.jaxpr import ClosedJaxpr, Jaxpr, JaxprEqn, interpret_jaxpr
from shardwise.api.jaxprs.jaxpr_forms import closed_jaxpr
from shardwise.api.jaxprs.primitive import Primitive, lowerings, primitive_batchers, primitive_jvps
from shardwise.api.meshes.shard_map import shard_map
from shardwise.base.lazy import set_public_names
from shardwise.base.tree_nodes import register_pytree_node
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import as_operand
from shardwise.compiler.control.manual import Manual
from shardwise.compiler.control.region_boundary import ShardSpec
from shardwise.compiler.shardings.spec import PartitionSpec
from shardwise.errors import MissingRuleError
from shardwise.experimental.check_sites import (
    DivisionByZeroError,
    ErrorCategory,
    FailedCheckError,
    JaxException,
    NaNError,
    OOBError,
    Site,
    automatic_sites,
)
from shardwise.lax.manual_axes import make_varying
from shardwise.typing import ArrayLike

__all__ = [
    "Error",
    "ErrorCategory",
    "JaxRuntimeError",
    "all_checks",
    "automatic_checks",
    "check",
    "check_error",
    "checkify",
    "debug_check",
    "div_checks",
    "float_checks",
    "index_checks",
    "init_error",
    "nan_checks",
    "user_checks",
]

Out = TypeVar("Out")


class JaxRuntimeError(ValueError):
    """Raised by `Error.throw` and by `check` outside of traced functions."""


user_checks: frozenset[ErrorCategory] = frozenset({FailedCheckError})
nan_checks: frozenset[ErrorCategory] = frozenset({NaNError})
div_checks: frozenset[ErrorCategory] = frozenset({DivisionByZeroError})
index_checks: frozenset[ErrorCategory] = frozenset({OOBError})
float_checks = nan_checks | div_checks
automatic_checks = float_checks | index_checks
all_checks = automatic_checks | user_checks


@final
class Error:
    """The result of the checks of a function. It is a pytree, and may be returned from jitted functions."""

    def __init__(self, code: ArrayLike, values: Sequence[Sequence[Any]], sites: tuple[Site, ...]):
        self._code = code
        self._values = values
        self._sites = sites

    def get(self) -> str | None:
        """Return the message of the first check that failed; None if none failed.

        The error of a function that `vmap` maps has a line for each element of the batch in which a check failed.
        """
        codes, lines = np.asarray(self._code), []
        for index in map(tuple, np.argwhere(codes)):
            number = int(codes[index]) - 1
            text = self._sites[number].text([np.asarray(value)[index] for value in self._values[number]])
            lines.append(f"at mapped index {', '.join(map(str, index))}: {text}" if index else text)
        return "\n".join(lines) or None

    def throw(self) -> None:
        """Raise a JaxRuntimeError if a check failed."""
        if (message := self.get()) is not None:
            raise JaxRuntimeError(message)

    def get_exception(self) -> JaxException | None:
        """Return the error of the first check that failed; None if none failed."""
        codes = np.asarray(self._code)
        failed = codes[codes != 0]
        return self._sites[int(failed[0]) - 1].kind(self.get()) if failed.size else None

    def __repr__(self) -> str:
        return f"Error({self.get()})"


register_pytree_node(
    Error,
    lambda error: ((error._code, error._values), error._sites),
    lambda sites, parts: Error(parts[0], parts[1], sites),
)

init_error = Error(np.int32(0), (), ())


@final
class _UncheckedError(MissingRuleError, ValueError):
    """The error for a check in a compiled function without `checkify`, which is a ValueError in JAX."""


check_p = Primitive("check")
check_p.lowering_error = _UncheckedError
check_p.lowering_problem = (
    "checkify.check is used in a compiled function without `checkify`, so that its error could not be raised: write "
    "`error, result = jit(checkify.checkify(function))(...)`, and then `error.throw()`"
)
debug_check_p = Primitive("debug_check")  # without `checkify`, it does nothing
debug_check_p.def_impl(lambda *operands, **params: [])
lowerings[debug_check_p] = lambda *operands, **params: []
_CHECKS = (check_p, debug_check_p)


@check_p.def_impl
def _raise_now(pred: Array, *values: Array, site: Site) -> list[Any]:
    if not bool(pred):
        raise JaxRuntimeError(site.text(values))
    return []


def _define_rules(primitive: Primitive) -> None:
    """Define how a check is traced, differentiated and batched."""

    def jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: object) -> tuple[list[Any], list[Any]]:
        primitive.bind(*primals, **params)
        return [], []

    def batch(operands: Sequence[Any], dims: Sequence[int | None], **params: object) -> tuple[list[Any], list[Any]]:
        """Check that all elements of the batch hold; the message shows the values of the first one that does not."""
        pred, *values = operands
        first = 0 if dims[0] is None else jnp.argmin(pred)
        values = [x if d is None else jnp.take(x, first, d) for x, d in zip(values, dims[1:], strict=True)]
        return primitive.bind(pred if dims[0] is None else pred.all(), *values, **params), []

    primitive.multiple_results = True
    primitive.def_abstract_eval(lambda *types, **params: [])
    primitive_jvps[primitive] = jvp
    primitive_batchers[primitive] = batch


for _primitive in _CHECKS:
    _define_rules(_primitive)


def check(pred: ArrayLike, msg: str, *fmt_args: object, debug: bool = False, **fmt_kwargs: object) -> None:
    """Check a condition, also inside functions that `checkify` transforms and `jit` compiles.

    Outside of traced functions, a condition that does not hold raises an error at once.

    Args:
        pred: a boolean, or an array of booleans that must all hold.
        msg: the message, as for `str.format`.
        *fmt_args: arrays that the message shows.
        debug: whether the check does nothing outside of functions that `checkify` transforms, as `debug_check`.
        **fmt_kwargs: arrays that the message shows, by name.

    Raises:
        JaxRuntimeError: if the condition does not hold, outside of traced functions.
        TypeError: if `pred` is not a boolean.

    Example:
        >>> def root(x):
        ...     checkify.check(x >= 0, "{x} is negative", x=x)
        ...     return jnp.sqrt(x)
        >>> error, _ = jax.jit(jax.experimental.checkify.checkify(root))(-1.0)
        >>> error.get()
        '-1.0 is negative'
    """
    name = "checkify.debug_check" if debug else "checkify.check"
    condition = as_operand(pred, name)
    if condition.type.dtype != np.bool_:
        raise TypeError(f"{name} needs a boolean, not {condition.type}")
    values, structure = tree.flatten((fmt_args, fmt_kwargs))
    operands = [as_operand(value, name) for value in values]
    site = Site(FailedCheckError, msg, tuple(x.type for x in operands), structure)
    primitive = debug_check_p if debug else check_p
    primitive.bind(jnp.all(condition), *operands, site=site)


def debug_check(pred: ArrayLike, msg: str, *fmt_args: object, **fmt_kwargs: object) -> None:
    """Check a condition inside functions that `checkify` transforms, and nowhere else.

    Args:
        pred: a boolean, or an array of booleans that must all hold.
        msg: the message, as for `str.format`.
        *fmt_args: arrays that the message shows.
        **fmt_kwargs: arrays that the message shows, by name.

    Raises:
        TypeError: if `pred` is not a boolean.

    Example:
        >>> def root(x):
        ...     jax.experimental.checkify.debug_check(x >= 0, "{x} is negative", x=x)
        ...     return jnp.sqrt(x)
        >>> result = jax.jit(root)(-1.0)
        >>> error, _ = jax.jit(jax.experimental.checkify.checkify(root))(-1.0)
        >>> error.get()
        '-1.0 is negative'
    """
    check(pred, msg, *fmt_args, debug=True, **fmt_kwargs)


def check_error(error: Error) -> None:
    """Raise the error of a checked function, or pass it on to an enclosing `checkify`.

    Args:
        error: the first result of a function that `checkify` has transformed.

    Raises:
        JaxRuntimeError: if a check failed, outside of traced functions.

    Example:
        >>> error, _ = jax.experimental.checkify.checkify(jnp.sqrt)(4.0)
        >>> jax.experimental.checkify.check_error(error)
    """
    for index, (site, values) in enumerate(zip(error._sites, error._values, strict=True)):
        check_p.bind(as_operand(error._code) != index + 1, *map(as_operand, values), site=site)


def checkify(f: Callable[..., Out], errors: frozenset[ErrorCategory] = user_checks) -> Callable[..., tuple[Error, Out]]:
    """Transform a function so that it returns the error of its checks together with its result.

    Args:
        f: the function.
        errors: what is checked: `user_checks`, `nan_checks`, `div_checks`, `index_checks`, or a union of these.

    Returns:
        A function that returns an `Error` and the result of `f`.

    Raises:
        TypeError: if `f` is not callable.

    Example:
        >>> checked = jax.experimental.checkify.checkify(jnp.log, jax.experimental.checkify.nan_checks)
        >>> error, result = jax.jit(checked)(-1.0)
        >>> error.get() is None
        False
    """
    check_function("checkify", f)

    @wraps(f)
    def checked(*args: object, **keywords: object) -> tuple[Error, Any]:
        leaves, structure = tree.flatten((args, keywords))
        out_tree: list[Any] = []

        def flat(*inputs: Array) -> list[Any]:
            inner_args, inner_keywords = structure.unflatten(inputs)
            results, result_structure = tree.flatten(f(*inner_args, **inner_keywords))
            out_tree[:] = [result_structure]
            return results

        closed = make_jaxpr(flat)(*leaves)
        run = _Run(closed.jaxpr, errors)
        code, values, results = run.jaxpr(closed.jaxpr, closed.consts, leaves, *run.start())
        return Error(code, values, tuple(run.sites)), out_tree[0].unflatten(results)

    return checked


State = tuple[Any, list[tuple[Any, ...]]]


@final
class _Run:
    """Evaluates a jaxpr together with the state of its checks."""

    def __init__(self, jaxpr: Jaxpr, errors: frozenset[ErrorCategory]):
        self.numbers: dict[JaxprEqn, list[int]] = {}
        self.sites: list[Site] = []
        self._regions: dict[JaxprEqn, ClosedJaxpr] = {}  # the jaxprs of the bodies of `shard_map` and `pmap`
        self._collect(jaxpr, errors)

    def _collect(self, jaxpr: Jaxpr, errors: frozenset[ErrorCategory]) -> None:
        """Number the places that can fail, in nested jaxprs too."""
        for eqn in jaxpr.eqns:
            if eqn.primitive.name == Manual.name:
                self._regions[eqn] = closed_jaxpr(eqn.params["program"])
            inner = self._inner_jaxprs(eqn)
            for each in inner:
                self._collect(each, errors)
            if not inner and (sites := self._sites_of(eqn, errors)):
                self.numbers[eqn] = [len(self.sites) + index for index in range(len(sites))]
                self.sites += sites

    def _inner_jaxprs(self, eqn: JaxprEqn) -> list[Jaxpr]:
        """Return the jaxprs that an equation holds."""
        inner = [self._regions[eqn]] if eqn in self._regions else eqn.params.values()
        found = []
        for value in inner:
            for each in value if isinstance(value, tuple) else (value,):
                if isinstance(each, (ClosedJaxpr, Jaxpr)):
                    found.append(each.jaxpr if isinstance(each, ClosedJaxpr) else each)
        return found

    def _sites_of(self, eqn: JaxprEqn, errors: frozenset[ErrorCategory]) -> list[Site]:
        """Return the ways in which an equation without nested jaxprs can fail."""
        if eqn.primitive in _CHECKS:
            return [eqn.params["site"]] if FailedCheckError in errors else []
        return automatic_sites(eqn, errors)

    def start(self) -> State:
        return jnp.int32(0), [tuple(jnp.zeros(type.shape, type.dtype) for type in site.types) for site in self.sites]

    def jaxpr(
        self, jaxpr: Jaxpr, consts: Sequence[Any], args: Sequence[Any], code: Array, values: list[tuple[Any, ...]]
    ) -> tuple[Any, list[tuple[Any, ...]], list[Any]]:
        """Return the state after the jaxpr, and its results."""

        def checked_results(eqn: JaxprEqn, operands: list[Any]) -> Sequence[Any]:
            nonlocal code, values
            code, values, results = self._equation(eqn, operands, code, values)
            return results  # type: ignore[no-any-return]

        results = interpret_jaxpr(jaxpr, consts, args, checked_results)
        return code, values, results

    def _equation(self, eqn: JaxprEqn, operands: list[Any], code: Array, values: list[Any]) -> Any:
        name, params = eqn.primitive.name, eqn.params
        has_sites = any(self._contains(inner) for inner in self._inner_jaxprs(eqn))
        if eqn.primitive in _CHECKS:
            for number in self.numbers.get(eqn, ()):
                code, values = self._fail(number, ~operands[0], operands[1:], code, values)
            return code, values, []
        if has_sites and name == "cond":
            index, *rest = operands
            branches = [self._function(branch) for branch in params["branches"]]
            return lax.switch(index, branches, (code, values), *rest)
        if has_sites and eqn in self._regions:
            return self._region(eqn, operands, code, values)
        if has_sites and name == "scan":
            return self._scan(params, operands, code, values)
        if has_sites and name == "while":
            return self._while(params, operands, code, values)
        if has_sites:  # a call: its derivatives are already taken
            inner = params["jaxpr"] if "jaxpr" in params else params["call_jaxpr"]
            closed = inner if isinstance(inner, ClosedJaxpr) else ClosedJaxpr(inner, ())
            return self.jaxpr(closed.jaxpr, closed.consts, operands, code, values)
        results = eqn.bind(operands)
        for number in self.numbers.get(eqn, ()):
            test = self.sites[number].test
            assert test is not None
            failed, shown = test(eqn, operands, results)
            code, values = self._fail(number, failed, shown, code, values)
        return code, values, results

    def _contains(self, jaxpr: Jaxpr) -> bool:
        return any(
            eqn in self.numbers or eqn.primitive in _CHECKS or any(map(self._contains, self._inner_jaxprs(eqn)))
            for eqn in jaxpr.eqns
        )

    def _fail(self, number: int, failed: Array, shown: Sequence[Any], code: Array, values: list[Any]) -> State:
        """Return the state after a check: the first failure stays."""
        first = failed & (code == 0)
        new = tuple(jnp.where(first, x, old) for x, old in zip(shown, values[number], strict=True))
        return jnp.where(first, jnp.int32(number + 1), code), [*values[:number], new, *values[number + 1 :]]

    def _function(self, closed: ClosedJaxpr) -> Callable[..., Any]:
        return lambda state, *args: self.jaxpr(closed.jaxpr, closed.consts, args, *state)

    def _region(self, eqn: JaxprEqn, operands: list[Any], code: Array, values: list[Any]) -> Any:
        """Run the body of a `shard_map` or `pmap` with a state per device; the first device that failed counts."""
        region, closed = Manual(**eqn.params), self._regions[eqn]

        def on_shards(*shards: Array) -> tuple[State, list[Any]]:
            start: State = tree.map(lambda x: make_varying(x, region.axes), self.start())
            new_code, new_values, results = self.jaxpr(closed.jaxpr, closed.consts, shards, *start)
            return tree.map(lambda x: make_varying(x, region.axes)[None], (new_code, new_values)), results

        in_specs = [_partition_spec(spec) for spec in region.in_specs]
        in_specs += [PartitionSpec()] * (len(operands) - len(in_specs))  # values that the body closes over
        (codes, shown), results = shard_map(
            on_shards,
            mesh=region.mesh,
            axis_names=region.axes,
            in_specs=tuple(in_specs),
            out_specs=(PartitionSpec(region.axes), [_partition_spec(spec) for spec in region.out_specs]),
            check_vma=region.tracked,
        )(*operands)
        first = jnp.argmax(codes != 0)
        failed = (codes[first] != 0) & (code == 0)
        new_values = tree.map(lambda new, old: jnp.where(failed, new[first], old), shown, values)
        return jnp.where(failed, codes[first], code), new_values, results

    def _scan(self, params: dict[str, Any], operands: list[Any], code: Array, values: list[Any]) -> Any:
        first, after = params["num_consts"], params["num_consts"] + params["num_carry"]
        closed = params["jaxpr"]

        def body(carry: tuple[State, list[Any]], slices: list[Any]) -> tuple[tuple[State, list[Any]], list[Any]]:
            state, carried = carry
            args = [*operands[:first], *carried, *slices]
            new_code, new_values, results = self.jaxpr(closed.jaxpr, closed.consts, args, *state)
            return ((new_code, new_values), results[: params["num_carry"]]), results[params["num_carry"] :]

        start = ((code, values), operands[first:after])
        (state, carried), stacked = lax.scan(
            body, start, operands[after:], params["length"], params["reverse"], params["unroll"]
        )
        return *state, [*carried, *stacked]

    def _while(self, params: dict[str, Any], operands: list[Any], code: Array, values: list[Any]) -> Any:
        first, after = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
        condition, loop = params["cond_jaxpr"], params["body_jaxpr"]

        def holds(state: State, carried: Sequence[Any]) -> tuple[Any, State]:
            args = [*operands[:first], *carried]
            new_code, new_values, (result,) = self.jaxpr(condition.jaxpr, condition.consts, args, *state)
            return result, (new_code, new_values)

        def body(carry: tuple[Array, State, list[Any]]) -> tuple[Array, State, list[Any]]:
            _, state, carried = carry
            args = [*operands[first:after], *carried]
            new_code, new_values, results = self.jaxpr(loop.jaxpr, loop.consts, args, *state)
            result, new_state = holds((new_code, new_values), results)
            return result, new_state, results

        start, state = holds((code, values), operands[after:])
        _, state, carried = lax.while_loop(lambda carry: carry[0], body, (start, state, operands[after:]))
        return *state, carried


def _partition_spec(spec: ShardSpec) -> PartitionSpec:
    return PartitionSpec(*(axes or None for axes in spec.dims), unreduced=spec.unreduced, reduced=spec.reduced)


set_public_names(__name__, __all__)
