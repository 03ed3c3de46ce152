"""Translate what JAX's jaxprs hold into Shardwise's objects: types, meshes, shardings, enums and dimension numbers."""

import dataclasses
import enum
from collections.abc import Callable
from typing import Any

import numpy as np

from shardwise import lax
from shardwise.compiler.dtypes import KEY_DTYPES
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.shardings.mesh import AbstractMesh
from shardwise.compiler.shardings.named_sharding import NamedSharding
from shardwise.compiler.shardings.spec import PartitionSpec
from shardwise.compiler.trace.provenance import provenance
from shardwise.errors import UnsupportedError
from shardwise.inside_jax import _jax


def array_type(aval: _jax.ShapedArray) -> ArrayType:
    """Return the type of a value of JAX, without its sharding."""
    return ArrayType(aval.shape, dtype(aval.dtype), bool(aval.weak_type))


def dtype(of_jax: np.dtype[Any] | _jax.KeyTy) -> Any:
    """Return a dtype of JAX; one of PRNG keys is ours."""
    if not isinstance(of_jax, _jax.KeyTy):
        return np.dtype(of_jax)
    name = of_jax._impl.name
    if name not in KEY_DTYPES:
        raise UnsupportedError(f"PRNG keys of the implementation {name!r} are not supported: {', '.join(KEY_DTYPES)}")
    return KEY_DTYPES[name]


def mesh(of_jax: _jax.Mesh) -> AbstractMesh:
    """Return a mesh of JAX without its devices, which the planner does not need.

    All axes are Auto: JAX has checked the types along Explicit ones, and `read` constrains the values to them.
    """
    return AbstractMesh(tuple(of_jax.axis_sizes), tuple(of_jax.axis_names))


def spec(of_jax: _jax.PartitionSpec) -> PartitionSpec:
    """Return a PartitionSpec of JAX."""
    open_dim = _jax.PartitionSpec.UNCONSTRAINED
    parts = (PartitionSpec.UNCONSTRAINED if part is open_dim else part for part in of_jax.partitions)
    return PartitionSpec(*parts, unreduced=of_jax.unreduced, reduced=of_jax.reduced)


def named_sharding(of_jax: _jax.NamedSharding) -> NamedSharding:
    """Return a NamedSharding of JAX, on a mesh without devices.

    Sums that are not reduced yet are no part of it: only types along Explicit axes have them (see `mesh`).
    """
    if of_jax.memory_kind not in (None, "device"):
        raise UnsupportedError(
            f"the sharding {of_jax} at {provenance.source} is in the memory {of_jax.memory_kind!r}; only the memory of "
            "devices is supported inside functions that Shardwise plans"
        )
    return NamedSharding(mesh(of_jax.mesh), PartitionSpec(*spec(of_jax.spec)))


def jax_sharding(sharding: Any, mesh: _jax.Mesh) -> Any:
    """Return a NamedSharding of Shardwise as JAX's, on a mesh of JAX."""
    spec = sharding.spec
    return _jax.NamedSharding(mesh, _jax.PartitionSpec(*spec, unreduced=spec.unreduced, reduced=spec.reduced))


def parameter(value: object, function: Callable[[Any], Callable[..., Any]]) -> Any:
    """Return a parameter of an equation. `function(jaxpr)` is the function that a jaxpr among them computes."""
    match value:
        case _jax.ClosedJaxpr() | _jax.Jaxpr():
            return function(value)
        case _jax.NamedSharding():
            return named_sharding(value)
        case _jax.Mesh() | _jax.AbstractMesh():
            return mesh(value)
        case _jax.PartitionSpec():
            return spec(value)
        case _jax.KeyTy():
            return dtype(value)
        case _jax.PRNGImpl():
            return value.name
        case enum.Enum() if (ours := getattr(lax, type(value).__name__, None)) is not None:
            return ours[value.name]
        case enum.Enum() if (ours := getattr(lax.linalg, type(value).__name__, None)) is not None:
            return ours[value.name]
        case np.integer():  # such as the widths of `jnp.pad`
            return int(value)
        case tuple() if hasattr(value, "_fields") and type(value).__name__ in dir(lax):  # such as ConvDimensionNumbers
            return getattr(lax, type(value).__name__)(*value)
        case tuple() if hasattr(value, "_fields"):  # such as the four jaxprs of a linear solver
            return tuple(parameter(item, function) for item in value)
        case _ if isinstance(getattr(value, "jaxpr", None), _jax.ClosedJaxpr):  # a call of another planned function
            return {
                name: parameter(getattr(value, name), function) for name in ("jaxpr", "in_shardings", "out_shardings")
            }
        case tuple() | list():
            return type(value)(parameter(item, function) for item in value)
        case _ if dataclasses.is_dataclass(value) and hasattr(lax, type(value).__name__):
            parts = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
            return getattr(lax, type(value).__name__)(
                **{name: parameter(part, function) for name, part in parts.items()}
            )
        case _:
            return value
