"""The state of a module: its parameters and buffers by their paths, as arrays of Shardwise and back.

A tensor with several names, such as a tied embedding, is one leaf under its first name.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, final

import ml_dtypes
import numpy as np
import torch

import shardwise.numpy as jnp
from shardwise.api.ahead_of_time.shape_dtype_struct import ShapeDtypeStruct
from shardwise.api.creation import make_array_from_callback
from shardwise.base.config import config
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.shardings.sharding import Sharding
from shardwise.errors import ShardingError, TorchModuleError
from shardwise.torch._torchax import mappings

Leaf = Array | ShapeDtypeStruct
Values = np.ndarray[Any, Any] | ShapeDtypeStruct  # of a leaf that is not placed yet

# Dtypes that numpy lacks, and integers of the same width, through which their bits reach it.
_BITS = {
    torch.bfloat16: (torch.int16, ml_dtypes.bfloat16),
    torch.float8_e4m3fn: (torch.uint8, ml_dtypes.float8_e4m3fn),
    torch.float8_e5m2: (torch.uint8, ml_dtypes.float8_e5m2),
}


@final
@dataclass(frozen=True)
class StateNames:
    """The names of the tensors of a module.

    Attributes:
        params: the names of the parameters that require gradients.
        buffers: the names of the other parameters, the buffers, and other attributes that are tensors.
        aliases: the further names of tied tensors, and the first name of each.
    """

    params: tuple[str, ...]
    buffers: tuple[str, ...]
    aliases: Mapping[str, str]


def module_tensors(module: torch.nn.Module) -> tuple[StateNames, dict[str, torch.Tensor]]:
    """Return the names of a module's tensors, and the tensors by their first names.

    Raises:
        TorchModuleError: if a parameter or a buffer is not initialized, or is not a dense tensor.
    """
    first: dict[int, str] = {}
    aliases: dict[str, str] = {}
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in _named_tensors(module):
        if isinstance(tensor, torch.nn.parameter.UninitializedTensorMixin):
            raise TorchModuleError(
                f"functional: {name!r} has no shape yet. Call the module once, which initializes its lazy layers"
            )
        if tensor.layout is not torch.strided or tensor.is_quantized:
            raise TorchModuleError(f"functional: {name!r} is {tensor.layout}; only dense tensors can be arrays")
        if (other := first.setdefault(id(tensor), name)) != name:
            aliases[name] = other
        else:
            tensors[name] = tensor
    trained = {name for name, tensor in tensors.items() if tensor.requires_grad}
    buffers = tuple(name for name in tensors if name not in trained)
    return StateNames(tuple(name for name in tensors if name in trained), buffers, aliases), tensors


def _named_tensors(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)
    for path, submodule in module.named_modules():
        for name, value in vars(submodule).items():
            if isinstance(value, torch.Tensor):  # neither a parameter nor a buffer: those are in tables of the module
                yield f"{path}.{name}" if path else name, value


def without_values(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor or parameter with the same type on the `meta` device."""
    empty = tensor.detach().to("meta")
    return torch.nn.Parameter(empty, tensor.requires_grad) if isinstance(tensor, torch.nn.Parameter) else empty


def to_values(name: str, tensor: torch.Tensor) -> Values:
    """Return a tensor's values in host memory, without a copy if it is there, or its type if it is on `meta`.

    Raises:
        TorchModuleError: if the dtype is not available.
    """
    dtype = _dtype_of(name, tensor)
    if tensor.is_meta:
        return ShapeDtypeStruct(tuple(tensor.shape), dtype)
    return _host_values(tensor).astype(dtype, copy=False)


def place_values(name: str, values: Values, sharding: Sharding | None = None) -> Leaf:
    """Return a copy of values as an array, each shard of which is copied alone, or their type with the sharding.

    Args:
        name: the name of the leaf, for errors.
        values: the values.
        sharding: the sharding of the array; by default, it is on the default device.

    Raises:
        TorchModuleError: if the array cannot have this sharding.
    """
    try:
        if isinstance(values, ShapeDtypeStruct):
            return ShapeDtypeStruct(values.shape, values.dtype, sharding=sharding)
        if sharding is None:
            return jnp.array(values)
        return make_array_from_callback(values.shape, sharding, lambda index: values[index], values.dtype)
    except ShardingError as error:
        raise TorchModuleError(f"functional: {name!r} cannot have its sharding: {error}") from None


def _dtype_of(name: str, tensor: torch.Tensor) -> Any:
    """Return the dtype of a leaf. 64-bit integers, such as the counters of BatchNorm, have 32 bits without x64."""
    if tensor.dtype not in mappings.TORCH_DTYPE_TO_JAX:
        raise TorchModuleError(f"functional: {name!r} has dtype {tensor.dtype}, which arrays do not have")
    dtype = np.dtype(mappings.t2j_dtype(tensor.dtype))
    if not config.enable_x64 and dtype.itemsize == 8 and dtype.kind in "iu":
        return np.dtype(f"{dtype.kind}4")
    if not config.enable_x64 and dtype in (np.float64, np.complex128):
        raise TorchModuleError(
            f"functional: {name!r} has dtype {tensor.dtype}, which needs `jax.config.update('jax_enable_x64', True)`; "
            "or call `module.float()` first"
        )
    return dtype


def to_array(tensor: torch.Tensor) -> Array:
    """Return a copy of a tensor in the memory of the default device."""
    return jnp.array(_host_values(tensor))


def _host_values(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    return to_numpy(tensor.detach().cpu().contiguous().resolve_conj().resolve_neg())


def to_numpy(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """Return the values of a contiguous tensor on the CPU, without a copy."""
    if tensor.dtype in _BITS:
        integer, dtype = _BITS[tensor.dtype]
        return tensor.view(integer).numpy().view(dtype)
    return tensor.numpy()


def numpy_dtype(caller: str, name: str, dtype: torch.dtype) -> np.dtype[Any]:
    """Return a dtype of PyTorch as numpy's.

    Raises:
        TorchModuleError: if arrays do not have the dtype. It names the caller and the tensor.
    """
    try:
        return to_numpy(torch.empty(0, dtype=dtype)).dtype
    except (TypeError, RuntimeError):
        raise TorchModuleError(f"{caller}: {name!r} has dtype {dtype}, which arrays do not have") from None


def from_numpy(values: np.ndarray[Any, Any]) -> torch.Tensor:
    """Return a tensor with the memory of a numpy array."""
    source = next((source for source, (_, dtype) in _BITS.items() if values.dtype == dtype), None)
    return (
        torch.from_numpy(values)
        if source is None
        else torch.from_numpy(values.view(f"i{values.itemsize}")).view(source)
    )


def to_tensor(array: Array, like: torch.Tensor) -> torch.Tensor:
    """Return an array as a tensor with the dtype of another one.

    An array on one device shares its memory with the tensor, if their dtypes agree. Shards are gathered in host memory.

    Raises:
        TorchModuleError: if the shapes differ.
    """
    if array.is_fully_addressable and len(array.sharding.device_set) == 1:
        tensor = torch.from_dlpack(array)
    else:
        tensor = from_numpy(np.array(array))
    return tensor.to(like.dtype)
