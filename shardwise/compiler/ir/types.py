"""ArrayType: the shape and dtype of a value. Types are interned: equal types are one object."""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol, TypeAlias, final

import numpy as np

from shardwise.base.config import config
from shardwise.compiler.dtypes import (
    DTYPE_NAMES,
    KEY_DTYPES,
    SHORT_NAMES,
    DType,
    DTypeLike,
    KeyDType,
    integer_range,
    is_inexact,
    is_integer,
    is_key,
    key_words,
    short_name,
)
from shardwise.compiler.shardings.explicit import ExplicitSharding
from shardwise.compiler.shardings.mesh import ONE_DEVICE, AbstractMesh, Mesh, mesh_context, mesh_of_types, typed_axes
from shardwise.compiler.shardings.named_sharding import NamedSharding, traced_sharding
from shardwise.compiler.shardings.spec import PartitionSpec
from shardwise.compiler.shardings.unreduced_kind import UnreducedKind, kind_of
from shardwise.errors import ShardingError


@final
@dataclass(frozen=True, kw_only=True)
class ManualAxisType:
    """The state of a value along the Manual axes of a mesh, inside `shard_map`: replicated along those not named.

    Args:
        varying: the axes along which each device has its own value.
        unreduced: the axes over which the value is the sum of the devices' terms.
        reduced: the axes along which the value is replicated, and its cotangent is unreduced.
        unreduced_kind: the reduction over the unreduced axes: `UnreducedKind.sum`, the default.

    Raises:
        ValueError: if a varying axis is unreduced or reduced too, or if there is a kind without unreduced axes.
        UnsupportedError: if the kind is not `sum`.

    Example:
        >>> jax.sharding.ManualAxisType(varying={"x"}).varying
        frozenset({'x'})
    """

    varying: frozenset[str] = frozenset()
    unreduced: frozenset[str] = frozenset()
    reduced: frozenset[str] = frozenset()
    unreduced_kind: UnreducedKind | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for name in ("varying", "unreduced", "reduced"):
            object.__setattr__(self, name, frozenset(getattr(self, name)))
        object.__setattr__(self, "unreduced_kind", kind_of(self.unreduced, self.unreduced_kind, "ManualAxisType"))
        if both := sorted(self.varying & (self.unreduced | self.reduced)):
            raise ValueError(f"ManualAxisType: axis {both[0]!r} is varying, and unreduced or reduced too")

    @property
    def empty(self) -> bool:
        """Whether the value is replicated along all Manual axes."""
        return not (self.varying or self.unreduced or self.reduced)

    def update(self, **changes: Any) -> "ManualAxisType":
        """Return this state with other sets of axes."""
        return replace(self, **{"unreduced_kind": None, **changes})

    def typed(self, sizes: Mapping[str, int]) -> "ManualAxisType":
        """Return this state without the axes that types do not show."""
        names = ("varying", "unreduced", "reduced")
        return self.update(**{name: frozenset(typed_axes(getattr(self, name), sizes)) for name in names})

    def invarying(self, mesh: Mesh | AbstractMesh) -> frozenset[str]:
        """Return the Manual axes of `mesh` along which the value is replicated."""
        return frozenset(mesh.abstract.manual_axes) - self.varying - self.unreduced - self.reduced


@final
class ArrayType:
    """The type of an array, printed as `f32[30,16]`.

    Attributes:
        shape: the sizes of the dims.
        dtype: the element type.
        weak: whether the type is weak, like the type of a Python scalar: other types win in promotion (`f32[]~`).
        varying: the names of the manual axes over which the value varies, sorted (`f32[30,16]{V:data}`). JAX: vma.
        explicit: the sharding along Explicit mesh axes (`f32[30@data,16]`); None if the value is replicated along them.
        ndim, size, nbytes: derived from the shape and the dtype.
    """

    __slots__ = ("dtype", "explicit", "nbytes", "ndim", "shape", "size", "varying", "weak")
    shape: tuple[int, ...]
    dtype: DType
    weak: bool
    varying: tuple[str, ...]
    explicit: ExplicitSharding | None
    ndim: int
    size: int
    nbytes: int
    _interned: ClassVar[dict[tuple[Any, ...], "ArrayType"]] = {}

    def __new__(
        cls,
        shape: tuple[int, ...],
        dtype: DTypeLike | KeyDType,
        weak: bool = False,
        varying: tuple[str, ...] = (),
        explicit: ExplicitSharding | None = None,
    ) -> "ArrayType":
        interned = cls._interned.get((shape, dtype, weak, varying, explicit))
        if interned is not None:
            return interned
        key = (
            tuple(map(int, shape)),
            dtype if isinstance(dtype, KeyDType) else np.dtype(dtype),
            weak,
            varying,
            explicit,
        )
        if key[1] not in DTYPE_NAMES:
            raise TypeError(f"arrays of {key[1]} are not supported; element types: {', '.join(SHORT_NAMES)}")
        if any(size < 0 for size in key[0]):
            raise TypeError(f"a size cannot be negative: shape {key[0]}")
        self = object.__new__(cls)
        size = math.prod(key[0])
        derived = {"ndim": len(key[0]), "size": size, "nbytes": size * key[1].itemsize}
        fields = {"shape": key[0], "dtype": key[1], "weak": weak, "varying": varying, "explicit": explicit}
        for name, part in {**fields, **derived}.items():
            object.__setattr__(self, name, part)
        return cls._interned.setdefault(key, self)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"ArrayType is immutable: cannot set {name}")

    def with_shape(self, shape: tuple[int, ...]) -> "ArrayType":
        """Return the type with another shape, replicated along Explicit axes."""
        return ArrayType(shape, self.dtype, self.weak, self.varying)

    def with_dtype(self, dtype: DTypeLike | KeyDType) -> "ArrayType":
        return ArrayType(self.shape, dtype, False, self.varying, self.explicit)

    def with_varying(self, axes: Iterable[str]) -> "ArrayType":
        """Return the type of a value that varies over `axes`."""
        return ArrayType(self.shape, self.dtype, self.weak, tuple(sorted(set(axes))), self.explicit)

    def with_explicit(self, explicit: ExplicitSharding | None) -> "ArrayType":
        """Return the type of a value with this sharding along Explicit axes."""
        return ArrayType(self.shape, self.dtype, self.weak, self.varying, explicit)

    def without(self, dims: tuple[int, ...]) -> "ArrayType":
        """Return the type without these dims, replicated along the Explicit axes that shard them."""
        shape = tuple(size for dim, size in enumerate(self.shape) if dim not in dims)
        return self.with_shape(shape).with_explicit(self.explicit and self.explicit.without_dims(dims))

    def with_dim(self, dim: int, size: int, explicit: ExplicitSharding | None = None) -> "ArrayType":
        """Return the type with a new dim. `explicit` is the sharding of an array with this dim alone.

        Along the axes that shard the new dim, the other dims are replicated.
        """
        typed = self.with_shape((*self.shape[:dim], size, *self.shape[dim:]))
        old = self.explicit
        if old is None:
            if explicit is None:
                return typed
            old = replace(explicit, dims=((),) * self.ndim)
        axes = explicit.dims[0] if explicit else ()
        dims, unreduced, reduced = old.dims, old.unreduced, old.reduced
        if axes:
            dims = tuple([tuple([axis for axis in of_dim if axis not in axes]) for of_dim in dims])
            unreduced, reduced = (tuple([a for a in of if a not in axes]) for of in (unreduced, reduced))
        dims = (*dims[:dim], axes, *dims[dim:])
        return typed.with_explicit(ExplicitSharding.from_dims(old.mesh, dims, unreduced, reduced, old.scoped))

    @property
    def plain(self) -> "ArrayType":
        """The type without varying axes and without sharding."""
        return ArrayType(self.shape, self.dtype, self.weak) if self.varying or self.explicit else self

    @property
    def sharding(self) -> NamedSharding:
        """The sharding along the Explicit axes of its mesh, which is abstract.

        Without Explicit axes, the mesh is the current mesh, else the mesh of the traced function's arguments.
        """
        explicit = self.explicit
        if explicit is None:
            current = mesh_context.region_mesh or mesh_context.mesh
            if current is None:
                current, mesh_context.reads_argument_mesh = mesh_context.argument_mesh, True
            mesh = ONE_DEVICE if current is None else mesh_of_types(current).abstract
            return NamedSharding(mesh, PartitionSpec(*[None] * self.ndim))
        entries = [None if not axes else axes[0] if len(axes) == 1 else axes for axes in explicit.dims]
        axes = explicit.mesh.abstract.explicit_axes
        unreduced, reduced = ([axis for axis in of if axis in axes] for of in (explicit.unreduced, explicit.reduced))
        return NamedSharding(explicit.mesh.abstract, PartitionSpec(*entries, unreduced=unreduced, reduced=reduced))

    @property
    def vma(self) -> frozenset[str]:
        """The axes over which the value varies, under JAX's name."""
        return frozenset(self.varying)

    @property
    def mat(self) -> ManualAxisType:
        """The state along Manual axes, under the short name that JAX uses."""
        return self.manual_axis_type

    @property
    def manual_axis_type(self) -> ManualAxisType:
        """The Manual axes over which the value varies, is unreduced, or is reduced."""
        if self.explicit is None:
            return ManualAxisType(varying=self.vma)
        manual = self.explicit.mesh.abstract.manual_axes
        unreduced, reduced = (
            frozenset(manual).intersection(a) for a in (self.explicit.unreduced, self.explicit.reduced)
        )
        return ManualAxisType(varying=self.vma, unreduced=unreduced, reduced=reduced)

    @property
    def weak_type(self) -> bool:
        """Whether the type is weak, under JAX's name."""
        return self.weak

    @property
    def physical(self) -> "ArrayType":
        """The type of the buffer on devices: for PRNG keys, their words."""
        if not is_key(self.dtype):
            return self
        words = self.explicit and replace(self.explicit, dims=(*self.explicit.dims, ()))
        return ArrayType((*self.shape, key_words(self.dtype)), np.uint32, False, self.varying, words)

    def to_tangent_aval(self) -> "ArrayType":
        """Return the type of tangents, under JAX's name; the type itself if it has no tangents."""
        return self.strong() if is_inexact(self.dtype) else self

    def at_least_vspace(self) -> "ArrayType":
        """Return the type of tangents, under the older name that JAX uses."""
        return self.to_tangent_aval()

    def strip_weak_type(self) -> "ArrayType":
        """Return the type that is not weak, under JAX's name."""
        return self.strong()

    def strong(self) -> "ArrayType":
        return ArrayType(self.shape, self.dtype, False, self.varying, self.explicit) if self.weak else self

    def update(
        self,
        shape: tuple[int, ...] | None = None,
        dtype: DTypeLike | None = None,
        weak_type: bool | None = None,
        sharding: Any = None,
        manual_axis_type: ManualAxisType | None = None,
    ) -> "ArrayType":
        """Return the type with another shape, dtype, weak type, sharding or state along Manual axes.

        With another rank and no `sharding`, it is replicated.
        """
        shape = self.shape if shape is None else tuple(shape)
        explicit = self.explicit if len(shape) == self.ndim else None
        type = ArrayType(
            shape,
            self.dtype if dtype is None else dtype,
            self.weak if weak_type is None else weak_type,
            self.varying,
            explicit if sharding is None else traced_sharding(sharding, shape),
        )
        return type if manual_axis_type is None else type.update_manual_axis_type(manual_axis_type)

    def update_manual_axis_type(self, mat: ManualAxisType) -> "ArrayType":
        """Return the type with another state along the Manual axes of the current `shard_map`."""
        if mesh_context.region_mesh is not None:
            mat = mat.typed(mesh_context.region_mesh.shape)
        type = self.with_varying(mat.varying)
        if self.explicit is not None:
            return type.with_explicit(self.explicit.with_manual_sums(mat.unreduced, mat.reduced))
        axes = sorted(mat.unreduced | mat.reduced)
        if not axes:
            return type
        mesh = mesh_context.region_mesh
        if mesh is None:
            raise ShardingError(
                f"a type cannot be unreduced or reduced along {axes[0]!r} here: no shard_map over this axis is being "
                "traced, and the type has no sharding on a mesh where the axis is Manual."
            )
        replicated = ((),) * self.ndim
        return type.with_explicit(
            ExplicitSharding.from_dims(mesh_of_types(mesh).abstract, replicated, mat.unreduced, mat.reduced)
        )

    def update_weak_type(self, weak_type: bool) -> "ArrayType":
        """Return the type with another weak type."""
        return ArrayType(self.shape, self.dtype, weak_type, self.varying, self.explicit)

    def str_short(self, short_dtypes: bool = False) -> str:
        """Format the type without the mark of a weak type: `float32[8,4]`, or `f32[8,4]` with short dtypes."""
        return self._format(short_name(self.dtype) if short_dtypes else self.dtype.name, "")

    def _format(self, dtype: str, mark: str) -> str:
        dims = self.explicit.format_dims(self.shape) if self.explicit else ",".join(map(str, self.shape))
        sums = (self.explicit.unreduced, self.explicit.reduced) if self.explicit else ((), ())
        groups = [
            f"{name}:{axes[0] if len(axes) == 1 else '(' + ','.join(axes) + ')'}"
            for name, axes in zip("VUR", (self.varying, *sums), strict=True)
            if axes
        ]
        return f"{dtype}[{dims}]{mark}{'{' + ', '.join(groups) + '}' if groups else ''}"

    @property
    def program_text(self) -> str:
        """The type in printed programs, which `parse_type` reads: `f32[8,4]`, `f32[]~` if it is weak."""
        return self._format(short_name(self.dtype), "~" if self.weak else "")

    def __str__(self) -> str:
        """Return `f32[8,4]`, or JAX's `float32[8,4]` if `jax_compatibility` is "exact"."""
        if config.is_exact:
            return f"{'~' if self.weak else ''}{self.str_short()}"
        # A weak type has no effect on booleans, so messages do not mark it.
        return self.strong().program_text if self.dtype == np.bool_ else self.program_text

    def __repr__(self) -> str:
        if config.is_exact:
            return f"ShapedArray({self.str_short()}{', weak_type=True' if self.weak else ''})"
        return self.program_text

    def __reduce__(self) -> tuple[Any, ...]:
        return ArrayType, (self.shape, self.dtype, self.weak, self.varying, self.explicit)


def spec_text(type: ArrayType) -> str:
    """Format the PartitionSpec of a type along Explicit axes as a user writes it: `P('x', None)`."""
    return str(type.sharding.spec)


# dtype, dims with their Explicit axes, weak type; varying, unreduced and reduced axes
_SIZE = r"\d+(?:@(?:\w+|\([\w,]+\)))?"
_GROUP = r"[VUR]:(?:\([^(){}\n]+\)|[^(){},\n]+)"
TYPE_PATTERN = rf"([\w<>]+)\[((?:{_SIZE})?(?:,{_SIZE})*)\](~?)(?:\{{({_GROUP}(?:, {_GROUP})*)\}})?"


class Typed:
    """Base of classes with a `type`, which adds shape, dtype and so on as attributes, as arrays have them."""

    __slots__ = ()
    type: ArrayType

    @property
    def shape(self) -> tuple[int, ...]:
        return self.type.shape

    @property
    def dtype(self) -> Any:
        return self.type.dtype

    @property
    def aval(self) -> ArrayType:
        """The type, under JAX's name."""
        return self.type

    @property
    def weak_type(self) -> bool:
        return self.type.weak

    @property
    def ndim(self) -> int:
        return self.type.ndim

    @property
    def size(self) -> int:
        return self.type.size

    @property
    def nbytes(self) -> int:
        return self.type.nbytes


_DTYPES = {**SHORT_NAMES, **{dtype.name: dtype for dtype in KEY_DTYPES.values()}}


def parse_type(text: str, mesh: AbstractMesh | None = None, scoped: bool = False) -> ArrayType:
    """Parse a printed type. Its Explicit axes refer to `mesh`, which may be scoped to a part of the program.

    Raises:
        ValueError: if `text` is not a type.
    """
    match = re.fullmatch(TYPE_PATTERN, text)
    dtype = None if match is None else _DTYPES.get(match[1])
    if match is None or dtype is None:
        raise ValueError(f"not a type: {text!r}")
    dims = [(size, one or several) for size, one, several in re.findall(r"(\d+)(?:@(?:(\w+)|\(([\w,]+)\)))?", match[2])]
    groups = {
        name: tuple((several or one).split(","))
        for name, several, one in re.findall(r"([VUR]):(?:\(([^()]+)\)|([^,]+))", match[4] or "")
    }
    type = ArrayType(tuple(int(size) for size, _ in dims), dtype, bool(match[3]), groups.pop("V", ()))
    if not (groups or scoped or any(axes for _, axes in dims)):
        return type
    if mesh is None:
        raise ValueError(f"{text} names Explicit axes, but its mesh is not known")
    explicit = ExplicitSharding.from_dims(
        mesh,
        [tuple(axes.split(",")) if axes else () for _, axes in dims],
        groups.get("U", ()),
        groups.get("R", ()),
        scoped,
    )
    parsed = type.with_explicit(explicit)
    if parsed.program_text != text:
        raise ValueError(f"the mesh {mesh} has not all the Explicit axes of {text}")
    return parsed


def explain_marks(text: str) -> str:
    """Return sentences that explain the marks of types in `text`; "" without marks.

    The marks are those of `f32[]~`, which JAX writes `~float32[]`, and of `f32[4]{V:data}`.
    """
    dims = rf"\[(?:{_SIZE})?(?:,{_SIZE})*\]"
    marks = re.findall(rf"(~?)\b[\w<>]+{dims}(~?)(?:\{{V:(?:\(([^(){{}}\n]+)\)|([^(){{}},\n]+)))?", text)
    lines = []
    if any(before or after for before, after, _, _ in marks):
        lines.append("`~` marks a weak type, that of a Python number: in promotion, the dtype of an array wins.")
    for axes in dict.fromkeys(several or one for _, _, several, one in marks if several or one):
        names = axes.split(",")
        group = axes if len(names) == 1 else f"({axes})"
        quoted = " and ".join(map(repr, names))
        lines.append(f"`V:{group}` marks a value that varies over the mesh axis {quoted}: it differs between devices.")
    return "".join(f"\n  {line}" for line in lines)


class SupportsArray(Protocol):
    """An object that numpy converts with `__array__`: a numpy array or scalar, or a concrete array."""

    def __array__(self) -> np.ndarray[Any, Any]: ...


ScalarLike: TypeAlias = complex | SupportsArray  # a Python or numpy scalar, or a concrete array of rank 0


@final
@dataclass(frozen=True)
class Scalar:
    """A constant that is compared by its bytes: 0.0 and -0.0 differ, and NaN equals itself."""

    dtype: DType
    data: bytes

    @staticmethod
    def from_value(value: ScalarLike, dtype: DTypeLike) -> "Scalar":
        """Return `value` converted to `dtype`. Python integers wrap around (-1 is 255 as u8).

        Raises:
            OverflowError: if a Python integer fits neither `dtype` nor 32 bits.
        """
        if type(value) is int and is_integer(np.dtype(dtype)):
            ranges = (integer_range(np.dtype(dtype)), integer_range(np.dtype(np.int32)))
            if not any(low <= value <= high for low, high in ranges):
                raise OverflowError(f"the integer {value} does not fit {short_name(np.dtype(dtype))}")
        array = np.asarray(value).astype(dtype)
        return Scalar(array.dtype, array.tobytes())

    @property
    def array(self) -> Any:
        return np.frombuffer(self.data, self.dtype)[0]

    def __str__(self) -> str:
        """Return `f32(0.5)` or `c64(0.5, -0.0)`; a NaN with a payload prints as its bits."""
        item = self.array.item()
        parts = (item.real, item.imag) if self.dtype.kind == "c" else (item,)
        text = ", ".join(map(repr, parts))
        if any(part != part for part in parts):
            quiet = [float(repr(part)) for part in parts]
            if Scalar.from_value(complex(*quiet) if self.dtype.kind == "c" else quiet[0], self.dtype) != self:
                text = f"0x{self.data[::-1].hex()}"
        return f"{short_name(self.dtype)}({text})"
