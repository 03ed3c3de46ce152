"""scipy.spatial.transform: rotations in three dimensions as quaternions, and their interpolation.

Quaternions are (x, y, z, w) along the last dim. All functions accept any number of leading dims.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import shardwise.numpy as jnp
from shardwise import random
from shardwise.base.lazy import publish
from shardwise.compiler.arrays.methods import Array
from shardwise.compiler.arrays.operands import as_inexact
from shardwise.typing import ArrayLike, DTypeLike

_SMALL_ANGLE = 1e-3  # below it, series are exact in single precision
_GIMBAL_LOCK = 1e-7


class Rotation(NamedTuple):
    """A rotation in three dimensions, or an array of them; a pytree of its quaternions.

    Attributes:
        quat: the quaternions (x, y, z, w) along the last dim, of norm 1.

    Example:
        >>> quarter = jax.scipy.spatial.transform.Rotation.from_euler("z", 90, degrees=True)
        >>> quarter.apply(jnp.array([1.0, 0.0, 0.0])).round(3)
        Array([0., 1., 0.], dtype=float32)
    """

    quat: Any

    @classmethod
    def concatenate(cls, rotations: "Sequence[Rotation]") -> "Rotation":
        """Return the rotations of several arrays as one."""
        return cls(jnp.concatenate([rotation.quat for rotation in rotations]))

    @classmethod
    def from_euler(cls, seq: str, angles: ArrayLike, degrees: bool = False) -> "Rotation":
        """Return rotations by angles about axes, one after the other.

        `seq` has one to three letters: xyz for axes that are fixed, XYZ for axes that move with the body. The last dim
        of `angles` has one angle per letter; for one letter, a scalar will do.
        """
        axes, is_intrinsic = _axes(seq, "from_euler", {1, 2, 3})
        half = jnp.atleast_1d(as_inexact(jnp.asarray(angles), "from_euler")) / 2
        if half.shape[-1] != len(axes):
            raise ValueError(
                f"from_euler: {seq!r} has {len(axes)} axes, but the last dim of the angles has {half.shape[-1]}"
            )
        if degrees:
            half = jnp.deg2rad(half)
        total = cls.identity(dtype=half.dtype).quat
        for index, axis in enumerate(axes):
            angle = half[..., index]
            parts = [jnp.zeros_like(angle)] * 3 + [jnp.cos(angle)]
            parts[axis] = jnp.sin(angle)
            turn = jnp.stack(parts, -1)
            total = _compose(total, turn) if is_intrinsic else _compose(turn, total)
        return cls(total)

    @classmethod
    def from_matrix(cls, matrix: ArrayLike) -> "Rotation":
        """Return the rotations of orthogonal matrices of determinant 1."""
        m = as_inexact(jnp.asarray(matrix), "from_matrix")
        if m.shape[-2:] != (3, 3):
            raise ValueError(f"from_matrix: expected matrices of shape (..., 3, 3), not {m.shape}")
        trace = m[..., 0, 0] + m[..., 1, 1] + m[..., 2, 2]
        difference = [m[..., 2, 1] - m[..., 1, 2], m[..., 0, 2] - m[..., 2, 0], m[..., 1, 0] - m[..., 0, 1]]
        # Each candidate is the quaternion times four times one of its components; the largest component is exact.
        candidates = [
            [1 - trace + 2 * m[..., i, i] if i == j else m[..., i, j] + m[..., j, i] for j in range(3)]
            + [difference[i]]
            for i in range(3)
        ]
        candidates.append([*difference, 1 + trace])
        stacked = jnp.stack([jnp.stack(candidate, -1) for candidate in candidates], -2)
        largest = jnp.argmax(jnp.stack([m[..., 0, 0], m[..., 1, 1], m[..., 2, 2], trace], -1), -1)
        return cls.from_quat(jnp.take_along_axis(stacked, largest[..., None, None], -2)[..., 0, :])

    @classmethod
    def from_mrp(cls, mrp: ArrayLike) -> "Rotation":
        """Return the rotations of modified Rodrigues parameters: the axis times the tangent of a quarter angle."""
        vector = as_inexact(jnp.asarray(mrp), "from_mrp")
        square = jnp.sum(vector**2, -1, keepdims=True)
        return cls(jnp.concatenate([2 * vector, 1 - square], -1) / (1 + square))

    @classmethod
    def from_quat(cls, quat: ArrayLike) -> "Rotation":
        """Return the rotations of quaternions, which are normalized."""
        quat = as_inexact(jnp.asarray(quat), "from_quat")
        if quat.shape[-1:] != (4,):
            raise ValueError(f"from_quat: expected quaternions of shape (..., 4), not {quat.shape}")
        return cls(quat / jnp.linalg.norm(quat, axis=-1, keepdims=True))

    @classmethod
    def from_rotvec(cls, rotvec: ArrayLike, degrees: bool = False) -> "Rotation":
        """Return the rotations of vectors: the axis times the angle."""
        vector = as_inexact(jnp.asarray(rotvec), "from_rotvec")
        if degrees:
            vector = jnp.deg2rad(vector)
        square = jnp.sum(vector**2, -1, keepdims=True)
        is_small = square < _SMALL_ANGLE**2
        angle = jnp.sqrt(jnp.where(is_small, 1, square))
        scale = jnp.where(is_small, 0.5 - square / 48, jnp.sin(angle / 2) / angle)
        return cls(jnp.concatenate([vector * scale, jnp.where(is_small, 1 - square / 8, jnp.cos(angle / 2))], -1))

    @classmethod
    def identity(cls, num: int | None = None, dtype: DTypeLike = float) -> "Rotation":
        """Return the rotation by 0, or an array of `num` of them."""
        quat = jnp.array([0, 0, 0, 1], dtype)
        return cls(quat if num is None else jnp.tile(quat, (num, 1)))

    @classmethod
    def random(cls, random_key: ArrayLike, num: int | None = None) -> "Rotation":
        """Return a uniformly distributed rotation, or an array of `num` of them."""
        return cls.from_quat(random.normal(random_key, (4,) if num is None else (num, 4)))

    def __getitem__(self, indexer: Any) -> "Rotation":
        if self.single:
            raise TypeError("a single Rotation cannot be indexed")
        return Rotation(self.quat[indexer])

    def __len__(self) -> int:
        if self.single:
            raise TypeError("a single Rotation has no length")
        return int(self.quat.shape[0])

    def __mul__(self, other: "Rotation") -> "Rotation":  # type: ignore[override]
        """Return the rotation by `other`, followed by this one."""
        return Rotation.from_quat(_compose(self.quat, other.quat))

    def apply(self, vectors: ArrayLike, inverse: bool = False) -> Array:
        """Rotate vectors, which are along the last dim."""
        matrix = self.as_matrix()
        return jnp.einsum("...ji,...j->...i" if inverse else "...ij,...j->...i", matrix, vectors)

    def as_euler(self, seq: str, degrees: bool = False) -> Array:
        """Return the angles about three axes; see `from_euler`. In gimbal lock, the last angle is 0."""
        axes, is_intrinsic = _axes(seq, "as_euler", {3})
        i, j, k = reversed(axes) if is_intrinsic else axes
        is_symmetric = i == k
        if is_symmetric:
            k = 3 - i - j
        sign = (i - j) * (j - k) * (k - i) // 2
        x, w = self.quat, self.quat[..., 3]
        if is_symmetric:
            a, b, c, d = w, x[..., i], x[..., j], x[..., k] * sign
        else:
            a, b = w - x[..., j], x[..., i] + x[..., k] * sign
            c, d = w + x[..., j], x[..., k] * sign - x[..., i]
        middle = 2 * jnp.arctan2(jnp.hypot(c, d), jnp.hypot(a, b))
        half_sum, half_difference = jnp.arctan2(b, a), jnp.arctan2(d, c)
        is_zero = jnp.abs(middle) <= _GIMBAL_LOCK
        is_locked = is_zero | (jnp.abs(middle - math.pi) <= _GIMBAL_LOCK)
        alone = jnp.where(is_zero, 2 * half_sum, 2 * half_difference * (1 if is_intrinsic else -1))
        first, third = half_sum - half_difference, half_sum + half_difference
        if not is_symmetric:
            middle = middle - math.pi / 2
        if is_intrinsic:
            first, third = third, first
            first, third = jnp.where(is_locked, alone, first), jnp.where(is_locked, 0, third)
            first = first if is_symmetric else first * sign
        else:
            first, third = jnp.where(is_locked, alone, first), jnp.where(is_locked, 0, third)
            third = third if is_symmetric else third * sign
        angles = jnp.stack([first, middle, third], -1)
        angles = (angles + math.pi) % (2 * math.pi) - math.pi
        return jnp.rad2deg(angles) if degrees else angles

    def as_matrix(self) -> Array:
        """Return the matrices, in the last two dims."""
        x, y, z, w = (self.quat[..., index] for index in range(4))
        rows = [
            [x * x - y * y - z * z + w * w, 2 * (x * y - z * w), 2 * (x * z + y * w)],
            [2 * (x * y + z * w), -x * x + y * y - z * z + w * w, 2 * (y * z - x * w)],
            [2 * (x * z - y * w), 2 * (y * z + x * w), -x * x - y * y + z * z + w * w],
        ]
        return jnp.stack([jnp.stack(row, -1) for row in rows], -2)

    def as_mrp(self) -> Array:
        """Return the modified Rodrigues parameters; see `from_mrp`."""
        vector, w = self.quat[..., :3], self.quat[..., 3:]
        return jnp.where(w < 0, -1, 1) * vector / (1 + jnp.abs(w))

    def as_rotvec(self, degrees: bool = False) -> Array:
        """Return the rotation vectors: the axis times the angle, which is at most π."""
        vector, w = self.quat[..., :3], self.quat[..., 3:]
        vector, w = jnp.where(w < 0, -vector, vector), jnp.abs(w)
        square = jnp.sum(vector**2, -1, keepdims=True)
        is_small = square < (_SMALL_ANGLE / 2) ** 2
        sine = jnp.sqrt(jnp.where(is_small, 1, square))
        scale = jnp.where(is_small, 2 + square / 3, 2 * jnp.arctan2(sine, w) / sine)
        rotvec = vector * scale
        return jnp.rad2deg(rotvec) if degrees else rotvec

    def as_quat(self, canonical: bool = False, scalar_first: bool = False) -> Array:
        """Return the quaternions.

        With `canonical`, the first component that is not 0, in the order w, x, y, z, is positive. With `scalar_first`,
        w is the first component.
        """
        quat = self.quat
        if canonical:
            sign = jnp.zeros_like(quat[..., 0])
            for number in (3, 0, 1, 2):
                sign = jnp.where(sign == 0, jnp.sign(quat[..., number]), sign)
            quat = quat * jnp.where(sign < 0, -1, 1)[..., None].astype(quat.dtype)
        return jnp.roll(quat, 1, -1) if scalar_first else quat

    def inv(self) -> "Rotation":
        """Return the inverse rotations."""
        return Rotation(self.quat * jnp.array([-1, -1, -1, 1], self.quat.dtype))

    def magnitude(self) -> Array:
        """Return the angles, from 0 to π."""
        return 2 * jnp.arctan2(jnp.linalg.norm(self.quat[..., :3], axis=-1), jnp.abs(self.quat[..., 3]))

    def mean(self, weights: ArrayLike | None = None) -> "Rotation":
        """Return the mean of an array of rotations: the one with the least weighted sum of squared distances."""
        count = len(self)
        weights = jnp.ones(count, self.quat.dtype) if weights is None else jnp.asarray(weights, self.quat.dtype)
        if weights.shape != (count,):
            raise ValueError(f"mean: expected one weight for each of {count} rotations, not {weights.shape}")
        return Rotation(jnp.linalg.eigh((weights * self.quat.T) @ self.quat)[1][:, -1])

    @property
    def single(self) -> bool:
        """Whether it is one rotation and not an array."""
        return bool(self.quat.ndim == 1)


def _axes(seq: str, name: str, counts: set[int]) -> tuple[list[int], bool]:
    """Return the dims of axes, and whether they move with the body."""
    is_intrinsic = seq.isupper()
    axes = ["xyz".find(letter) for letter in seq.lower()]
    repeats = any(first == second for first, second in pairwise(axes))
    if len(axes) not in counts or -1 in axes or repeats or not (is_intrinsic or seq.islower()):
        raise ValueError(
            f"{name}: expected {' or '.join(map(str, sorted(counts)))} letters of 'xyz' or of 'XYZ', of which no two "
            f"adjacent ones are equal, not {seq!r}"
        )
    return axes, is_intrinsic


def _compose(p: Array, q: Array) -> Any:
    """Return the product of quaternions."""
    p_vector, p_scalar, q_vector, q_scalar = p[..., :3], p[..., 3:], q[..., :3], q[..., 3:]
    vector = p_scalar * q_vector + q_scalar * p_vector + jnp.cross(p_vector, q_vector)
    return jnp.concatenate([vector, p_scalar * q_scalar - jnp.sum(p_vector * q_vector, -1, keepdims=True)], -1)


class Slerp(NamedTuple):
    """Spherical linear interpolation between rotations, which `Slerp.init` creates.

    Attributes:
        times: the times of the rotations.
        timedelta: the differences of successive times.
        rotations: the rotations, without the last.
        rotvecs: the rotation vectors from each rotation to the next.

    Example:
        >>> transform = jax.scipy.spatial.transform
        >>> ends = transform.Rotation.from_euler("z", jnp.array([[0.0], [90.0]]), degrees=True)
        >>> transform.Slerp.init([0, 1], ends)(0.5).as_euler("zyx", degrees=True).round(2)
        Array([45.,  0.,  0.], dtype=float32)
    """

    times: Any
    timedelta: Any
    rotations: Rotation
    rotvecs: Any

    @classmethod
    def init(cls, times: ArrayLike, rotations: Rotation) -> "Slerp":
        """Return the interpolation of an array of rotations at increasing times."""
        if not isinstance(rotations, Rotation):
            raise TypeError(f"Slerp: rotations must be a Rotation, not {rotations!r}")
        if rotations.single or len(rotations) < 2:
            raise ValueError("Slerp: rotations must be an array of at least 2 rotations")
        times = jnp.asarray(times, rotations.quat.dtype)
        if times.shape != (len(rotations),):
            raise ValueError(f"Slerp: expected one time for each of {len(rotations)} rotations, not {times.shape}")
        first, second = Rotation(rotations.quat[:-1]), Rotation(rotations.quat[1:])
        return cls(times, jnp.diff(times), first, (first.inv() * second).as_rotvec())

    def __call__(self, times: ArrayLike) -> Rotation:
        """Return the rotations at times, a scalar or a vector."""
        at = jnp.asarray(times, self.times.dtype)
        if at.ndim > 1:
            raise ValueError(f"Slerp: times must be a scalar or a vector, not of shape {at.shape}")
        before = jnp.clip(jnp.searchsorted(self.times, at) - 1, 0, len(self.timedelta) - 1)
        part = (at - self.times[before]) / self.timedelta[before]
        return self.rotations[before] * Rotation.from_rotvec(self.rotvecs[before] * part[..., None])


publish(__name__)
