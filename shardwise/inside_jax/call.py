"""The JAX primitive of a planned function: what a call under JAX's transformations is.

`jax.grad`, `jax.vmap` and `jax.checkpoint` transform the function's jaxpr by JAX's own rules. Each jaxpr that they
produce is planned on its own: the function with its residuals, its linear part, its transpose, the batched function.
A call is planned when it runs, for the shardings of its operands, or when JAX lowers the program around it, for the
shardings that `in_shardings` and Explicit types state.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import Any, final

from shardwise.base.caches import registered_cache
from shardwise.errors import ShardingError
from shardwise.inside_jax import _jax
from shardwise.inside_jax.plan import Call, plan

call_p = _jax.Primitive("shardwise_jit")
call_p.multiple_results = True


def bind(call: Call, *operands: _jax.Array) -> list[Any]:
    """Apply a function to arrays or tracers of JAX."""
    return call_p.bind(*operands, call=call)


def _derived(
    call: Call, jaxpr: _jax.ClosedJaxpr, ins: Sequence[Any], outs: Sequence[Any], names: Sequence[str]
) -> Call:
    """Return the call of a function that a transformation derived from another."""
    return Call(jaxpr, call.name, call.mesh, tuple(ins), tuple(outs), tuple(names))


def _abstract_eval(*_: object, call: Call) -> tuple[list[Any], set[Any]]:
    effects = {effect for effect in call.jaxpr.effects if _jax.lowerable_effects.contains(effect)}
    return list(call.jaxpr.out_avals), effects


call_p.def_effectful_abstract_eval(_abstract_eval)


def _impl(*operands: _jax.Array, call: Call) -> list[Any]:
    """Run the function on arrays."""
    placed = call.placed(operands)
    return _runner(placed)(*operands)


call_p.def_impl(_impl)


def _stage(trace: Any, source_info: object, *operands: _jax.Array, call: Call) -> list[Any]:
    """Record the call in a jaxpr, with its shardings as constraints, as those of a nested `jax.jit`.

    JAX derives the devices of a program from its arguments and from the shardings in its jaxpr. Without constraints, it
    would compile a call with `in_shardings` for one device if no argument of the program around it is on the mesh.
    """
    with _jax.core.set_current_trace(trace):
        operands = tuple(map(_constrained, operands, call.in_shardings))
        results = trace.default_process_primitive(call_p, operands, {"call": call}, source_info)
        # Without operands, only the results can tell JAX the devices.
        outs = call.out_shardings if operands or call.mesh is None else plan(call).out_shardings
        return list(map(_constrained, results, outs))


_jax.partial_eval.custom_staging_rules[call_p] = _stage


def _constrained(x: _jax.Array, sharding: _jax.Sharding | None) -> Any:
    """Return a tracer with a sharding constraint, unless Explicit axes, which are part of its type, state it."""
    if not isinstance(sharding, _jax.NamedSharding) or sharding.mesh.explicit_axes:
        return x
    return _jax.jax.lax.with_sharding_constraint(x, sharding)


@registered_cache(maxsize=1024)
def _runner(call: Call) -> Any:
    planned = plan(call)
    if planned.mesh is None:
        return _jax.jax.jit(planned)
    return _jax.jax.jit(planned, in_shardings=planned.in_shardings, out_shardings=list(planned.out_shardings))


def _lower(ctx: _jax.LoweringRuleContext, *operands: _jax.Array, call: Call) -> Any:
    """Lower the function inside a program that JAX compiles."""
    for name, sharding in zip(call.names, call.in_shardings, strict=True):
        if sharding is None:
            raise ShardingError(
                f"inside_jax.jit of `{call.name}` is called inside a function that JAX traces, and nothing states the "
                f"sharding of {name}: along Auto mesh axes, JAX's tracers have none. Pass `in_shardings` to "
                "inside_jax.jit, or give the mesh Explicit axes."
            )
    return _jax.mlir.lower_fun(plan(call), multiple_results=True)(ctx, *operands)


_jax.mlir.register_lowering(call_p, _lower)


@final
@dataclass(frozen=True)
class _Linearized:
    """The forward function, with residuals as its last results, and the linear one, with them as its first operands.

    `has_tangent` is, for each result, whether it has a tangent.
    """

    forward: Any
    linear: Any
    has_tangent: tuple[bool, ...]


@registered_cache(maxsize=256)
def _linearized(jaxpr: _jax.ClosedJaxpr, active: tuple[bool, ...]) -> _Linearized:
    """Linearize a jaxpr with respect to its active operands, by JAX's rules."""
    jax = _jax.jax
    function = _jax.jaxpr_as_fun(jaxpr)
    structure = None
    has_tangent = tuple(_is_inexact(aval) for aval in jaxpr.out_avals)

    def forward(*primals: object) -> list[Any]:
        nonlocal structure

        def of_active(*values: object) -> tuple[list[Any], list[Any]]:
            given = iter(values)
            operands = [next(given) if is_active else x for x, is_active in zip(primals, active, strict=True)]
            results = function(*operands)
            return [*compress(results, has_tangent)], results

        # All results are auxiliary ones: the function must not be applied twice, since it may have effects.
        _, linear, results = jax.linearize(of_active, *compress(primals, active), has_aux=True)
        residuals, structure = jax.tree.flatten(linear)
        return [*results, *residuals]

    forward_jaxpr = jax.make_jaxpr(forward)(*jaxpr.in_avals)
    count = len(jaxpr.out_avals)
    residuals = forward_jaxpr.out_avals[count:]

    def linear(*operands: _jax.Array) -> list[Any]:
        assert structure is not None
        return list(structure.unflatten(operands[: len(residuals)])(*operands[len(residuals) :]))

    tangents = [aval.to_tangent_aval() for aval in compress(jaxpr.in_avals, active)]
    return _Linearized(forward_jaxpr, jax.make_jaxpr(linear)(*residuals, *tangents), has_tangent)


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, call: Call) -> tuple[list[Any], list[Any]]:
    active = tuple(type(tangent) is not _jax.ad.Zero for tangent in tangents)
    linearized = _linearized(call.jaxpr, active)
    placed = call.placed(primals)
    count = len(call.jaxpr.out_avals)
    residuals = len(linearized.forward.out_avals) - count
    outs = (*placed.out_shardings, *[None] * residuals)
    forward = _derived(placed, linearized.forward, placed.in_shardings, outs, placed.names)
    if forward.is_placed and forward.mesh is not None:
        # The plan decides the shardings of residuals, which the linear function needs to know.
        forward = replace(forward, out_shardings=plan(forward).out_shardings)
    results = bind(forward, *primals)
    linear = _derived(
        placed,
        linearized.linear,
        (*forward.out_shardings[count:], *compress(placed.in_shardings, active)),
        [*compress(forward.out_shardings[:count], linearized.has_tangent)],
        (
            *(f"residual {number}" for number in range(residuals)),
            *(f"the tangent of {n}" for n in compress(call.names, active)),
        ),
    )
    given = iter(bind(linear, *results[count:], *compress(tangents, active)))
    out_tangents = [
        next(given) if has else _jax.ad.Zero(aval.to_tangent_aval())
        for has, aval in zip(linearized.has_tangent, call.jaxpr.out_avals, strict=True)
    ]
    return results[:count], out_tangents


_jax.ad.primitive_jvps[call_p] = _jvp


@registered_cache(maxsize=256)
def _transposed(jaxpr: _jax.ClosedJaxpr, is_linear: tuple[bool, ...]) -> Any:
    """Return the transpose of a jaxpr that is linear in some operands: from the others and cotangents to cotangents."""
    jax = _jax.jax
    function = _jax.jaxpr_as_fun(jaxpr)
    known = [not linear for linear in is_linear]
    count = sum(known)

    def transposed(*operands: _jax.Array) -> list[Any]:
        def of_linear(*values: object) -> list[Any]:
            given, others = iter(values), iter(operands[:count])
            return function(*(next(given) if linear else next(others) for linear in is_linear))

        types = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in compress(jaxpr.in_avals, is_linear)]
        return list(jax.linear_transpose(of_linear, *types)(list(operands[count:])))

    return jax.make_jaxpr(transposed)(*compress(jaxpr.in_avals, known), *jaxpr.out_avals)


def _transpose(cotangents: Sequence[Any], *operands: _jax.Array, call: Call) -> list[Any]:
    is_linear = tuple(_jax.ad.is_undefined_primal(x) for x in operands)
    known = tuple(not linear for linear in is_linear)
    cotangents = [_jax.ad.instantiate_zeros(ct) for ct in cotangents]
    transposed = _derived(
        call,
        _transposed(call.jaxpr, is_linear),
        (*compress(call.in_shardings, known), *call.out_shardings),
        [*compress(call.in_shardings, is_linear)],
        (*compress(call.names, known), *(f"the cotangent of result {number}" for number in range(len(cotangents)))),
    )
    results = iter(bind(transposed, *compress(operands, known), *cotangents))
    return [next(results) if linear else None for linear in is_linear]


_jax.ad.primitive_transposes[call_p] = _transpose


def _batch(
    axis: _jax.AxisData, operands: Sequence[_jax.Array], dims: Sequence[Any], *, call: Call
) -> tuple[list[Any], list[Any]]:
    uses_axis = _jax.core.NamedAxisEffect(axis.name) in call.jaxpr.effects
    if not uses_axis and all(dim is None for dim in dims):
        return bind(call, *operands), [None] * len(call.out_shardings)
    jaxpr = _batched(call.jaxpr, tuple(dims), axis.size, axis.name, axis.spmd_name)
    ins = [
        sharding if sharding is None or dim is None else _with_dim(sharding, dim, axis.spmd_name)
        for sharding, dim in zip(call.in_shardings, dims, strict=True)
    ]
    outs = [sharding if sharding is None else _with_dim(sharding, 0, axis.spmd_name) for sharding in call.out_shardings]
    return bind(_derived(call, jaxpr, ins, outs, call.names), *operands), [0] * len(outs)


_jax.batching.fancy_primitive_batchers[call_p] = _batch


@registered_cache(maxsize=256)
def _batched(jaxpr: _jax.ClosedJaxpr, dims: tuple[Any, ...], size: int, name: object, spmd_name: object) -> Any:
    """Return a jaxpr, batched by JAX's rules along these dims of its operands; results have the batch as dim 0."""
    types = [
        aval if dim is None else aval.update(shape=(*aval.shape[:dim], size, *aval.shape[dim:]))
        for aval, dim in zip(jaxpr.in_avals, dims, strict=True)
    ]
    mapped = _jax.jax.vmap(_jax.jaxpr_as_fun(jaxpr), dims, 0, axis_name=name, axis_size=size, spmd_axis_name=spmd_name)
    return _jax.jax.make_jaxpr(mapped)(*types)


def _with_dim(sharding: _jax.Sharding, dim: int, axes: object) -> Any:
    """Return a sharding with a new dim that is sharded along these axes; None if it is not sharded."""
    parts = list(sharding.spec) + [None] * dim
    return _jax.NamedSharding(sharding.mesh, _jax.PartitionSpec(*parts[:dim], axes, *parts[dim:]))


def _is_inexact(aval: _jax.ShapedArray) -> bool:
    return bool(_jax.jax.numpy.issubdtype(aval.dtype, _jax.jax.numpy.inexact))
