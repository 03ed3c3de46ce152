"""Read a jaxpr of JAX: a Program that computes the same.

    JAX's jaxpr  --read_jaxpr-->  Program  --plan, partition, lower-->  StableHLO

Each equation is applied as the function of Shardwise with the same meaning, so that the Program is traced as if the
user had written it with Shardwise. Primitives that are one op here are in `api.jaxprs.jaxpr_forms`, in both
directions; `primitives` has the others.
"""

import dataclasses
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import numpy as np

from shardwise.api.jaxprs.jaxpr import match_weak_type
from shardwise.api.jaxprs.jaxpr_forms import OpPrimitive, find_primitive
from shardwise.compiler.arrays.operands import as_operand
from shardwise.compiler.ir.program import NOWHERE, Program, Source
from shardwise.compiler.ops.placement.constrain import Constrain
from shardwise.compiler.ops.shape.constants import full
from shardwise.compiler.trace.build import build
from shardwise.compiler.trace.provenance import provenance
from shardwise.compiler.transforms.replay import restore_source
from shardwise.errors import UnsupportedError
from shardwise.explain.constraints import BACKWARD
from shardwise.inside_jax import _jax, translate
from shardwise.inside_jax.custom_partitioning import apply_custom_partitioning
from shardwise.inside_jax.opaque import apply_opaque, constant, is_opaque
from shardwise.inside_jax.primitives import PRIMITIVES
from shardwise.inside_jax.primitives.parameters import unsupported_parameter
from shardwise.inside_jax.sharding_rules import registered_rule


def read_jaxpr(closed: _jax.ClosedJaxpr, name: str, mesh: _jax.Mesh) -> tuple[Program, list[Any]]:
    """Read a closed jaxpr of JAX.

    Args:
        closed: the jaxpr.
        name: the name of the program.
        mesh: JAX's mesh that the program is for, for callbacks of `custom_partitioning`; None if there is none.

    Returns:
        The program, and the arrays of JAX that the jaxpr and the jaxprs in it close over: its last inputs.
    """
    closed = _lowered(closed)
    jaxpr = closed.jaxpr
    constants = [*closed.consts, *_inner_constants(jaxpr)]
    arguments, count = len(jaxpr.invars), len(closed.consts)

    def evaluate(*inputs: object) -> list[Any]:
        consts = inputs[arguments:]
        reader = _Reader({id(value): array for value, array in zip(constants, consts, strict=True)}, mesh)
        return reader.evaluate(jaxpr, consts[:count], inputs[:arguments], NOWHERE)

    types = [translate.array_type(var.aval) for var in jaxpr.invars]
    types += [translate.array_type(_jax.typeof(value)) for value in constants]
    program, captured = build(evaluate, types, name)
    return program, [*constants, *map(np.asarray, captured)]


def _lowered(closed: _jax.ClosedJaxpr) -> _jax.ClosedJaxpr:
    """Return a jaxpr without Refs and without types that JAX lowers to others."""
    return _jax.discharge_refs(_jax.lower_high_types(closed))


def _inner_constants(jaxpr: _jax.Jaxpr) -> Iterator[Any]:
    """Yield the arrays that are literals of a jaxpr, and those that the jaxprs in it close over."""
    for eqn in jaxpr.eqns:
        yield from (atom.val for atom in eqn.invars if isinstance(atom, _jax.Literal) and atom.aval.shape)
        for inner in _jaxprs(eqn.params):
            is_closed = isinstance(inner, _jax.ClosedJaxpr)
            yield from inner.consts if is_closed else ()
            yield from _inner_constants(inner.jaxpr if is_closed else inner)
    yield from (atom.val for atom in jaxpr.outvars if isinstance(atom, _jax.Literal) and atom.aval.shape)


def _jaxprs(params: dict[str, Any]) -> Iterator[Any]:
    """Yield the jaxprs among the parameters of an equation. Those that close over arrays are ClosedJaxprs."""
    for value in params.values():
        for item in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(item, (_jax.ClosedJaxpr, _jax.Jaxpr)):
                yield item


@final
@dataclass(frozen=True)
class _Reader:
    """Evaluates jaxprs for arrays of Shardwise.

    Attributes:
        constants: the arrays for constants of jaxprs, by the id of the constant.
        mesh: JAX's mesh that the program is for; None if there is none.
    """

    constants: dict[int, Any]
    mesh: _jax.Mesh

    def evaluate(self, jaxpr: _jax.Jaxpr, consts: Sequence[Any], args: Sequence[Any], caller: Source) -> list[Any]:
        """Return the results of a jaxpr. `caller` is the line of the equation that has it."""
        is_of_library = _jax.is_of_library(jaxpr)
        values: dict[Any, Any] = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *args), strict=True))

        def read(atom: _jax.Var) -> Any:
            return self._literal(atom) if isinstance(atom, _jax.Literal) else values[atom]

        with restore_source():
            for eqn in jaxpr.eqns:
                source = provenance.source = _source(eqn, caller, is_of_library)
                results = self._apply(eqn, [read(atom) for atom in eqn.invars], source)
                for var, result in zip(eqn.outvars, results, strict=True):
                    values[var] = _typed(result, var.aval)
        return [read(atom) for atom in jaxpr.outvars]

    def _constant(self, value: object) -> Any:
        """Return the array for a constant. Those of implementations of primitives are captured when they are read."""
        return self.constants[id(value)] if id(value) in self.constants else np.asarray(value)

    def _literal(self, literal: _jax.Literal) -> Any:
        if literal.aval.shape:
            return self._constant(literal.val)
        type = translate.array_type(literal.aval)
        return full((), np.asarray(literal.val)[()], type.dtype, type.weak)

    def _function(self, jaxpr: _jax.ClosedJaxpr, caller: Source) -> Callable[..., list[Any]]:
        """Return the function of arrays that a jaxpr computes."""
        if not isinstance(jaxpr, _jax.ClosedJaxpr):
            return lambda *args: self.evaluate(jaxpr, (), args, caller)
        return lambda *args: self.evaluate(jaxpr.jaxpr, [self._constant(value) for value in jaxpr.consts], args, caller)

    def _function_of_shards(self, closed: _jax.ClosedJaxpr, caller: Source) -> Callable[..., list[Any]]:
        """Return the function that a jaxpr of shards computes. Its constants are part of it, and no inputs."""
        closed = _lowered(closed)

        def function(*shards: object) -> list[Any]:
            constants = {id(value): constant(value) for value in (*closed.consts, *_inner_constants(closed.jaxpr))}
            return dataclasses.replace(self, constants=constants)._function(closed, caller)(*shards)

        return function

    def _apply(self, eqn: _jax.JaxprEqn, operands: list[Any], source: Source) -> Sequence[Any]:
        """Return the results of an equation."""
        name = eqn.primitive.name
        if name == "custom_partitioning":
            function = self._function(eqn.params["call"], source)
            read = partial(self._function_of_shards, caller=source)
            return apply_custom_partitioning(eqn, operands, self.mesh, function, read)
        params = {
            key: translate.parameter(value, lambda jaxpr: self._function(jaxpr, source))
            for key, value in eqn.params.items()
        }
        if name in PRIMITIVES:
            result = PRIMITIVES[name](*operands, **params)
        elif (primitive := find_primitive(name)) is not None:
            result = primitive.bind(*operands, **(params if primitive.form else _fields(primitive, params)))
        elif (may_be_opaque := _jax.has_lowering(eqn.primitive) and is_opaque(eqn)) and (
            rule := registered_rule(eqn)
        ) is not None:
            return apply_opaque(eqn, operands, rule)
        elif (implementation := _jax.decompose(eqn)) is not None:
            return self._function(implementation, source)(*operands)
        elif may_be_opaque:
            return apply_opaque(eqn, operands)
        else:
            raise UnsupportedError(
                f"the primitive {name!r} of JAX at {source} is not supported, so Shardwise cannot plan this program. "
                "Compute this part outside of the function, with `jax.jit`."
            )
        return result if eqn.primitive.multiple_results else (result,)


def _fields(primitive: OpPrimitive, params: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters of a primitive that are fields of its op.

    JAX's elementwise primitives have more parameters, such as the accuracy, which are None by default.
    """
    fields = {field.name for field in dataclasses.fields(primitive.op_class)}  # type: ignore[arg-type]
    for name, value in params.items():
        if name not in fields and value is not None:
            raise unsupported_parameter(primitive.name, name, value)
    return {name: value for name, value in params.items() if name in fields}


def _typed(result: object, aval: _jax.ShapedArray) -> Any:
    """Return a result with the weak type and, along Explicit mesh axes, the sharding that JAX's type states."""
    if not isinstance(aval, _jax.ShapedArray):  # a token
        return result
    array = match_weak_type(as_operand(result), translate.array_type(aval))
    axes, spec = tuple(aval.sharding.mesh.explicit_axes), aval.sharding.spec
    if not axes:
        return array
    dims = tuple(() if part is None else part if isinstance(part, tuple) else (part,) for part in spec.partitions)
    mesh = translate.mesh(aval.sharding.mesh)
    return Constrain(dims, mesh, axes=axes, unreduced=tuple(sorted(spec.unreduced)))(array)


def _source(eqn: _jax.JaxprEqn, caller: Source, is_of_library: bool) -> Source:
    """Return the user's line of an equation, with its named scopes: the caller's line in a function of a library."""
    parts = eqn.source_info.name_stack.stack
    scope = (*caller.scope, *(part.name for part in parts if isinstance(part, _jax.Scope)))
    if BACKWARD not in scope and any(part.name == "transpose" for part in parts if not isinstance(part, _jax.Scope)):
        scope = (*scope, BACKWARD)
    settings = eqn.ctx.xla_metadata or {}
    metadata = json.dumps({name: str(value) for name, value in settings.items()}) if settings else caller.metadata
    line = None if is_of_library else _jax.user_line(eqn.source_info.traceback)
    return Source(*(line or caller[:3]), scope, metadata)
