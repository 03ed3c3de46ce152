"""Exported: a function lowered to StableHLO, which can be serialized, and called here or by JAX."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import numpy as np

from shardwise import tree
from shardwise.api.arguments import leaf_types
from shardwise.api.transformations.custom import custom_vjp
from shardwise.api.transformations.float0 import float0, is_float0
from shardwise.base.symbolic_dim import is_symbolic_dim, solve_dims
from shardwise.compiler.arrays.operands import as_operand
from shardwise.compiler.dtypes import is_key, key_impl
from shardwise.compiler.ops.shape.constants import full
from shardwise.compiler.shardings.mesh import AbstractMesh, Mesh
from shardwise.compiler.shardings.named_sharding import NamedSharding
from shardwise.errors import ShardingError
from shardwise.export.abstract_array import AbstractArray, abstract_array
from shardwise.export.exported_data import ExportedData
from shardwise.export.file_format import read_exported, write_exported
from shardwise.export.module_function import ModuleFunction, mesh_of_call, parse_exported
from shardwise.random import key_data, wrap_key_data


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class Exported(ExportedData):
    """A function lowered to StableHLO. `export` and `deserialize` return it.

    A call plans the function for the devices of the arguments, unless it was exported with `partitioned=True`.

    Attributes:
        fun_name: the name of the function.
        in_tree: the pytree structure of `(args, kwargs)`.
        in_avals: the types of the arguments' leaves.
        out_tree: the pytree structure of the result.
        out_avals: the types of the results' leaves.
        _in_named_shardings: the sharding of each argument, without devices, or None.
        _out_named_shardings: the sharding of each result, without devices, or None.
        nr_devices: the number of devices that the shardings refer to; 1 if there are none.
        platforms: the platforms that the function was lowered for.
        ordered_effects: the names of its ordered effects; only files of JAX have some.
        unordered_effects: the names of its other effects.
        disabled_safety_checks: the checks that are skipped.
        mlir_module_serialized: the StableHLO module as a portable artifact.
        calling_convention_version: the version of the calling convention of the module's `main`.
        module_kept_var_idx: the positions of the arguments that `main` takes.
        uses_global_constants: whether the module has symbolic dims, or an argument for the platform.
        _get_vjp: a function that exports the VJP; None if there is none.

    Example:
        >>> exported = jax.export.export(jax.jit(lambda x: x + 1))(jnp.arange(3))
        >>> exported.call(jnp.arange(3))
        Array([1, 2, 3], dtype=int32)
    """

    _get_vjp: Callable[["Exported"], "Exported"] | None

    def mlir_module(self, serialized: bool = True) -> Any:
        """Return the module as text; with `serialized=False`, as an MLIR module."""
        module = parse_exported(self)
        return str(module) if serialized else module

    def in_shardings_jax(self, mesh: Mesh | AbstractMesh) -> tuple[NamedSharding | None, ...]:
        """Return the sharding of each argument on a mesh; None where none is stated.

        Raises:
            ShardingError: if the axes of the mesh differ from those of the shardings.
        """
        return tuple(self._on_mesh(sharding, mesh) for sharding in self._in_named_shardings)

    def out_shardings_jax(self, mesh: Mesh | AbstractMesh) -> tuple[NamedSharding | None, ...]:
        """Return the sharding of each result on a mesh; None where none is stated.

        Raises:
            ShardingError: if the axes of the mesh differ from those of the shardings.
        """
        return tuple(self._on_mesh(sharding, mesh) for sharding in self._out_named_shardings)

    def _on_mesh(self, sharding: NamedSharding | None, mesh: Mesh | AbstractMesh) -> NamedSharding | None:
        if sharding is None:
            return None
        stated = sharding.mesh.abstract
        if stated.shape_tuple != mesh.abstract.shape_tuple:
            raise ShardingError(f"`{self.fun_name}` was exported for the mesh {stated}, which differs from {mesh}")
        return NamedSharding(mesh, sharding.spec, memory_kind=sharding.nondefault_memory)

    def has_vjp(self) -> bool:
        """Return whether the function can be differentiated."""
        return self._get_vjp is not None

    def vjp(self) -> "Exported":
        """Return the VJP: a function of the leaves of the arguments and of the results' cotangents.

        Raises:
            ValueError: if the file that the function was loaded from does not have it.
        """
        if self._get_vjp is None:
            raise ValueError(
                f"`{self.fun_name}` was serialized without its VJP, so it cannot be differentiated. Serialize it with "
                "`serialize(vjp_order=1)`, or a larger order for higher derivatives."
            )
        return self._vjp

    @cached_property
    def _vjp(self) -> "Exported":
        assert self._get_vjp is not None
        return self._get_vjp(self)

    def serialize(self, vjp_order: int = 0) -> bytearray:
        """Return the function as bytes, which `deserialize` and JAX's `jax.export.deserialize` load.

        Args:
            vjp_order: how often the loaded function can be differentiated.

        Raises:
            TypeError: if the arguments or results have a dict with keys that are not strings.
            ValueError: if they have pytree nodes that are not registered, or if there is no VJP of this order.
        """
        functions: list[Exported] = [self]
        for _ in range(vjp_order):
            functions.append(functions[-1].vjp())
        return bytearray(write_exported(functions))

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function; inside traced functions, too.

        Args:
            *args: the arguments, of the same pytree structure and types as when the function was exported.
            **kwargs: the keyword arguments.

        Returns:
            The result.

        Raises:
            ValueError: if the structure or a type differs, or if the function was not exported for the platform.
            UnsupportedError: if the module has an op that cannot be read; the message names it and its line.
        """
        leaves, structure = tree.flatten((args, kwargs))
        if structure != self.in_tree:
            raise ValueError(
                f"`{self.fun_name}` was exported for arguments of structure {self.in_tree}, but is called with "
                f"{structure}"
            )
        self._check_arguments(leaves)
        return self.out_tree.unflatten(self._differentiable(mesh_of_call(self, leaves))(*leaves))

    def _check_arguments(self, leaves: Sequence[Any]) -> None:
        actual = [_argument_type(leaf) for leaf in leaves]
        for name, type, expected in zip(argument_names(self), actual, self.in_avals, strict=True):
            sizes = zip(type.shape, expected.shape, strict=False)
            same_sizes = all(is_symbolic_dim(b) or a == b for a, b in sizes) and type.ndim == expected.ndim
            if type.dtype != expected.dtype or not same_sizes:
                raise ValueError(
                    f"`{self.fun_name}` was exported for {expected} as argument {name}, but is called with {type}"
                )
        solve_dims(self.fun_name, [type.shape for type in self.in_avals], [np.shape(leaf) for leaf in leaves])

    def _differentiable(self, mesh: Mesh | AbstractMesh | None) -> Any:
        """Return the function of the leaves of the arguments, for a mesh. Its derivative is the exported VJP."""
        if mesh not in self._functions:
            self._functions[mesh] = self._with_vjp(ModuleFunction(self, mesh))
        return self._functions[mesh]

    @cached_property
    def _functions(self) -> dict[Mesh | AbstractMesh | None, Any]:
        return {}

    def _with_vjp(self, module: ModuleFunction) -> Any:
        def apply(leaves: Sequence[Any]) -> list[Any]:
            results = module([_to_words(leaves[index]) for index in self.module_kept_var_idx])
            return [_from_words(x, type) for x, type in zip(results, self.out_avals, strict=True)]

        def function(*leaves: Any) -> list[Any]:
            return apply(leaves)

        def forward(*leaves: Any) -> tuple[list[Any], tuple[Any, ...]]:
            return apply(leaves), leaves

        def backward(leaves: tuple[Any, ...], cotangents: list[Any]) -> tuple[Any, ...]:
            vjp = self.vjp()
            arrays = [
                np.zeros(x.shape, float0) if type.dtype == float0 else x
                for type, x in zip(vjp.in_avals[len(leaves) :], cotangents, strict=True)
            ]
            return tuple(vjp.call(*leaves, *arrays))

        function.__name__ = self.fun_name
        differentiable = custom_vjp(function)
        differentiable.defvjp(forward, backward)
        return differentiable

    def __str__(self) -> str:
        return f"Exported(fun_name={self.fun_name}, ...)"


def argument_names(exported: ExportedData) -> list[str]:
    """Return the name of each leaf of the arguments, such as `args[0]['w']`."""
    args, keywords = exported.in_tree.unflatten(range(len(exported.in_avals)))
    return [*tree.leaf_names(args, "args"), *tree.leaf_names(keywords, "kwargs")]


def _argument_type(leaf: Any) -> AbstractArray:
    return AbstractArray(leaf.shape, float0) if is_float0(leaf) else abstract_array(leaf_types([leaf])[0])


def _to_words(x: Any) -> Any:
    """Return an argument of the module: keys as words, and float0 arrays as booleans."""
    if is_float0(x):
        return full(x.shape, False, np.dtype(bool))
    return key_data(x) if is_key(as_operand(x).type.dtype) else x


def _from_words(x: Any, type: AbstractArray) -> Any:
    """Return a result of a type, from a result of the module."""
    if type.dtype == float0:
        return np.zeros(x.shape, float0)
    return wrap_key_data(x, impl=key_impl(type.dtype)) if is_key(type.dtype) else x


def deserialize(blob: bytes | bytearray) -> Exported:
    """Load a function that `Exported.serialize` of Shardwise or JAX has written.

    Nothing is unpickled. A call compiles the module with XLA: load only files that you trust.

    Args:
        blob: the bytes.

    Returns:
        The function. It can be differentiated as often as its `vjp_order` says.

    Raises:
        ProgramError: if the file is damaged, or no such file.
        UnsupportedError: if it was written by a version of JAX before 0.10.
        ValueError: if it has pytree nodes that are not registered.

    Example:
        >>> exported = jax.export.export(jax.jit(lambda x: x + 1))(jnp.arange(3))
        >>> jax.export.deserialize(exported.serialize()).call(jnp.arange(3))
        Array([1, 2, 3], dtype=int32)
    """
    result: Exported | None = None
    for data in reversed(read_exported(bytes(blob))):
        result = Exported(**vars(data), _get_vjp=_constant_vjp(result))
    assert result is not None
    return result


def _constant_vjp(vjp: Exported | None) -> Callable[[Exported], Exported] | None:
    return None if vjp is None else lambda _: vjp
