"""checkpoint (remat): rematerialize intermediate values in the backward pass, to save memory.

`checkpoint_policies` select the values that are saved nevertheless; `checkpoint_name` names values for these policies.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict, TypeVar, Unpack, final, overload

from shardwise import tree
from shardwise.api.arguments import check_function
from shardwise.api.static_args import select_arguments, split_static
from shardwise.api.transformations.traced_call import trace_call
from shardwise.api.wrapping import wraps
from shardwise.base.unspecified import UNSPECIFIED
from shardwise.compiler.arrays.operands import as_operand
from shardwise.compiler.control.remat import Remat
from shardwise.compiler.ir.op import Op
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.contract.dot import Dot
from shardwise.compiler.ops.contract.scaled_dot import ScaledDot
from shardwise.compiler.ops.elementwise.identities import CheckpointName
from shardwise.compiler.transforms.checkpoint_policy import Offloadable, Policy, current_policy
from shardwise.execute.traceback_filter import filter_traceback

Function = Callable[..., Any]
_F = TypeVar("_F", bound=Function)


class _CheckpointKeywords(TypedDict, total=False):
    """The keyword arguments of `checkpoint`, for type checkers."""

    prevent_cse: bool
    policy: Policy | None
    static_argnums: int | Sequence[int]
    static_argnames: str | Iterable[str]
    concrete: object


@overload
def checkpoint(fun: _F, **options: Unpack[_CheckpointKeywords]) -> _F: ...


@overload
def checkpoint(fun: None = None, **options: Unpack[_CheckpointKeywords]) -> Callable[[_F], _F]: ...


def checkpoint(
    fun: Function | None = None,
    *,
    prevent_cse: bool = True,
    policy: Policy | None = None,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Iterable[str] = (),
    concrete: object = UNSPECIFIED,
) -> Any:
    """Rematerialize a function's intermediate values in the backward pass, in place of saving them as residuals.

    Args:
        fun: the function. Without it, the result is a decorator.
        prevent_cse: whether to keep XLA's common-subexpression elimination from merging the rematerialized values with
            the original ones, which would save them after all.
        policy: a function that selects the values to save, such as those of `checkpoint_policies`; by default, none
            are saved.
        static_argnums: the positional arguments that are Python values and not differentiated.
        static_argnames: the names of such arguments.
        concrete: must not be passed: JAX has removed it in favor of `static_argnums`.

    Returns:
        A function that computes the same as `fun`.

    Raises:
        TypeError: if `fun` or `policy` is not callable, or if `static_argnums` or `static_argnames` have a wrong type.
        ValueError: if `fun` does not have the static arguments.
        NotImplementedError: if `concrete` is passed.

    Example:
        >>> loss = jax.checkpoint(lambda x: jnp.sin(jnp.sin(x)))
        >>> jax.grad(loss)(0.0)
        Array(1., dtype=float32, weak_type=True)
    """
    if concrete is not UNSPECIFIED:
        raise NotImplementedError(
            "checkpoint: `concrete` has been removed. Pass the arguments that Python code needs in `static_argnums`."
        )
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
        raise TypeError(
            f"checkpoint: policy must be a function, such as one of checkpoint_policies, or None, not {policy!r}"
        )
    static = select_arguments(fun, "static", None if static_argnums == () else static_argnums, static_argnames or None)
    function = fun

    @wraps(function)
    @filter_traceback
    def call(*args: object, **keywords: object) -> Any:
        arguments = split_static(function, static, args, keywords, cached=False)
        token = current_policy.set(policy or checkpoint_policies.nothing_saveable)
        try:
            traced = trace_call(function, arguments, policy)
        finally:
            current_policy.reset(token)
        return traced.apply(Remat(traced.program, policy, prevent_cse))

    return call


def checkpoint_name(x: object, name: str) -> Any:
    """Name values for checkpoint policies such as `save_only_these_names`.

    Args:
        x: a pytree of arrays and numbers.
        name: the name.

    Returns:
        A pytree equal to `x`.

    Raises:
        TypeError: if a leaf is neither an array nor a number.

    Example:
        >>> from shardwise.ad_checkpoint import checkpoint_name
        >>> def loss(x):
        ...     return jnp.sin(checkpoint_name(jnp.sin(x), "inner"))
        >>> jax.grad(jax.checkpoint(loss, policy=jax.checkpoint_policies.save_only_these_names("inner")))(0.0)
        Array(1., dtype=float32, weak_type=True)
    """
    return tree.map(lambda leaf: CheckpointName(name)(as_operand(leaf, "checkpoint_name")), x)


@final
@dataclass(frozen=True)
class SaveOnlyTheseNames:
    """The policy that saves the values with one of some names.

    Attributes:
        saveable_names: the names.

    Example:
        >>> jax.checkpoint_policies.save_only_these_names("hidden").saveable_names
        frozenset({'hidden'})
    """

    saveable_names: frozenset[str]

    def __call__(self, op: Op, *types: ArrayType) -> bool:
        return isinstance(op, CheckpointName) and op.label in self.saveable_names


@final
@dataclass(frozen=True)
class SaveAnyNamesButThese:
    """The policy that saves the values with any name, except some.

    Attributes:
        names: the names of the values that are not saved.

    Example:
        >>> jax.checkpoint_policies.save_any_names_but_these("hidden").names
        frozenset({'hidden'})
    """

    names: frozenset[str]

    def __call__(self, op: Op, *types: ArrayType) -> bool:
        return isinstance(op, CheckpointName) and op.label not in self.names


@final
@dataclass(frozen=True)
class SaveAndOffloadOnlyTheseNames:
    """The policy that saves the values with some names, and those with other names in another memory.

    Attributes:
        names_which_can_be_saved: the names of the values that are saved in place.
        names_which_can_be_offloaded: the names of the values that are saved in another memory.
        offload_src: the memory of the values, "device".
        offload_dst: the other memory, "pinned_host" or "unpinned_host".

    Raises:
        ValueError: if a memory is something else.

    Example:
        >>> names = frozenset({"hidden"})
        >>> policy = jax.checkpoint_policies.SaveAndOffloadOnlyTheseNames(names, frozenset(), "device", "pinned_host")
        >>> policy.names_which_can_be_saved
        frozenset({'hidden'})
    """

    names_which_can_be_saved: frozenset[str]
    names_which_can_be_offloaded: frozenset[str]
    offload_src: str
    offload_dst: str

    def __post_init__(self) -> None:
        _offload("save_and_offload_only_these_names", self.offload_src, self.offload_dst)

    def __call__(self, op: Op, *types: ArrayType) -> bool | Offloadable:
        label = op.label if isinstance(op, CheckpointName) else None
        if label in self.names_which_can_be_offloaded:
            return Offloadable(self.offload_src, self.offload_dst)
        return label in self.names_which_can_be_saved


class checkpoint_policies:
    """Policies for `checkpoint`: which values are saved as residuals, and not rematerialized.

    A policy is a function of an op and the types of its operands that returns whether the op's results are saved: a
    bool, `Saveable`, `Recompute`, or `Offloadable(src, dst)` of `ad_checkpoint`. The policies that offload save values
    in host memory until the backward pass, except those of the iterations of a `scan`, which are saved on the device.

    Example:
        >>> layer = jax.checkpoint(lambda w, x: jnp.sin(x @ w), policy=jax.checkpoint_policies.dots_saveable)
        >>> layer(jnp.eye(2), jnp.zeros(2))
        Array([0., 0.], dtype=float32)
    """

    SaveOnlyTheseNames = SaveOnlyTheseNames
    SaveAnyNamesButThese = SaveAnyNamesButThese
    SaveAndOffloadOnlyTheseNames = SaveAndOffloadOnlyTheseNames

    @staticmethod
    def everything_saveable(op: Op, *types: ArrayType) -> bool:
        """Save all values."""
        return True

    @staticmethod
    def nothing_saveable(op: Op, *types: ArrayType) -> bool:
        """Save nothing; the default."""
        return False

    @staticmethod
    def dots_saveable(op: Op, *types: ArrayType) -> bool:
        """Save the results of matrix products."""
        return isinstance(op, (Dot, ScaledDot))

    @staticmethod
    def dots_with_no_batch_dims_saveable(op: Op, *types: ArrayType) -> bool:
        """Save the results of matrix products without batch dims, such as products with weights."""
        return isinstance(op, (Dot, ScaledDot)) and not op.batch[0]

    checkpoint_dots = dots_saveable
    checkpoint_dots_with_no_batch_dims = dots_with_no_batch_dims_saveable

    @staticmethod
    def save_only_these_names(*names: str) -> Policy:
        """Save the values with one of these names."""
        return SaveOnlyTheseNames(frozenset(names))

    @staticmethod
    def save_any_names_but_these(*names: str) -> Policy:
        """Save the values with a name, except these."""
        return SaveAnyNamesButThese(frozenset(names))

    @staticmethod
    def save_anything_except_these_names(*names: str) -> Policy:
        """Save all values, except those with one of these names."""
        return lambda op, *types: not (isinstance(op, CheckpointName) and op.label in names)

    @staticmethod
    def offload_dot_with_no_batch_dims(offload_src: str, offload_dst: str) -> Policy:
        """Save the results of matrix products without batch dims in another memory, such as `pinned_host`."""
        offload = _offload("offload_dot_with_no_batch_dims", offload_src, offload_dst)
        return lambda op, *types: checkpoint_policies.dots_with_no_batch_dims_saveable(op, *types) and offload

    @staticmethod
    def save_and_offload_only_these_names(
        *,
        names_which_can_be_saved: Sequence[str],
        names_which_can_be_offloaded: Sequence[str],
        offload_src: str,
        offload_dst: str,
    ) -> Policy:
        """Save the values with some names, and those with other names in another memory, such as `pinned_host`."""
        if both := sorted({*names_which_can_be_saved} & {*names_which_can_be_offloaded}):
            raise ValueError(f"save_and_offload_only_these_names: {both} can be saved or offloaded, but not both")
        return SaveAndOffloadOnlyTheseNames(
            frozenset(names_which_can_be_saved), frozenset(names_which_can_be_offloaded), offload_src, offload_dst
        )

    @staticmethod
    def save_from_both_policies(first: Policy, second: Policy) -> Policy:
        """Save the values that either policy saves."""
        return lambda op, *types: first(op, *types) or second(op, *types)


def _offload(name: str, source: str, destination: str) -> Offloadable:
    if source != "device" or destination not in ("pinned_host", "unpinned_host"):
        raise ValueError(
            f"{name}: offload_src must be 'device' and offload_dst 'pinned_host' or 'unpinned_host', not {source!r} "
            f"and {destination!r}"
        )
    return Offloadable(source, destination)
