"""Read calls of `jax.experimental.custom_partitioning` as calls of Shardwise's.

    JAX's sharding rule  -->  the planner's rule
    JAX's `partition`    -->  a function of shards of Shardwise: its jaxpr is read, so that its collectives are planned

Under Shardy, JAX propagates shardings by the rule and calls `partition` for the result, and so does the planner here.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, final

from shardwise.base.call_site import warn_user
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.shardings.mesh import AbstractMesh, Mesh
from shardwise.compiler.shardings.named_sharding import NamedSharding
from shardwise.compiler.trace.provenance import provenance
from shardwise.errors import UnsupportedError
from shardwise.experimental.custom_partitioning import custom_partitioning
from shardwise.experimental.sharding_rule import SdyShardingRule, parse_rule
from shardwise.inside_jax import _jax, translate
from shardwise.inside_jax.opaque import Equation, JaxEquation, is_opaque
from shardwise.inside_jax.sharding_rules import sdy_rule

Read = Callable[[Any], Callable[..., list[Any]]]  # from a closed jaxpr to the function that it computes


def apply_custom_partitioning(
    eqn: _jax.JaxprEqn, operands: Sequence[Array], mesh: _jax.Mesh, function: Callable[..., list[Any]], read: Read
) -> Sequence[Any]:
    """Apply a call of `custom_partitioning`.

    Without a sharding rule and a `partition`, the planner partitions the function itself, with a warning.

    Args:
        eqn: the equation of the call.
        operands: the operands.
        mesh: JAX's mesh that the program is planned for; None if there is none.
        function: the function that is called, for arrays of Shardwise.
        read: reads the jaxpr of a function of shards.
    """
    rule = _rule(eqn, mesh)
    if rule is None or eqn.params["partition"] is None or not is_opaque(eqn):
        if mesh is not None and mesh.size > 1:
            warn_user(
                f"custom_partitioning of {_Function(eqn).__name__!r} at {provenance.source} has no sharding rule that "
                "Shardwise can read, so that its callbacks are not called: the planner partitions the function itself. "
                "Pass `sharding_rule` and `partition` to `def_partition`."
            )
        return function(*operands)
    partitioned = custom_partitioning(_Function(eqn))
    partitioned.def_partition(_Partition(eqn, mesh, read), sharding_rule=rule)
    return list(partitioned(*operands))


def _rule(eqn: _jax.JaxprEqn, mesh: _jax.Mesh) -> SdyShardingRule | None:
    """Return the sharding rule of a call; None if there is none."""
    options: dict[str, Any] = {}
    rule = eqn.params["sharding_rule"]
    if callable(rule):
        call = eqn.params["call"]
        types = (_jax.tensor_types(call.in_avals), _jax.tensor_types(call.out_avals))
        rule = rule(*eqn.params["static_args"], mesh, *types)
        rule, options = rule if isinstance(rule, (tuple, list)) and len(rule) == 2 else (rule, {})
    if rule is None:
        return None
    return parse_rule(rule, **options) if isinstance(rule, str) else sdy_rule(rule)


@final
class _Function:
    """The function of a call as one op, whose inner ops the planner does not see."""

    def __init__(self, eqn: _jax.JaxprEqn):
        call = eqn.params["call"]
        self.__name__ = call.jaxpr.debug_info.func_name
        equation = Equation(eqn.primitive.name, _jax.jaxpr_as_fun(call), call.in_avals, bool(eqn.effects))
        self._op = JaxEquation(equation, tuple(map(translate.array_type, call.out_avals)))

    def __call__(self, *operands: Array) -> list[Any]:
        return list(self._op(*operands))


@final
class _Partition:
    """JAX's `partition` callback as one of Shardwise."""

    def __init__(self, eqn: _jax.JaxprEqn, mesh: _jax.Mesh, read: Read):
        self._params = eqn.params
        self._mesh = mesh
        self._read = read

    def __call__(self, mesh: Mesh | AbstractMesh, arg_shapes: Sequence[Any], result_shapes: Sequence[Any]) -> Any:
        of_jax = self._mesh_like(mesh)
        params = self._params

        def structs(shapes: Sequence[Any]) -> Iterator[Any]:
            for x in shapes:
                sharding = translate.jax_sharding(x.sharding, of_jax)
                yield _jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)

        in_tree, out_tree = params["in_tree"], params["out_tree"]
        args, results = in_tree.unflatten(structs(arg_shapes)), out_tree.unflatten(structs(result_shapes))
        user_mesh, lower_fn, result_shardings, arg_shardings = params["partition"](
            *params["static_args"], of_jax, args, results
        )

        def lower_shards(*shards: Array) -> list[Any]:
            avals = [_jax.ShapedArray(x.type.shape, x.type.dtype) for x in shards]
            trace = _jax.jax.make_jaxpr(lower_fn, axis_env=list(user_mesh.shape.items()))
            return self._read(trace(*in_tree.unflatten(avals)))(*shards)

        return (
            mesh,
            lower_shards,
            [_named(each) for each in out_tree.flatten_up_to(result_shardings)],
            tuple(_named(each) for each in in_tree.flatten_up_to(arg_shardings)),
        )

    def _mesh_like(self, mesh: Mesh | AbstractMesh) -> Any:
        """Return a mesh as JAX's: the user's, if it has the same axes."""
        if self._mesh is not None and translate.mesh(self._mesh) == mesh.abstract:
            return self._mesh
        return _jax.AbstractMesh(mesh.axis_sizes, mesh.axis_names)


def _named(sharding: _jax.Sharding) -> NamedSharding:
    if not isinstance(sharding, _jax.NamedSharding):
        raise UnsupportedError(
            f"custom_partitioning at {provenance.source}: `partition` returned {sharding}; return NamedShardings"
        )
    return translate.named_sharding(sharding)
