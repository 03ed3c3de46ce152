"""Convolutions with dims in any order, groups, strides, dilations and padding: close to the op of `conv.py`."""

import math
import operator
from collections.abc import Sequence
from typing import Any, NamedTuple, final

import numpy as np

from shardwise.compiler.arrays.operands import as_operand, compiled_function, type_of
from shardwise.compiler.arrays.promotion import canonical_dtype
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.contract.conv import Conv
from shardwise.compiler.ops.reduce.broadcast import Broadcast
from shardwise.compiler.ops.shape.movement import Reshape, permuted
from shardwise.compiler.ops.shape.slicing import Reverse
from shardwise.lax.padding import integers, padding_pairs
from shardwise.lax.precision import precisions
from shardwise.lax.shape import constrain_sharding


@final
class ConvDimensionNumbers(NamedTuple):
    """The dims of the array and the result: batch, feature, then the spatial ones; of the kernel: out feature, in
    feature, then the spatial ones.
    """

    lhs_spec: tuple[int, ...]
    rhs_spec: tuple[int, ...]
    out_spec: tuple[int, ...]


def conv_dimension_numbers(
    lhs_shape: Sequence[int], rhs_shape: Sequence[int], dimension_numbers: Any
) -> ConvDimensionNumbers:
    """Dimension numbers of three strings such as ("NHWC", "HWIO", "NHWC"); of None, those of NCHW, OIHW and NCHW.

    >>> lax.conv_dimension_numbers((1, 8, 8, 3), (3, 3, 3, 4), ("NHWC", "HWIO", "NHWC")).lhs_spec
    (0, 3, 1, 2)
    """
    ndim = len(lhs_shape)
    if len(rhs_shape) != ndim:
        raise TypeError(f"convolution: operands must have the same rank, not shapes {lhs_shape} and {rhs_shape}")
    if isinstance(dimension_numbers, ConvDimensionNumbers):
        return dimension_numbers
    if dimension_numbers is None:
        return ConvDimensionNumbers(*(tuple(range(ndim)) for _ in range(3)))
    if not (isinstance(dimension_numbers, (tuple, list)) and list(map(type, dimension_numbers)) == [str] * 3):
        raise TypeError(
            "convolution: dimension_numbers is None, a ConvDimensionNumbers, or three strings such as "
            f"('NHWC', 'HWIO', 'NHWC'), not {dimension_numbers!r}"
        )
    spatial = "".join(letter for letter in dimension_numbers[1] if letter not in "OI")
    for names, pair in zip(dimension_numbers, ("NC", "OI", "NC"), strict=True):
        if len(names) != ndim or sorted(names) != sorted(pair + spatial):
            raise ValueError(
                f"convolution: {names!r} in dimension_numbers {tuple(dimension_numbers)} must name {ndim} dims, each "
                f"once: {pair[0]!r}, {pair[1]!r} and the spatial dims of {dimension_numbers[1]!r}, {spatial!r}"
            )
    return ConvDimensionNumbers(
        *(
            tuple(names.index(letter) for letter in pair + spatial)
            for names, pair in zip(dimension_numbers, ("NC", "OI", "NC"), strict=True)
        )
    )


def conv_general_dilated(
    lhs: Any,
    rhs: Any,
    window_strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    feature_group_count: int = 1,
    batch_group_count: int = 1,
    precision: Any = None,
    preferred_element_type: Any = None,
    out_sharding: Any = None,
) -> Any:
    """`lhs` convolved with the kernel `rhs`, without turning it around.

    `padding`: for each spatial dim how many zeros come before and after (negative: how many elements are taken away);
    or "VALID" (none), "SAME" or "SAME_LOWER" (so many that there is a result for each stride). With
    `feature_group_count` the features, with `batch_group_count` the batch are cut into so many groups, each with its
    own part of the kernel's out features.

    >>> lax.conv_general_dilated(jnp.ones((1, 1, 4)), jnp.ones((1, 1, 2)), (1,), "SAME")
    Array([[[2., 2., 2., 1.]]], dtype=float32)
    """
    name = "conv_general_dilated"
    x, kernel = type_of(lhs, name), type_of(rhs, name)
    numbers = conv_dimension_numbers(x.shape, kernel.shape, dimension_numbers)
    if x.ndim < 2:
        raise TypeError(f"{name}: {x} needs a batch and a feature dim")
    count = x.ndim - 2
    strides = integers(name, "window_strides", window_strides, count)
    base, dilation = (
        (1,) * count if given is None else integers(name, what, given, count)
        for what, given in (("lhs_dilation", lhs_dilation), ("rhs_dilation", rhs_dilation))
    )
    if isinstance(padding, str) and any(number != 1 for number in base):
        raise ValueError(f"{name}: with lhs_dilation, padding is given in numbers; see conv_transpose")
    sizes = [x.shape[dim] for dim in numbers.lhs_spec[2:]]
    windows = [kernel.shape[dim] for dim in numbers.rhs_spec[2:]]
    pads = padding_pairs(name, padding, sizes, windows, strides, dilation)
    features, batches = operator.index(feature_group_count), operator.index(batch_group_count)
    _check_groups(name, x, kernel, numbers, features, batches)
    dtype = x.dtype if preferred_element_type is None else canonical_dtype(preferred_element_type)
    parts = ["gb" if batches > 1 else "b", "gi" if features > 1 else "i"]
    result = "go" if features > 1 or batches > 1 else "o"
    roles = (parts, [result, "i"], ["b", result])
    names = tuple(_names(spec, letters) for spec, letters in zip(numbers, roles, strict=True))
    left, right, out = map("".join, names)
    low, high = (tuple(pair[i] for pair in pads) for i in range(2))
    op = Conv(left, right, out, strides, low, high, base, dilation, dtype, precisions(name, precision))
    return constrain_sharding(_convolved(lhs, rhs, op=op, names=names, groups=features * batches), out_sharding)


def _names(spec: Sequence[int], letters: Sequence[str]) -> tuple[str, ...]:
    """For each dim its letters: two where it is cut into groups."""
    found = [""] * len(spec)
    for dim, name in zip(spec, (*letters, *map(str, range(len(spec) - 2))), strict=True):
        found[dim] = name
    return tuple(found)


def _check_groups(
    name: str, x: ArrayType, kernel: ArrayType, numbers: ConvDimensionNumbers, features: int, batches: int
) -> None:
    if features < 1 or batches < 1 or (features > 1 and batches > 1):
        raise ValueError(
            f"{name}: feature_group_count and batch_group_count are 1 or more, and one of them is 1, "
            f"not {features} and {batches}"
        )
    in_features, out_features = x.shape[numbers.lhs_spec[1]], kernel.shape[numbers.rhs_spec[0]]
    if in_features != kernel.shape[numbers.rhs_spec[1]] * features:
        raise ValueError(
            f"{name}: {x} has {in_features} features in {features} group{'s' * (features > 1)}, but the kernel "
            f"{kernel} is for {kernel.shape[numbers.rhs_spec[1]]} each"
        )
    for what, size, groups in (
        ("out features of the kernel", out_features, features * batches),
        ("batch", x.shape[numbers.lhs_spec[0]], batches),
    ):
        if size % groups:
            raise ValueError(f"{name}: the {what}, of size {size}, cannot be cut into {groups} groups")


@compiled_function
def _convolved(lhs: Any, rhs: Any, *, op: Conv, names: tuple[tuple[str, ...], ...], groups: int) -> Any:
    """Groups are a dim of their own inside."""
    x, kernel = (
        _split(as_operand(operand, "conv_general_dilated"), letters, groups)
        for operand, letters in zip((lhs, rhs), names[:2], strict=True)
    )
    found = op(x, kernel)
    sizes = dict(zip(op.out, found.type.shape, strict=True))
    shape = tuple(math.prod(sizes[letter] for letter in letters) for letters in names[2])
    return found if shape == found.type.shape else Reshape(shape)(found)


def _split(x: Any, names: Sequence[str], groups: int) -> Any:
    pairs = zip(names, x.type.shape, strict=True)
    shape = [size for name, n in pairs for size in ((groups, n // groups) if len(name) > 1 else (n,))]
    return x if len(shape) == x.type.ndim else Reshape(tuple(shape))(x)


def conv(
    lhs: Any,
    rhs: Any,
    window_strides: Sequence[int],
    padding: str,
    precision: Any = None,
    preferred_element_type: Any = None,
) -> Any:
    """A convolution of an array NCHW with a kernel OIHW, with any number of spatial dims.

    >>> lax.conv(jnp.ones((1, 1, 4)), jnp.ones((1, 1, 2)), (1,), "VALID")
    Array([[[2., 2., 2.]]], dtype=float32)
    """
    return conv_general_dilated(
        lhs, rhs, window_strides, padding, precision=precision, preferred_element_type=preferred_element_type
    )


def conv_with_general_padding(
    lhs: Any,
    rhs: Any,
    window_strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    lhs_dilation: Sequence[int] | None,
    rhs_dilation: Sequence[int] | None,
    precision: Any = None,
    preferred_element_type: Any = None,
) -> Any:
    """A convolution of an array NCHW with a kernel OIHW, with padding and dilations.

    >>> lax.conv_with_general_padding(jnp.ones((1, 1, 4)), jnp.ones((1, 1, 2)), (1,), [(1, 0)], None, None)
    Array([[[1., 2., 2., 2.]]], dtype=float32)
    """
    return conv_general_dilated(
        lhs,
        rhs,
        window_strides,
        padding,
        lhs_dilation,
        rhs_dilation,
        precision=precision,
        preferred_element_type=preferred_element_type,
    )


_CHANNELS_LAST = {2: ("NC", "IO", "NC"), 3: ("NHC", "HIO", "NHC"), 4: ("NHWC", "HWIO", "NHWC")}
_CHANNELS_LAST[5] = ("NHWDC", "HWDIO", "NHWDC")


def conv_transpose(
    lhs: Any,
    rhs: Any,
    strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    transpose_kernel: bool = False,
    precision: Any = None,
    preferred_element_type: Any = None,
    use_consistent_padding: bool = False,
) -> Any:
    """A convolution over `lhs` with its elements `strides` apart: "SAME" padding gives that many results for each.

    Dims are those of NHWC, HWIO and NHWC where none are given. Where `transpose_kernel`, the kernel is turned around
    and its in and out features change places: then this is the derivative of a convolution with that kernel, and
    numbers in `padding` are that convolution's where `use_consistent_padding`.

    >>> lax.conv_transpose(jnp.ones((1, 2, 1)), jnp.ones((2, 1, 1)), (2,), "SAME").shape
    (1, 4, 1)
    """
    name = "conv_transpose"
    x, kernel = type_of(lhs, name), as_operand(rhs, name)
    if dimension_numbers is None:
        if x.ndim not in _CHANNELS_LAST:
            raise ValueError(f"{name}: {x} needs dimension_numbers: only 0 to 3 spatial dims have usual ones")
        dimension_numbers = _CHANNELS_LAST[x.ndim]
    numbers = conv_dimension_numbers(x.shape, kernel.type.shape, dimension_numbers)
    spatial, count = numbers.rhs_spec[2:], x.ndim - 2
    steps = integers(name, "strides", strides, count)
    dilation = (1,) * count if rhs_dilation is None else integers(name, "rhs_dilation", rhs_dilation, count)
    extents = [(kernel.type.shape[dim] - 1) * d + 1 for dim, d in zip(spatial, dilation, strict=True)]
    pads: Any = padding
    if isinstance(padding, str):
        pads = [transposed_padding(name, padding, k, s) for k, s in zip(extents, steps, strict=True)]
    elif use_consistent_padding:
        pads = [(k - 1 - low, k - 1 - high) for k, (low, high) in zip(extents, padding, strict=True)]
    if transpose_kernel:
        order = list(range(x.ndim))
        order[numbers.rhs_spec[0]], order[numbers.rhs_spec[1]] = numbers.rhs_spec[1], numbers.rhs_spec[0]
        kernel = permuted(Reverse(tuple(spatial))(kernel), tuple(order))
    return conv_general_dilated(
        lhs,
        kernel,
        (1,) * count,
        pads,
        steps,
        dilation,
        numbers,
        precision=precision,
        preferred_element_type=preferred_element_type,
    )


def transposed_padding(name: str, padding: str, extent: int, stride: int) -> tuple[int, int]:
    """So many zeros that there are `stride` results for each element; more where the kernel is to meet each alone."""
    if padding == "SAME":
        total = extent + stride - 2
        low = extent - 1 if stride > extent - 1 else -(-total // 2)
    elif padding == "VALID":
        total = extent + stride - 2 + max(extent - stride, 0)
        low = extent - 1
    else:
        raise ValueError(f"{name}: padding is 'SAME', 'VALID' or a pair of numbers for each dim, not {padding!r}")
    return low, total - low


def conv_general_dilated_patches(
    lhs: Any,
    filter_shape: Sequence[int],
    window_strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    precision: Any = None,
    preferred_element_type: Any = None,
) -> Any:
    """What a kernel of `filter_shape` meets at each place, as features: all positions of the first feature, then of the
    next.

    >>> lax.conv_general_dilated_patches(jnp.arange(4.0).reshape(1, 1, 4), (2,), (1,), "VALID")
    Array([[[0., 1., 2.],
            [1., 2., 3.]]], dtype=float32)
    """
    name = "conv_general_dilated_patches"
    x = type_of(lhs, name)
    window = tuple(map(operator.index, filter_shape))
    numbers = conv_dimension_numbers(x.shape, (1,) * x.ndim, dimension_numbers)
    features, positions = x.shape[numbers.lhs_spec[1]], math.prod(window)
    # For each feature and position a kernel that is one there, and zero elsewhere.
    one = as_operand(np.eye(positions).reshape(positions, 1, *window).astype(x.dtype))
    each = Broadcast((features, *one.type.shape), tuple(range(1, x.ndim + 1)))(one)
    kernel = Reshape((features * positions, *one.type.shape[1:]))(each)
    order = [numbers.rhs_spec.index(dim) for dim in range(x.ndim)]
    return conv_general_dilated(
        lhs,
        permuted(kernel, tuple(order)),
        window_strides,
        padding,
        lhs_dilation,
        rhs_dilation,
        numbers,
        feature_group_count=features,
        precision=precision,
        preferred_element_type=preferred_element_type,
    )
