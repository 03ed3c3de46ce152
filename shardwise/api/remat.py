"""checkpoint (remat): a function whose values are computed again for its derivative rather than kept.

`checkpoint_policies` says what may be kept all the same; `checkpoint_name` gives values names for them.
"""

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from shardwise import tree
from shardwise.api.arguments import array_leaves, check_function, function_name
from shardwise.api.flatten import FlatFunction, is_traced
from shardwise.api.static_args import select, split
from shardwise.compiler.arrays.operands import as_operand
from shardwise.compiler.ops.contract.dot import Dot
from shardwise.compiler.ops.control.remat import CheckpointName, Policy, Remat
from shardwise.compiler.trace.build import build
from shardwise.execute.traceback_filter import filter_traceback

Function = Callable[..., Any]


def checkpoint(
    fun: Function | None = None,
    *,
    prevent_cse: bool = True,
    policy: Policy | None = None,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] | None = None,
) -> Any:
    """`fun`, whose intermediate values are not kept for the derivative but computed again, save what `policy` allows.

    `prevent_cse` keeps XLA from finding the first computation again and keeping its values after all.

    >>> loss = jax.checkpoint(lambda x: jnp.sin(jnp.sin(x)))
    >>> jax.grad(loss)(0.0)
    Array(1., dtype=float32)
    """
    if fun is None:
        return lambda f: checkpoint(
            f,
            prevent_cse=prevent_cse,
            policy=policy,
            static_argnums=static_argnums,
            static_argnames=static_argnames,
        )
    check_function("checkpoint", fun)
    if policy is not None and not callable(policy):
        raise TypeError(f"checkpoint: policy is one of checkpoint_policies, or None, not {policy!r}")
    static = select(fun, "static", static_argnums, static_argnames)
    function = fun

    @wraps(function)
    @filter_traceback
    def call(*args: Any, **keywords: Any) -> Any:
        found = split(function, static, args, keywords)
        bound = found.bind(function)
        leaves, structure = array_leaves(bound, found.args, found.keywords)
        if not is_traced(leaves):
            return function(*args, **keywords)
        flat = FlatFunction(bound, structure)
        operands = [as_operand(x) for x in leaves]
        program, captured = build(flat, [x.type for x in operands], function_name(function))
        return flat.out_tree.unflatten(list(Remat(program, policy, prevent_cse)(*operands, *captured)))

    return call


def checkpoint_name(x: Any, name: str) -> Any:
    """The arrays of a tree, under a name that policies such as `save_only_these_names` can ask for.

    >>> from shardwise.ad_checkpoint import checkpoint_name
    >>> def loss(x):
    ...     return jnp.sin(checkpoint_name(jnp.sin(x), "inner"))
    >>> jax.grad(jax.checkpoint(loss, policy=jax.checkpoint_policies.save_only_these_names("inner")))(0.0)
    Array(1., dtype=float32)
    """
    return tree.map(lambda leaf: CheckpointName(name)(as_operand(leaf, "checkpoint_name")), x)


class checkpoint_policies:
    """What `checkpoint` may keep. A policy takes an op and the types of its operands, and says yes or no.

    >>> layer = jax.checkpoint(lambda w, x: jnp.sin(x @ w), policy=jax.checkpoint_policies.dots_saveable)
    >>> layer(jnp.eye(2), jnp.zeros(2))
    Array([0., 0.], dtype=float32)
    """

    @staticmethod
    def everything_saveable(op: Any, *types: Any) -> bool:
        """Keep everything."""
        return True

    @staticmethod
    def nothing_saveable(op: Any, *types: Any) -> bool:
        """Keep nothing: the default."""
        return False

    @staticmethod
    def dots_saveable(op: Any, *types: Any) -> bool:
        """Keep the results of matrix products."""
        return isinstance(op, Dot)

    @staticmethod
    def dots_with_no_batch_dims_saveable(op: Any, *types: Any) -> bool:
        """Keep the results of matrix products without batch dims: those with weights."""
        return isinstance(op, Dot) and not op.batch[0]

    checkpoint_dots = dots_saveable
    checkpoint_dots_with_no_batch_dims = dots_with_no_batch_dims_saveable

    @staticmethod
    def save_only_these_names(*names: str) -> Policy:
        """Keep the values that have one of these names."""
        return _Named(names, keep=True)

    @staticmethod
    def save_any_names_but_these(*names: str) -> Policy:
        """Keep the values that have a name, and not one of these."""
        return _Named(names, keep=False)

    @staticmethod
    def save_anything_except_these_names(*names: str) -> Policy:
        """Keep everything but the values that have one of these names."""
        return lambda op, *types: not (isinstance(op, CheckpointName) and op.label in names)

    @staticmethod
    def save_from_both_policies(first: Policy, second: Policy) -> Policy:
        """Keep what either policy keeps."""
        return lambda op, *types: first(op, *types) or second(op, *types)


class _Named:
    """Keeps named values, by their names."""

    def __init__(self, names: tuple[str, ...], keep: bool):
        self.names = frozenset(names)
        self.keep = keep

    def __call__(self, op: Any, *types: Any) -> bool:
        return isinstance(op, CheckpointName) and (op.label in self.names) == self.keep
