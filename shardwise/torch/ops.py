"""Ops that torchax lacks, or computes without their side effects, and the registration of more."""

import math
from collections.abc import Callable
from typing import Any

import torch

import shardwise.numpy as jnp
from shardwise.compiler.arrays.methods import Array
from shardwise.errors import UnsupportedError
from shardwise.lax.gradient import stop_gradient
from shardwise.lax.ragged import ragged_dot
from shardwise.ops import segment_max, segment_sum
from shardwise.torch._torchax import Operator, environment, mappings
from shardwise.torch.attention import scaled_dot_product_attention
from shardwise.torch.running_statistics import batch_norm, instance_norm
from shardwise.torch.subgradients import SUBGRADIENTS


def register_op(op: Callable[..., Any], function: Callable[..., Any]) -> None:
    """Compute a PyTorch op by a function of arrays.

    Args:
        op: the op, such as `torch.ops.aten.digamma.default`, or a function such as `torch.nn.functional.gelu`. An op
            that torchax has is replaced.
        function: the function. It receives the arguments of the op, with arrays instead of tensors and dtypes of
            PyTorch, and returns arrays.

    Raises:
        TypeError: if `op` or `function` is not callable.

    Example:
        >>> register_op(torch.ops.aten.special_bessel_j0.default, my_bessel_j0)  # doctest: +SKIP
    """
    for role, value in (("op", op), ("function", function)):
        if not callable(value):
            raise TypeError(f"register_op: {role} must be callable, not {value!r}")
    _register(op, function, is_jax_function=True)


def _register(op: Callable[..., Any], function: Callable[..., Any], *, is_jax_function: bool) -> None:
    environment()._ops[op] = Operator(
        op,
        function,
        is_jax_function=is_jax_function,
        is_user_defined=True,
        needs_env=False,
        is_view_op=not is_jax_function,  # views stay views, so that a function can change them in place
    )


def _detach_(x: torch.Tensor) -> torch.Tensor:
    return x.copy_(x.detach())


def _gather(input: Array, dim: int, index: Array, sparse_grad: bool = False) -> Array:
    """Take elements along a dim. torchax 0.0.13 indexes all dims, which has a scatter as its gradient."""
    if not input.ndim or not all(index.shape):
        return jnp.broadcast_to(input.reshape(-1)[:1].sum(), index.shape)
    dim %= input.ndim
    sizes = (size if d == dim else index.shape[d] for d, size in enumerate(input.shape))
    return jnp.take_along_axis(input[tuple(slice(size) for size in sizes)], index, axis=dim)


def _fill_(x: torch.Tensor, value: torch.Tensor | complex) -> torch.Tensor:
    """Fill a tensor. torchax 0.0.13 loses the values if it is a slice; so with the next two functions."""
    return x.copy_(torch.full_like(x, value))


def _zero_(x: torch.Tensor) -> torch.Tensor:
    return x.copy_(torch.zeros_like(x))


def _masked_fill_(x: torch.Tensor, mask: torch.Tensor, value: torch.Tensor | complex) -> torch.Tensor:
    return x.copy_(torch.masked_fill(x, mask, value))


def _convolution(
    input: Array,
    weight: Array,
    bias: Array | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
) -> Array:
    """Convolve as torchax does.

    torchax 0.0.13 expects that groups are the minor factor of the first dim of a transposed weight; they are the major.
    """
    if transposed and groups > 1:
        grouped = weight.reshape(groups, weight.shape[0] // groups, *weight.shape[1:])
        weight = jnp.swapaxes(grouped, 0, 1).reshape(weight.shape)
    arguments = (input, weight, bias, stride, padding, dilation, transposed, output_padding, groups)
    return _TORCHAX_CONVOLUTION(*arguments)


_TORCHAX_CONVOLUTION = environment()._ops[torch.ops.aten.convolution].func


def _cdist(x1: Array, x2: Array, p: float = 2.0, compute_mode: object = None) -> Array:
    """Return the p-norm distances of all pairs of rows. Their gradients are 0 where rows are equal.

    torchax 0.0.13 returns 1 for p = inf, in float32 for all dtypes, and NaN as gradients of equal rows.
    """
    difference = jnp.expand_dims(x1, -2) - jnp.expand_dims(x2, -3)
    difference = difference * jnp.sign(difference)  # `abs`, with a gradient of 0 at 0
    if p == 0:
        return (difference != 0).sum(-1).astype(difference.dtype)
    if p == math.inf:
        return difference.max(-1)
    powers = (difference if p == 1 else difference * difference if p == 2 else difference**p).sum(-1)
    is_positive = powers > 0
    return jnp.where(is_positive, jnp.where(is_positive, powers, 1) ** (1 / p), 0)


def _grouped_mm(
    mat_a: Array,
    mat_b: Array,
    offs: Array | None = None,
    bias: Array | None = None,
    out_dtype: torch.dtype | None = None,
) -> Array:
    """Multiply groups of rows by one matrix per group: the products of experts. `offs` are the ends of the groups."""
    if offs is None and mat_a.ndim == mat_b.ndim == 3:
        product = mat_a @ mat_b
    elif offs is not None and mat_a.ndim == 2 and mat_b.ndim == 3:
        product = ragged_dot(mat_a, mat_b, jnp.diff(offs, prepend=0).astype(jnp.int32))
    else:
        raise UnsupportedError(
            f"_grouped_mm of ranks {mat_a.ndim} and {mat_b.ndim} {'without' if offs is None else 'with'} offsets; "
            "supported are groups of the rows of a matrix, and batches of matrices"
        )
    product = product if bias is None else product + bias
    return product if out_dtype is None else product.astype(mappings.t2j_dtype(out_dtype))


def _embedding_bag(
    weight: Array,
    indices: Array,
    offsets: Array,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Array | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[Array, Array, Array, Array]:
    """Reduce rows of an embedding per bag: mode 0 sums, 1 averages, 2 takes the maximum.

    torchax 0.0.13 loops over the bags in Python, which needs the values of `offsets`.

    Returns:
        The bags, the bag of each index, the sizes of the bags, and an empty array in place of the positions of maxima.
    """
    if scale_grad_by_freq:
        raise UnsupportedError("embedding_bag with scale_grad_by_freq=True: scale the gradient in the optimizer")
    count = offsets.shape[0] - include_last_offset
    bags = jnp.searchsorted(offsets[:count], jnp.arange(indices.shape[0]), side="right") - 1
    bags = bags if padding_idx < 0 else jnp.where(indices == padding_idx, count, bags)  # out of bounds: left out
    rows = weight[indices] if per_sample_weights is None else weight[indices] * per_sample_weights[:, None]
    sizes = segment_sum(jnp.ones_like(bags), bags, count)
    if mode == 2:
        reduced = jnp.where(sizes[:, None] > 0, segment_max(rows, bags, count), 0)
    else:
        reduced = segment_sum(rows, bags, count)
    if mode == 1:
        reduced = reduced / jnp.maximum(sizes, 1)[:, None].astype(reduced.dtype)
    return reduced, bags, sizes, jnp.zeros((0,), bags.dtype)


# Changes in place that torchax 0.0.13 lacks; those of strides and flags are left out.
_NOT_VALUES = {"as_strided_", "rename_", "requires_grad_", "swapaxes_", "swapdims_", "t_"}


def _register_in_place_ops() -> None:
    registered = environment()._ops.keys() | environment()._decomps.keys()
    for name in dir(torch.Tensor):
        if not name.endswith("_") or name.endswith("__") or not hasattr(torch.Tensor, name[:-1]) or name in _NOT_VALUES:
            continue
        packet = getattr(torch.ops.aten, name, None)
        overloads = [] if packet is None else [packet, *(getattr(packet, overload) for overload in packet.overloads())]
        methods = [method for owner in (torch.Tensor, torch) if (method := getattr(owner, name, None)) is not None]
        if registered.isdisjoint([*methods, *overloads]):
            for method in methods:
                _register(method, _in_place(name[:-1]), is_jax_function=False)


def _in_place(name: str) -> Callable[..., torch.Tensor]:
    """Return a function that assigns the result of a method to its tensor."""

    def assign(x: torch.Tensor, *arguments: object, **options: object) -> torch.Tensor:
        return x.copy_(getattr(x, name)(*arguments, **options))

    return assign


def _register_subgradients() -> None:
    for name, function in SUBGRADIENTS.items():
        packet, _, overload = name.partition(".")
        op = getattr(torch.ops.aten, packet)
        names = [overload] if overload else [each for each in op.overloads() if "out" not in each]
        for key in [*([] if overload else [op]), *(getattr(op, each) for each in names)]:
            register_op(key, function)


_register_in_place_ops()
_register_subgradients()
_register(torch.nn.functional.batch_norm, batch_norm, is_jax_function=False)
_register(torch.nn.functional.instance_norm, instance_norm, is_jax_function=False)
_register(torch.nn.functional.scaled_dot_product_attention, scaled_dot_product_attention, is_jax_function=False)
_register(torch.Tensor.detach_, _detach_, is_jax_function=False)
_register(torch.Tensor.fill_, _fill_, is_jax_function=False)
_register(torch.Tensor.zero_, _zero_, is_jax_function=False)
_register(torch.Tensor.masked_fill_, _masked_fill_, is_jax_function=False)
register_op(torch.ops.aten.detach.default, stop_gradient)  # the identity in torchax 0.0.13
register_op(torch.ops.aten.gather, _gather)
register_op(torch.cdist, _cdist)
register_op(torch.ops.aten.cdist, _cdist)
register_op(torch.ops.aten.cdist.default, _cdist)
register_op(torch.ops.aten._cdist_forward.default, _cdist)
register_op(torch.ops.aten.convolution, _convolution)
register_op(torch.ops.aten.convolution.default, _convolution)
register_op(torch.ops.aten._grouped_mm.default, _grouped_mm)
register_op(torch.ops.aten._embedding_bag.default, _embedding_bag)
register_op(torch.ops.aten._embedding_bag_forward_only.default, _embedding_bag)
