"""VJP: the function that `vjp` returns, a pytree of its residuals, and the markers for `VJP.with_refs`.

A residual that is an argument of the differentiated function is stored in `args_res`, in the place of the argument. The
user can drop it there, and restore it before the call: an argument that other code keeps anyway is not kept twice.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, final

from shardwise import tree
from shardwise.api.ref import Ref
from shardwise.base.tree_nodes import register_pytree_node, register_static
from shardwise.compiler.arrays.operands import as_operand
from shardwise.tree_util import Partial


@final
@dataclass(frozen=True)
class GradValue:
    """Marks an argument whose gradient is returned, for the vjp function's method `with_refs`.

    Example:
        >>> _, vjp_fun = jax.vjp(lambda x, y: x * y, 2.0, 5.0)
        >>> print(vjp_fun.with_refs(jax.ad.GradValue(), jax.ad.DontWant())(1.0)[0])
        5.0
    """


@final
@dataclass(frozen=True)
class DontWant:
    """Marks an argument whose gradient is not wanted, for the vjp function's method `with_refs`.

    Example:
        >>> _, vjp_fun = jax.vjp(lambda x, y: x * y, 2.0, 5.0)
        >>> vjp_fun.with_refs(jax.ad.GradValue(), jax.ad.DontWant())(1.0)[1]
        DidntWant()
    """


@final
@register_static
@dataclass(frozen=True)
class GradRef:
    """Stands for a gradient that was added to a Ref.

    Example:
        >>> _, vjp_fun = jax.vjp(jnp.sin, 0.0)
        >>> gradient = jax.new_ref(jnp.array(1.0))
        >>> vjp_fun.with_refs(gradient)(1.0)
        (GradRef(),)
        >>> print(gradient[...])
        2.0
    """


@final
@register_static
@dataclass(frozen=True)
class DidntWant:
    """Stands for a gradient that was not wanted.

    Example:
        >>> _, vjp_fun = jax.vjp(jnp.sin, 0.0)
        >>> vjp_fun.with_refs(jax.ad.DontWant())(1.0)
        (DidntWant(),)
    """


@final
@register_static
@dataclass(frozen=True)
class NotNeeded:
    """Stands for an argument that is not a residual, in `VJP.args_res`."""


class Pullback(Protocol):
    """The transposed function of one linearized function. It is static: it can be compared, and has a hash."""

    @property
    def label(self) -> str:
        """The differentiated function, for messages."""

    @property
    def primals(self) -> tree.Structure:
        """The structure of the arguments."""

    @property
    def refs(self) -> tuple[int, ...]:
        """The leaves of the arguments that are Refs."""

    def cotangents(self, residuals: Sequence[Any], cotangent: object) -> list[Any]:
        """Return the cotangent of each leaf of the arguments; None for zeros."""

    def dense(self, index: int, cotangent: Any) -> Any:
        """Return the cotangent of one leaf as users see it, with zeros for None."""


@final
class VJP:
    """The function from a cotangent of the value to a tuple of cotangents of the arguments.

    Attributes:
        args_res: the arguments that are residuals, as nested tuples with the leaves of the arguments, in which the
            other leaves are `NotNeeded()`. It can be set, to pytrees with the leaves of the arguments.
        opaque_residuals: the residuals that are not arguments.
    """

    def __init__(
        self, pullback: Pullback, origins: tuple[int | None, ...], args_res: list[Any], opaque_residuals: list[Any]
    ):
        self._pullback = pullback
        self._origins = origins  # for each residual, the leaf of the arguments that it is; None if it is none
        self.args_res = args_res
        self.opaque_residuals = opaque_residuals

    @staticmethod
    def from_residuals(pullback: Pullback, residuals: Sequence[Any], leaves: Sequence[Any]) -> "VJP":
        """Return the function with these residuals, some of which are leaves of the arguments."""
        index_of = {id(leaf): index for index, leaf in enumerate(leaves)}
        origins = tuple(index_of.get(id(residual)) for residual in residuals)
        saved = [leaf if index in origins else NotNeeded() for index, leaf in enumerate(leaves)]
        args_res = pullback.primals.walk(lambda children, _: tuple(children), lambda leaf: leaf, saved)
        opaque = [residual for residual, origin in zip(residuals, origins, strict=True) if origin is None]
        return VJP(pullback, origins, list(args_res), opaque)

    def __call__(self, cotangent: object) -> tuple[Any, ...]:
        """Return the cotangents of the arguments."""
        if self._pullback.refs:
            raise self._returned_ref_error()
        cotangents = self._pullback.cotangents(self._residuals(), cotangent)
        dense = [self._pullback.dense(index, ct) for index, ct in enumerate(cotangents)]
        return self._pullback.primals.unflatten(dense)

    def with_refs(self, *gradients: object) -> Partial:
        """Return a function that adds the cotangents of some arguments to Refs.

        Args:
            *gradients: pytrees like the arguments. A Ref is added to; for `ad.DontWant()` nothing is returned; for
                anything else, such as `ad.GradValue()`, the cotangent is returned.

        Returns:
            A function like this one, whose result has `ad.GradRef()` and `ad.DidntWant()` in the places of these
            arguments.

        Raises:
            ValueError: if `gradients` has another structure than the arguments, or if the gradient of a Ref would be
                returned.
        """
        leaves, structure = tree.flatten(gradients)
        if structure != self._pullback.primals:
            raise ValueError(
                f"with_refs of {self._pullback.label}: the arguments have structure {structure}, expected that of the "
                f"differentiated arguments, {self._pullback.primals}"
            )
        kinds = tuple(
            Ref if isinstance(leaf, Ref) else DontWant if isinstance(leaf, DontWant) else GradValue for leaf in leaves
        )
        if any(kinds[index] is GradValue for index in self._pullback.refs):
            raise self._returned_ref_error()
        return Partial(
            _Accumulation(self._pullback, kinds), self._residuals(), [x for x in leaves if isinstance(x, Ref)]
        )

    def _returned_ref_error(self) -> ValueError:
        return ValueError(
            f"vjp of {self._pullback.label}: an argument is a Ref, so its gradient is added to a Ref, not returned. "
            "Pass one in its place, `vjp_fun.with_refs(ref)(cotangent)`, or `ad.DontWant()` to leave it out."
        )

    def _residuals(self) -> list[Any]:
        leaves = tree.leaves(self.args_res, is_leaf=lambda x: isinstance(x, NotNeeded))
        if self._uses_arguments and len(leaves) != self._pullback.primals.num_leaves:
            raise ValueError(
                f"vjp of {self._pullback.label}: args_res has {len(leaves)} leaves, but the arguments have "
                f"{self._pullback.primals.num_leaves}: set it to the arguments before the call"
            )
        opaque = iter(self.opaque_residuals)
        return [next(opaque) if origin is None else as_operand(leaves[origin], "vjp") for origin in self._origins]

    @property
    def _uses_arguments(self) -> bool:
        return any(origin is not None for origin in self._origins)


register_pytree_node(
    VJP,
    lambda vjp: ((vjp.args_res, vjp.opaque_residuals), (vjp._pullback, vjp._origins)),
    lambda static, children: VJP(*static, *children),
)


@final
@dataclass(frozen=True)
class _Accumulation:
    """The function from residuals, Refs and a cotangent of the value to cotangents; `kinds` has one class per leaf."""

    pullback: Pullback
    kinds: tuple[type, ...]

    def __call__(self, residuals: Sequence[Any], refs: Sequence[Ref], cotangent: object) -> tuple[Any, ...]:
        remaining = iter(refs)
        results: list[Any] = []
        for index, (kind, ct) in enumerate(
            zip(self.kinds, self.pullback.cotangents(residuals, cotangent), strict=True)
        ):
            if kind is DontWant:
                results.append(DidntWant())
            elif kind is GradValue:
                results.append(self.pullback.dense(index, ct))
            else:
                ref = next(remaining)
                if ct is not None:
                    ref.addupdate(..., ct)
                results.append(GradRef())
        return self.pullback.primals.unflatten(results)
