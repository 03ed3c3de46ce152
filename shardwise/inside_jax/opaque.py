"""Equations that JAX itself lowers: FFI calls, Pallas kernels and primitives of other libraries.

The planner cannot look inside them, so that their operands and results are replicated. In the module, such an equation
is a placeholder, which `module_call` replaces by JAX's lowering. Inside `jax.shard_map`, an equation has the shards of
one device, as in JAX.
"""

import itertools
from collections.abc import Sequence
from typing import Any, final
from weakref import WeakValueDictionary

import numpy as np

from shardwise.base.call_site import warn_user
from shardwise.compiler.ir.op import Hlo, HloValue, LocalContext, NumpyArray, Op
from shardwise.compiler.ir.operand import Operand
from shardwise.compiler.ir.record import record
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.shardings.factors import Dims, FactorRule
from shardwise.compiler.trace.provenance import provenance
from shardwise.inside_jax import _jax, translate

PLACEHOLDER = "shardwise.jax_equation"  # the target of the placeholder's custom call

_numbers = itertools.count()
_equations: WeakValueDictionary[int, "Equation"] = WeakValueDictionary()


@final
class Equation:
    """The function of an equation of JAX. It compares by identity.

    Attributes:
        name: the name of the primitive.
        avals: the types of the operands.
        number: identifies the equation in the module.
    """

    def __init__(self, eqn: _jax.JaxprEqn):
        self.name = eqn.primitive.name
        self.avals = [atom.aval for atom in eqn.invars]
        self.has_effects = bool(eqn.effects)
        self.number = next(_numbers)
        self._primitive, self._params = eqn.primitive, eqn.params
        _equations[self.number] = self

    def __call__(self, *operands: _jax.Array) -> list[Any]:
        """Apply the primitive to arrays or tracers of JAX."""
        results = self._primitive.bind(*operands, **self._params)
        return list(results) if self._primitive.multiple_results else [results]


def equation_numbered(number: int) -> Equation:
    """Return the equation of a placeholder."""
    return _equations[number]


@final
@record
class JaxEquation(Op):
    """An equation of JAX, with results of the types `results`. All dims are replicated."""

    name = "jax_equation"
    single = False
    equation: Equation
    results: tuple[ArrayType, ...]

    @property
    def effect(self) -> str:
        return "unordered" if self.equation.has_effects else ""

    def out_types(self, *types: ArrayType) -> tuple[ArrayType, ...]:
        return self.results

    def factors(self, *types: ArrayType) -> FactorRule:
        sizes = [size for type in (*types, *self.results) for size in type.shape]
        numbers = iter(range(len(sizes)))

        def dims(types: Sequence[ArrayType]) -> tuple[Dims, ...]:
            return tuple(tuple((next(numbers),) for _ in type.shape) for type in types)

        return FactorRule(dims(types), dims(self.results), tuple(sizes), need_replication=frozenset(range(len(sizes))))

    def localize(self, context: LocalContext, *operands: Operand) -> Any:
        if context.mesh.extent(context.auto_axes) > 1 and any(x.type.shape for x in operands):
            warn_user(
                f"the primitive {self.equation.name!r} of JAX at {provenance.source} is opaque to the planner: every "
                "device computes all of it, with replicated operands. To partition it, call it inside `jax.shard_map`."
            )
        return self(*operands)

    def lower(self, hlo: Hlo, *operands: HloValue) -> Any:
        attributes = (
            f'call_target_name = "{PLACEHOLDER}", backend_config = "{self.equation.number}", has_side_effect = true'
        )
        return hlo.many("stablehlo.custom_call", operands, self.results, attributes)

    def reference(self, *operands: NumpyArray) -> tuple[NumpyArray, ...]:
        return tuple(map(np.asarray, self.equation(*map(_jax.jax.numpy.asarray, operands))))


def is_opaque(eqn: _jax.JaxprEqn) -> bool:
    """Return whether an equation may be an opaque op: one of arrays of numbers, not of tokens, Refs or PRNG keys."""
    avals = [atom.aval for atom in (*eqn.invars, *eqn.outvars)]
    return all(isinstance(aval, _jax.ShapedArray) and not isinstance(aval.dtype, _jax.KeyTy) for aval in avals)


def apply_opaque(eqn: _jax.JaxprEqn, operands: Sequence[_jax.Array]) -> Sequence[Any]:
    """Apply an equation of JAX as an opaque op."""
    results = tuple(translate.array_type(var.aval) for var in eqn.outvars)
    return JaxEquation(Equation(eqn), results)(*operands)
