"""A module as a target of the command line: its training step on a mesh, planned without its weights."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, final

import torch

import shardwise.numpy as jnp
from shardwise import strategies, tree_util
from shardwise.api.ahead_of_time.shape_dtype_struct import ShapeDtypeStruct
from shardwise.api.transformations.differentiate import value_and_grad
from shardwise.compiler.arrays.methods import Array
from shardwise.errors import StrategyError, TorchModuleError
from shardwise.sharding import AbstractMesh, NamedSharding
from shardwise.sharding import PartitionSpec as P
from shardwise.torch.functional import functional
from shardwise.torch.module_state import to_values
from shardwise.torch.parallel_plan import plan_rules

State = Mapping[str, Array]
Inputs = tuple[Array, ...] | Mapping[str, Array]  # positional or keyword arguments of a module

_BATCH, _MODEL = "data", "model"
_RATE = 1e-3


def module_step(
    target: torch.nn.Module | Callable[[], torch.nn.Module], inputs: Callable[..., Inputs] | Inputs
) -> tuple[Callable[..., Any], Callable[..., tuple[Any, ...]]]:
    """Return a step of gradient descent of a module, and a function that returns its arguments for a mesh.

    The module is made on the `meta` device, in evaluation mode. The loss is the output named `loss`, or the mean of all
    floating-point outputs. On a mesh, the rows of the inputs and the parameters are sharded along its axis `data`
    (FSDP), and the parameters also along `model`: by the tensor-parallel plan of a model of transformers, else along
    their largest dim.

    Args:
        target: a module, or a class or a function without parameters that makes one.
        inputs: a function that returns example inputs, or these: a tuple of tensors or arrays, or a dict of those that
            are passed by keyword. Numbers, strings and flags are part of the program.

    Raises:
        TorchModuleError: if the module cannot be made, or is not a module; by the second function, if the inputs are
            neither a tuple nor a dict, or the mesh has other axes than `data` and `model`.
    """
    name, module = _module_of(target)
    function, types, buffer_types = functional(module.to("meta").eval())

    def loss(params: State, buffers: State, inputs: Inputs) -> Array:
        inputs = tree_util.tree_map(
            lambda leaf: leaf.value if isinstance(leaf, _Option) else leaf, inputs, is_leaf=_is_option
        )
        positional, keywords = ((), inputs) if isinstance(inputs, Mapping) else (inputs, {})
        outputs, _ = function(params, buffers, *positional, **keywords)
        if getattr(outputs, "loss", None) is not None:
            return outputs.loss
        arrays = [x for x in tree_util.tree_leaves(outputs) if isinstance(x, Array)]
        floats = [x for x in arrays if jnp.issubdtype(x.dtype, jnp.floating)]
        return sum((jnp.mean(x.astype(jnp.float32)) for x in floats), start=jnp.float32(0))

    def step(params: State, buffers: State, inputs: Inputs) -> tuple[State, Array]:
        value, gradients = value_and_grad(loss)(params, buffers, inputs)
        return tree_util.tree_map(lambda w, g: w - _RATE * g, params, gradients), value

    step.__name__ = step.__qualname__ = name

    def arguments(mesh: AbstractMesh | None = None, **variables: object) -> tuple[Any, ...]:
        given = inputs(**variables) if callable(inputs) else inputs
        if not isinstance(given, (tuple, list, Mapping)):
            raise TorchModuleError(
                f"the example inputs of {name} are {type(given).__name__}: return a tuple of them, `(x,)`, or a dict "
                "of those that are passed by keyword"
            )
        batch = tree_util.tree_map(_type_of, dict(given) if isinstance(given, Mapping) else tuple(given))
        if mesh is None:
            return types, buffer_types, batch
        if unknown := [axis for axis in mesh.axis_names if axis not in (_BATCH, _MODEL)]:
            raise TorchModuleError(
                f"the mesh of {name} has the axis {unknown[0]!r}, along which nothing would be sharded: the step of a "
                f"module is sharded along {_BATCH!r} and {_MODEL!r}"
            )
        return (
            _on_mesh(types, _shardings(module, types, mesh)),
            _on_mesh(buffer_types, dict.fromkeys(buffer_types, NamedSharding(mesh, P()))),
            tree_util.tree_map(lambda type: _rows(type, mesh), batch),
        )

    own = inspect.signature(inputs).parameters.values() if callable(inputs) else ()
    mesh_parameter = inspect.Parameter("mesh", inspect.Parameter.KEYWORD_ONLY, default=None)
    arguments.__signature__ = inspect.Signature([*own, mesh_parameter])  # type: ignore[attr-defined]
    return step, arguments


def _module_of(target: torch.nn.Module | Callable[[], torch.nn.Module]) -> tuple[str, torch.nn.Module]:
    """Return the name of a target and its module, which is made on the `meta` device."""
    if isinstance(target, torch.nn.Module):
        return type(target).__name__, target
    try:
        with torch.device("meta"):
            module = target()
    except TypeError as error:
        raise TorchModuleError(
            f"{target.__name__} cannot be made without arguments ({error}): write a function without parameters "
            "that returns the module, `def model() -> torch.nn.Module`, and name that"
        ) from error
    if not isinstance(module, torch.nn.Module):
        raise TorchModuleError(f"{target.__name__} returns {type(module).__name__}, which is not a module")
    return target.__name__, module


@tree_util.register_static
@final
@dataclass(frozen=True)
class _Option:
    """An input that is not an array, such as `use_cache=False`: it is part of the program."""

    value: Any


def _is_option(leaf: object) -> bool:
    return isinstance(leaf, _Option)


def _type_of(value: Any) -> ShapeDtypeStruct | _Option:
    leaf = to_values("an input", value.to("meta")) if isinstance(value, torch.Tensor) else value
    if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
        return _Option(leaf)
    return ShapeDtypeStruct(tuple(leaf.shape), leaf.dtype)


def _shardings(module: torch.nn.Module, types: object, mesh: Any) -> Any:
    """Return the shardings of parameters."""
    base = None
    if _MODEL in mesh.axis_names:
        try:
            rules = plan_rules(module, axis=_MODEL)
        except StrategyError:  # it declares no plan
            base = strategies.fsdp(types, mesh, _MODEL)
        else:
            base = strategies.tensor_parallel(types, mesh, rules)
    if _BATCH in mesh.axis_names:
        return strategies.fsdp(types, mesh, _BATCH, base=base)
    return base if base is not None else strategies.data_parallel(types, mesh)


def _on_mesh(types: object, shardings: object) -> Any:
    return tree_util.tree_map(
        lambda t, sharding: ShapeDtypeStruct(t.shape, t.dtype, sharding=sharding), types, shardings
    )


def _rows(type: ShapeDtypeStruct, mesh: AbstractMesh) -> ShapeDtypeStruct:
    """Return the type of an input with its rows sharded along the axis of batches."""
    spec = P(_BATCH) if type.shape and _BATCH in mesh.axis_names else P()
    return ShapeDtypeStruct(type.shape, type.dtype, sharding=NamedSharding(mesh, spec))
