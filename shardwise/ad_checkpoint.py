"""Names of `checkpoint` under the module name of JAX, and the residuals that a derivative saves."""

from collections.abc import Callable
from typing import Any

from shardwise import tree
from shardwise.api.ahead_of_time.inspect import make_jaxpr
from shardwise.api.arguments import argument_names, check_function
from shardwise.api.jaxprs.jaxpr import JaxprEqn, Literal
from shardwise.api.transformations.differentiate import vjp
from shardwise.api.transformations.remat import checkpoint, checkpoint_name, checkpoint_policies
from shardwise.base.lazy import set_public_names
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.elementwise.identities import CheckpointName
from shardwise.compiler.transforms.checkpoint_policy import Offloadable, Recompute, Saveable

__all__ = [
    "Offloadable",
    "Recompute",
    "Saveable",
    "checkpoint",
    "checkpoint_name",
    "checkpoint_name_fwd",
    "checkpoint_policies",
    "print_saved_residuals",
]

checkpoint_name_fwd = checkpoint_name  # derivatives of named values have no names


def print_saved_residuals(f: Callable[..., Any], *args: object, **kwargs: object) -> None:
    """Print the residuals that the derivative of a function saves: their types, and where they come from.

    Args:
        f: the function.
        *args: its arguments, pytrees of arrays or `ShapeDtypeStruct`s.
        **kwargs: arguments by keyword.

    Raises:
        TypeError: if `f` is not callable, or if an argument is not a pytree of arrays.

    Example:
        >>> jax.ad_checkpoint.print_saved_residuals(lambda x, y: x * y, 1.0, 2.0)
        f32[] from the argument x
        f32[] from the argument y
    """
    check_function("print_saved_residuals", f)
    for type, origin in _saved_residuals(f, args, kwargs):
        print(f"{type.str_short(short_dtypes=True)} {origin}")


def _saved_residuals(
    f: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[tuple[ArrayType, str]]:
    """Return the type and the origin of each residual: literals, constants, arguments, results of equations."""
    leaves, structure = tree.flatten((args, kwargs))

    def with_residuals(*leaves: object) -> Any:
        def of_leaves(*leaves: object) -> Any:
            inner_args, inner_kwargs = structure.unflatten(list(leaves))
            return f(*inner_args, **inner_kwargs)

        value, pullback = vjp(of_leaves, *leaves)
        return tree.leaves(value), tree.leaves(pullback)

    closed, (values, _) = make_jaxpr(with_residuals, return_shape=True)(*leaves)
    jaxpr = closed.jaxpr
    residuals = jaxpr.outvars[len(values) :]
    origins = [(atom.aval, "from a literal") for atom in residuals if isinstance(atom, Literal)]
    saved = {atom for atom in residuals if not isinstance(atom, Literal)}
    origins += [(var.aval, "from a constant") for var in jaxpr.constvars if var in saved]
    names = argument_names(f, args, kwargs)
    arguments = zip(jaxpr.invars, names, strict=True)
    origins += [(var.aval, f"from the argument {name.strip('`')}") for var, name in arguments if var in saved]
    for eqn in jaxpr.eqns:
        origins += [(var.aval, _origin(eqn, index)) for index, var in enumerate(eqn.outvars) if var in saved]
    return origins


def _origin(eqn: JaxprEqn, index: int) -> str:
    """Describe the equation that computes result `index` of an equation: in a checkpointed function, an inner one."""
    if eqn.primitive.name == "checkpoint":
        inner = eqn.params["jaxpr"]
        for inner_eqn in inner.eqns:
            if inner.outvars[index] in inner_eqn.outvars:
                return _origin(inner_eqn, inner_eqn.outvars.index(inner.outvars[index]))
    is_named = eqn.primitive.name == CheckpointName.name
    label = f"named '{eqn.params['label']}'" if is_named else f"output of {eqn.primitive.name}"
    return f"{label} from {eqn.source_info}"


set_public_names(__name__, __all__)
