"""Equations that JAX itself lowers: FFI calls, Pallas kernels and primitives of other libraries.

The planner cannot look inside them. With a sharding rule of the user, each device applies the equation to its shards;
otherwise operands and results are replicated. In the module, such an equation is a placeholder, which `module_call`
replaces by JAX's lowering. Inside `jax.shard_map`, an equation has the shards of one device, as in JAX.
"""

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, final
from weakref import WeakValueDictionary

import numpy as np

from shardwise.base.call_site import warn_user
from shardwise.compiler.ir.op import Hlo, HloValue, LocalContext, NumpyArray, Op
from shardwise.compiler.ir.operand import Operand
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.shardings.factors import FactorRule
from shardwise.compiler.trace.build import build
from shardwise.compiler.trace.provenance import provenance
from shardwise.errors import ShardingError
from shardwise.experimental.sharding_rule import factor_rule, replicated_rule
from shardwise.inside_jax import _jax, translate
from shardwise.inside_jax.sharding_rules import RegisteredRule

PLACEHOLDER = "shardwise.jax_equation"  # the target of the placeholder's custom call

_numbers = itertools.count()
_equations: WeakValueDictionary[int, "Equation"] = WeakValueDictionary()


@final
class Equation:
    """The function of an equation of JAX, or of its shards. It compares by identity.

    Attributes:
        name: the name of the primitive.
        avals: the types of the operands.
        has_effects: whether it has side effects.
        number: identifies the equation in the module.
    """

    def __init__(self, name: str, function: Callable[..., Any], avals: Sequence[Any], has_effects: bool = False):
        self.name = name
        self.avals = avals
        self.has_effects = has_effects
        self.number = next(_numbers)
        self._function = function
        _equations[self.number] = self

    @staticmethod
    def from_eqn(eqn: _jax.JaxprEqn) -> "Equation":
        """Return the function of an equation."""
        function = partial(eqn.primitive.bind, **eqn.params)
        return Equation(eqn.primitive.name, function, [atom.aval for atom in eqn.invars], bool(eqn.effects))

    def __call__(self, *operands: _jax.Array) -> list[Any]:
        """Apply the function to arrays or tracers of JAX."""
        return list(_jax.jax.tree.leaves(self._function(*operands)))


def equation_numbered(number: int) -> Equation:
    """Return the equation of a placeholder."""
    return _equations[number]


@final
@record
class JaxEquation(Op):
    """An equation of JAX, with results of the types `results`. Without a `partition`, all dims are replicated."""

    name = "jax_equation"
    single = False
    equation: Equation
    results: tuple[ArrayType, ...]
    partition: "Partition | None" = None

    @property
    def effect(self) -> str:
        return "unordered" if self.equation.has_effects else ""

    def out_types(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        return self.results

    def factors(self, *types: ArrayType) -> FactorRule:
        return replicated_rule(types, self.results) if self.partition is None else self.partition.rule

    def localize(self, context: LocalContext, *operands: Operand) -> Any:
        shards = [x.type for x in operands]
        if self.partition is not None and tuple(shards) != context.global_types:
            return self.partition.apply(self, shards, context.out_shapes)(*operands)
        is_partitioned = context.mesh.extent(context.auto_axes) > 1
        if self.partition is None and is_partitioned and any(x.type.shape for x in operands):
            warn_user(
                f"the primitive {self.equation.name!r} of JAX at {provenance.source} is opaque to the planner: every "
                "device computes all of it, with replicated operands. To partition it, pass its sharding rule to "
                "`inside_jax.register_sharding_rule`, or call it inside `jax.shard_map`."
            )
        return self(*operands)

    def lower(self, hlo: Hlo, *operands: HloValue) -> Any:
        attributes = (
            f'call_target_name = "{PLACEHOLDER}", backend_config = "{self.equation.number}", has_side_effect = true'
        )
        return hlo.many("stablehlo.custom_call", operands, self.results, attributes)

    def reference(self, *operands: NumpyArray) -> tuple[NumpyArray, ...]:
        return tuple(map(np.asarray, self.equation(*map(_jax.jax.numpy.asarray, operands))))


@final
@record
class Partition:
    """How an equation is partitioned: by a rule that the user registered.

    Attributes:
        registered: the rule, with the name of the op.
        rule: the rule, resolved for the types of the operands and results.
        function: the function of shards: from their types and the types of the results to a function of JAX.
    """

    registered: RegisteredRule
    rule: FactorRule
    function: Callable[[Sequence[Any]], Callable[..., Any]]

    def apply(
        self, op: JaxEquation, operands: Sequence[ArrayType], out_shapes: Sequence[tuple[int, ...]]
    ) -> JaxEquation:
        """Return the op of one device, for operands of these types and results of these shapes."""
        results = tuple(type.with_shape(shape) for type, shape in zip(op.results, out_shapes, strict=True))
        avals = [_jax.ShapedArray(type.shape, type.dtype) for type in operands]
        function = self.function([_jax.ShapedArray(type.shape, type.dtype) for type in results])
        local = Equation(op.equation.name, function, avals, op.equation.has_effects)
        computed = [(x.shape, x.dtype) for x in _jax.jax.eval_shape(local, *avals)]
        if computed != [(type.shape, type.dtype) for type in results]:
            raise ShardingError(
                f"{self.registered.name!r} at {provenance.source}: for shards {', '.join(map(str, operands))} it "
                f"returns {', '.join(f'{dtype}{list(shape)}' for shape, dtype in computed)}, but by its sharding rule "
                f"the shards of the results are {', '.join(map(str, results))}. If parameters of the op hold "
                "shapes of unsharded arrays, pass a function of shards as `lower_fn`. If the op is not correct on "
                "shards along a factor, list it in `need_replication_factors`."
            )
        return JaxEquation(local, results)


def is_opaque(eqn: _jax.JaxprEqn) -> bool:
    """Return whether an equation may be an opaque op: one of arrays of numbers, not of tokens, Refs or PRNG keys."""
    avals = [atom.aval for atom in (*eqn.invars, *eqn.outvars)]
    return all(isinstance(aval, _jax.ShapedArray) and not isinstance(aval.dtype, _jax.KeyTy) for aval in avals)


def apply_opaque(
    eqn: _jax.JaxprEqn, operands: Sequence[_jax.Array], registered: RegisteredRule | None = None
) -> Sequence[Any]:
    """Apply an equation of JAX as an opaque op, which is partitioned by a rule of the user if there is one."""
    op = JaxEquation(Equation.from_eqn(eqn), tuple(translate.array_type(var.aval) for var in eqn.outvars))
    if registered is None:
        return op(*operands)
    return JaxEquation(op.equation, op.results, _partition(eqn, op, registered))(*operands)


def constant(value: object) -> Any:
    """Return an array of JAX as a constant of the module, which no device of Shardwise holds."""
    array = np.asarray(value)
    return JaxEquation(Equation("constant", lambda: array, ()), (ArrayType(array.shape, array.dtype),))()[0]


def _partition(eqn: _jax.JaxprEqn, op: JaxEquation, registered: RegisteredRule) -> Partition:
    types = [translate.array_type(atom.aval) for atom in eqn.invars]
    program, _ = build(op, types, registered.name)
    try:
        rule = factor_rule(registered.rule, program, has_partition=False)
    except ValueError as error:
        raise ShardingError(f"the sharding rule of {registered.name!r} at {provenance.source}: {error}") from None

    def function(results: Sequence[Any]) -> Callable[..., Any]:
        if registered.lower_fn is not None:
            return registered.lower_fn
        shapes = {"result_avals": tuple(results)} if eqn.primitive.name == "ffi_call" else {}
        return partial(eqn.primitive.bind, **{**eqn.params, **shapes})

    return Partition(registered, rule, function)
