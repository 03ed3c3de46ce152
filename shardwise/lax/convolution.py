"""Convolutions in any layout, with groups, strides, dilations and padding. They stage the op `Conv`."""

import math
import operator
from collections.abc import Sequence
from typing import Any, NamedTuple, final

import numpy as np

from shardwise.api.meshes.out_sharding import constrain_sharding, decided_by
from shardwise.base.docstrings import Family, Parameter, documented
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import as_operand, compiled_function, type_of
from shardwise.compiler.arrays.promotion import requested_dtype
from shardwise.compiler.ir.types import ArrayType
from shardwise.compiler.ops.contract.conv import Conv
from shardwise.compiler.ops.reduce.broadcast import Broadcast
from shardwise.compiler.ops.shape.movement import Reshape, permute
from shardwise.compiler.ops.shape.slicing import Reverse
from shardwise.lax.padding import integers, padding_pairs
from shardwise.lax.precision import PrecisionLike, precisions
from shardwise.typing import ArrayLike, DTypeLike, OutSharding


@final
class ConvDimensionNumbers(NamedTuple):
    """The roles of the dims of a convolution.

    `lhs_spec` and `out_spec` list the batch dim, the feature dim and the spatial dims of input and output. `rhs_spec`
    lists the output-feature dim, the input-feature dim and the spatial dims of the kernel.
    """

    lhs_spec: tuple[int, ...]
    rhs_spec: tuple[int, ...]
    out_spec: tuple[int, ...]


def conv_dimension_numbers(
    lhs_shape: Sequence[int], rhs_shape: Sequence[int], dimension_numbers: Any
) -> ConvDimensionNumbers:
    """Convert dimension numbers of any form to a `ConvDimensionNumbers`.

    Args:
        lhs_shape: the shape of the input.
        rhs_shape: the shape of the kernel.
        dimension_numbers: a `ConvDimensionNumbers`, or three strings for input, kernel and output such as ("NHWC",
            "HWIO", "NHWC"). None means NCHW, OIHW and NCHW.

    Returns:
        The dims of input, kernel and output by role.

    Raises:
        TypeError: if the ranks differ, or `dimension_numbers` has none of the three forms.
        ValueError: if the strings do not name the same spatial dims, each once.

    Example:
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
            "convolution: dimension_numbers must be None, a ConvDimensionNumbers, or three strings such as "
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


_CONVOLUTION = Family(
    {
        "dimension_numbers": "a `ConvDimensionNumbers`, or three strings for input, kernel and output\n"
        'such as ("NHWC", "HWIO", "NHWC"). None means NCHW, OIHW and NCHW.',
        "lhs": "the input, an array with a batch dim, a feature dim and spatial dims.",
        "rhs": "the kernel, an array of the dtype of `lhs` with an output-feature dim, an input-feature\n"
        "dim and spatial dims.",
        "window_strides": "the stride of the window along each spatial dim.",
        "padding": "pairs of the numbers of zeros before and after each spatial dim, where negative\n"
        'numbers crop; or a name. "VALID" adds none. "SAME" and "SAME_LOWER" add so many that the output\n'
        'has ceil(size / stride) elements; if their number is odd, "SAME" adds the extra one after the\n'
        'dim and "SAME_LOWER" before it.',
        "lhs_dilation": "the dilation of the input along each spatial dim: the distance between its\n"
        "elements, with zeros between.",
        "rhs_dilation": "the dilation of the kernel along each spatial dim.",
        "precision": Parameter(
            "a `Precision` for both operands or a pair of them, or a name such as\n"
            '"highest". None means the default of the configuration.',
            "NotImplementedError: if `precision` is a `DotAlgorithm` without an equivalent `Precision`.",
        ),
        "preferred_element_type": "the dtype of the sums and of the result. None means the dtype of the\noperands.",
    },
    returns="The output, with its dims in the order of `dimension_numbers`.",
    raises=[
        "TypeError: if the ranks or dtypes of the operands differ, or the dtypes are not supported.",
        "ValueError: if strides, dilations, padding or dimension numbers do not fit the operands, or the\n"
        "feature sizes do not agree.",
    ],
)


@documented(_CONVOLUTION)
def conv_general_dilated(
    lhs: ArrayLike,
    rhs: ArrayLike,
    window_strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    feature_group_count: int = 1,
    batch_group_count: int = 1,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
    out_sharding: OutSharding = None,
) -> Array:
    """Convolve an array with a kernel. The kernel is not flipped, as usual in neural networks.

    Args:
        feature_group_count: the number of groups of input features. Each group is convolved with its own output
            features of the kernel.
        batch_group_count: the number of groups of the batch. Each group is convolved with its own output features of
            the kernel.
        out_sharding: the sharding to pin the result to.

    Raises:
        ShardingError: if `out_sharding` does not fit the shape of the result.

    Example:
        >>> lax.conv_general_dilated(jnp.ones((1, 1, 4)), jnp.ones((1, 1, 2)), (1,), "SAME")
        Array([[[2., 2., 2., 1.]]], dtype=float32)
    """
    name = "conv_general_dilated"
    x, kernel = type_of(lhs, name), type_of(rhs, name)
    numbers = conv_dimension_numbers(x.shape, kernel.shape, dimension_numbers)
    if x.ndim < 2:
        raise TypeError(f"{name}: the input must have a batch dim and a feature dim, not {x}")
    count = x.ndim - 2
    strides = integers(name, "window_strides", window_strides, count)
    base_dilation, dilation = (
        (1,) * count if values is None else integers(name, argument, values, count)
        for argument, values in (("lhs_dilation", lhs_dilation), ("rhs_dilation", rhs_dilation))
    )
    if isinstance(padding, str) and any(number != 1 for number in base_dilation):
        raise ValueError(f"{name}: with lhs_dilation, padding must be pairs of numbers; see also conv_transpose")
    sizes = [x.shape[dim] for dim in numbers.lhs_spec[2:]]
    windows = [kernel.shape[dim] for dim in numbers.rhs_spec[2:]]
    pads = padding_pairs(name, padding, sizes, windows, strides, dilation)
    feature_groups, batch_groups = operator.index(feature_group_count), operator.index(batch_group_count)
    _check_groups(name, x, kernel, numbers, feature_groups, batch_groups)
    dtype = x.dtype if preferred_element_type is None else requested_dtype(name, preferred_element_type)
    in_letters = ["gb" if batch_groups > 1 else "b", "gi" if feature_groups > 1 else "i"]
    out_feature = "go" if feature_groups > 1 or batch_groups > 1 else "o"
    roles = (in_letters, [out_feature, "i"], ["b", out_feature])
    names = tuple(_dim_letters(spec, letters) for spec, letters in zip(numbers, roles, strict=True))
    left, right, out = map("".join, names)
    low, high = (tuple(pair[i] for pair in pads) for i in range(2))
    op = Conv(left, right, out, strides, low, high, base_dilation, dilation, dtype, precisions(name, precision))
    with decided_by(out_sharding):
        result = _convolve(lhs, rhs, op=op, names=names, groups=feature_groups * batch_groups)
    return constrain_sharding(result, out_sharding)


def _dim_letters(spec: Sequence[int], letters: Sequence[str]) -> tuple[str, ...]:
    """Return the letters of each dim: two letters for a dim that is split into groups."""
    names = [""] * len(spec)
    for dim, name in zip(spec, (*letters, *map(str, range(len(spec) - 2))), strict=True):
        names[dim] = name
    return tuple(names)


def _check_groups(
    name: str, x: ArrayType, kernel: ArrayType, numbers: ConvDimensionNumbers, feature_groups: int, batch_groups: int
) -> None:
    """Check that the group counts divide the feature and batch sizes."""
    if feature_groups < 1 or batch_groups < 1 or (feature_groups > 1 and batch_groups > 1):
        raise ValueError(
            f"{name}: feature_group_count and batch_group_count must be 1 or more, and one of them must be 1, "
            f"not {feature_groups} and {batch_groups}"
        )
    in_features, out_features = x.shape[numbers.lhs_spec[1]], kernel.shape[numbers.rhs_spec[0]]
    if in_features != kernel.shape[numbers.rhs_spec[1]] * feature_groups:
        raise ValueError(
            f"{name}: {x} has {in_features} features in {feature_groups} group{'s' * (feature_groups > 1)}, but the "
            f"kernel {kernel} has {kernel.shape[numbers.rhs_spec[1]]} input features per group"
        )
    for role, size, groups in (
        ("number of output features of the kernel", out_features, feature_groups * batch_groups),
        ("batch size", x.shape[numbers.lhs_spec[0]], batch_groups),
    ):
        if size % groups:
            raise ValueError(f"{name}: the {role}, {size}, is not divisible by the number of groups, {groups}")


@compiled_function
def _convolve(lhs: ArrayLike, rhs: ArrayLike, *, op: Conv, names: tuple[tuple[str, ...], ...], groups: int) -> Any:
    """Apply `op`, with the groups as a separate dim of its operands and result."""
    x, kernel = (
        _split_groups(as_operand(operand, "conv_general_dilated"), letters, groups)
        for operand, letters in zip((lhs, rhs), names[:2], strict=True)
    )
    out = op(x, kernel)
    sizes = dict(zip(op.out, out.type.shape, strict=True))
    shape = tuple(math.prod(sizes[letter] for letter in letters) for letters in names[2])
    return out if shape == out.type.shape else Reshape(shape)(out)


def _split_groups(x: Array, names: Sequence[str], groups: int) -> Any:
    """Split the dims that have two letters into groups."""
    pairs = zip(names, x.type.shape, strict=True)
    shape = [part for name, size in pairs for part in ((groups, size // groups) if len(name) > 1 else (size,))]
    return x if len(shape) == x.type.ndim else Reshape(tuple(shape))(x)


@documented(_CONVOLUTION, returns="The output: batch, features, spatial dims.")
def conv(
    lhs: ArrayLike,
    rhs: ArrayLike,
    window_strides: Sequence[int],
    padding: str,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
) -> Array:
    """Convolve an array in the layout NCHW with a kernel in the layout OIHW, with any number of spatial dims.

    Args:
        lhs: the input: batch, features, spatial dims.
        rhs: the kernel, of the dtype of `lhs`: output features, input features, spatial dims.
        padding: "SAME", "SAME_LOWER" or "VALID"; see `conv_general_dilated`.

    Example:
        >>> lax.conv(jnp.ones((1, 1, 4)), jnp.ones((1, 1, 2)), (1,), "VALID")
        Array([[[2., 2., 2.]]], dtype=float32)
    """
    return conv_general_dilated(
        lhs, rhs, window_strides, padding, precision=precision, preferred_element_type=preferred_element_type
    )


@documented(_CONVOLUTION, returns="The output: batch, features, spatial dims.")
def conv_with_general_padding(
    lhs: ArrayLike,
    rhs: ArrayLike,
    window_strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    lhs_dilation: Sequence[int] | None,
    rhs_dilation: Sequence[int] | None,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
) -> Array:
    """Convolve an array in the layout NCHW with a kernel in the layout OIHW, with padding and dilations.

    Args:
        lhs: the input: batch, features, spatial dims.
        rhs: the kernel, of the dtype of `lhs`: output features, input features, spatial dims.

    Example:
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


@documented(_CONVOLUTION)
def conv_transpose(
    lhs: ArrayLike,
    rhs: ArrayLike,
    strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    transpose_kernel: bool = False,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
    use_consistent_padding: bool = False,
) -> Array:
    """Compute a transposed convolution: a convolution over `lhs` dilated by `strides`.

    Args:
        strides: the upsampling factor along each spatial dim.
        padding: "SAME" (the output has size * stride elements), "VALID", or pairs of numbers of zeros around the
            dilated input.
        dimension_numbers: a `ConvDimensionNumbers`, or three strings for input, kernel and output. None means NHWC,
            HWIO and NHWC, or their like for 0 to 3 spatial dims.
        transpose_kernel: flip the kernel and swap its input and output features. The result is then the gradient of a
            convolution with the kernel by its input.
        use_consistent_padding: interpret pairs in `padding` as the padding of the convolution of which this is the
            transpose.

    Example:
        >>> lax.conv_transpose(jnp.ones((1, 2, 1)), jnp.ones((2, 1, 1)), (2,), "SAME").shape
        (1, 4, 1)
    """
    name = "conv_transpose"
    x, kernel = type_of(lhs, name), as_operand(rhs, name)
    if dimension_numbers is None:
        if x.ndim not in _CHANNELS_LAST:
            raise ValueError(f"{name}: {x} needs dimension_numbers, which have defaults only for 0 to 3 spatial dims")
        dimension_numbers = _CHANNELS_LAST[x.ndim]
    numbers = conv_dimension_numbers(x.shape, kernel.type.shape, dimension_numbers)
    spatial, count = numbers.rhs_spec[2:], x.ndim - 2
    upsampling = integers(name, "strides", strides, count)
    dilation = (1,) * count if rhs_dilation is None else integers(name, "rhs_dilation", rhs_dilation, count)
    extents = [(kernel.type.shape[dim] - 1) * d + 1 for dim, d in zip(spatial, dilation, strict=True)]
    pads: Any = padding
    if isinstance(padding, str):
        pairs = zip(extents, upsampling, strict=True)
        pads = [transposed_padding(name, padding, extent, stride) for extent, stride in pairs]
    elif use_consistent_padding:
        pads = [(extent - 1 - low, extent - 1 - high) for extent, (low, high) in zip(extents, padding, strict=True)]
    if transpose_kernel:
        order = list(range(x.ndim))
        order[numbers.rhs_spec[0]], order[numbers.rhs_spec[1]] = numbers.rhs_spec[1], numbers.rhs_spec[0]
        kernel = permute(Reverse(tuple(spatial))(kernel), tuple(order))
    return conv_general_dilated(
        lhs,
        kernel,
        (1,) * count,
        pads,
        upsampling,
        dilation,
        numbers,
        precision=precision,
        preferred_element_type=preferred_element_type,
    )


def transposed_padding(name: str, padding: str, extent: int, stride: int) -> tuple[int, int]:
    """Return the padding of the dilated input for which each element has `stride` outputs; for "VALID", all outputs
    that any element contributes to.
    """
    if padding == "SAME":
        total = extent + stride - 2
        low = extent - 1 if stride > extent - 1 else -(-total // 2)
    elif padding == "VALID":
        total = extent + stride - 2 + max(extent - stride, 0)
        low = extent - 1
    else:
        raise ValueError(
            f"{name}: padding must be 'SAME', 'VALID' or a pair of numbers for each spatial dim, not {padding!r}"
        )
    return low, total - low


@documented(_CONVOLUTION)
def conv_general_dilated_patches(
    lhs: ArrayLike,
    filter_shape: Sequence[int],
    window_strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
) -> Array:
    """Extract the patches that a kernel of `filter_shape` would be applied to, as features.

    The features of the result are ordered by input feature, then by position in the window.

    Args:
        filter_shape: the window size along each spatial dim.

    Returns:
        The patches, with the dims of a convolution's output in the order of `dimension_numbers`.

    Example:
        >>> lax.conv_general_dilated_patches(jnp.arange(4.0).reshape(1, 1, 4), (2,), (1,), "VALID")
        Array([[[0., 1., 2.],
                [1., 2., 3.]]], dtype=float32)
    """
    name = "conv_general_dilated_patches"
    x = type_of(lhs, name)
    window = tuple(map(operator.index, filter_shape))
    numbers = conv_dimension_numbers(x.shape, (1,) * x.ndim, dimension_numbers)
    features, positions = x.shape[numbers.lhs_spec[1]], math.prod(window)
    # A one-hot kernel for each feature and position.
    one_hot = as_operand(np.eye(positions).reshape(positions, 1, *window).astype(x.dtype))
    per_feature = Broadcast((features, *one_hot.type.shape), tuple(range(1, x.ndim + 1)))(one_hot)
    kernel = Reshape((features * positions, *one_hot.type.shape[1:]))(per_feature)
    order = [numbers.rhs_spec.index(dim) for dim in range(x.ndim)]
    return conv_general_dilated(
        lhs,
        permute(kernel, tuple(order)),
        window_strides,
        padding,
        lhs_dilation,
        rhs_dilation,
        numbers,
        feature_group_count=features,
        precision=precision,
        preferred_element_type=preferred_element_type,
    )
