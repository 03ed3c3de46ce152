"""scipy.spatial.transform, compared with SciPy's own."""

import numpy as np
import pytest
from scipy.spatial import transform as oracle

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.scipy.spatial.transform import Rotation, Slerp
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P

RNG = np.random.default_rng(3)
QUATS = RNG.normal(size=(6, 4)).astype(np.float32)
VECTORS = RNG.normal(size=(6, 3)).astype(np.float32)
OURS, EXPECTED = Rotation.from_quat(QUATS), oracle.Rotation.from_quat(QUATS)


def close(ours, expected, atol=2e-6):
    np.testing.assert_allclose(np.asarray(ours), expected, rtol=1e-5, atol=atol)


def same_rotation(ours, expected):
    close(ours.as_matrix(), expected.as_matrix())


def test_representations():
    close(OURS.as_matrix(), EXPECTED.as_matrix())
    close(OURS.as_rotvec(), EXPECTED.as_rotvec(), 1e-5)
    close(OURS.as_rotvec(degrees=True), EXPECTED.as_rotvec(degrees=True), 1e-3)
    close(OURS.as_mrp(), EXPECTED.as_mrp())
    close(OURS.as_quat(canonical=True), EXPECTED.as_quat(canonical=True))
    close(OURS.as_quat(scalar_first=True), np.roll(EXPECTED.as_quat(), 1, -1))
    close(OURS.magnitude(), EXPECTED.magnitude(), 1e-5)
    edges = np.array([[0, 0, 0, -1], [0, 0, -1, 0], [0, -1, 1, 0], [-1, 0, 1, 0]], np.float32)
    expected = oracle.Rotation.from_quat(edges).as_quat(canonical=True)
    close(Rotation.from_quat(edges).as_quat(canonical=True), expected)


def test_construction():
    same_rotation(Rotation.from_matrix(EXPECTED.as_matrix().astype(np.float32)), EXPECTED)
    for vectors in (VECTORS, 1e-4 * VECTORS, 0 * VECTORS, 180 * VECTORS):
        same_rotation(Rotation.from_rotvec(vectors, degrees=True), oracle.Rotation.from_rotvec(vectors, degrees=True))
        close(Rotation.from_rotvec(vectors / 200).as_rotvec(), vectors / 200, 1e-5)
    same_rotation(Rotation.from_mrp(VECTORS), oracle.Rotation.from_mrp(VECTORS))
    half_turns = oracle.Rotation.from_euler("xyz", [[180, 0, 0], [0, 180, 0], [0, 0, 180]], degrees=True)
    same_rotation(Rotation.from_matrix(half_turns.as_matrix()), half_turns)
    assert Rotation.identity().quat.tolist() == [0, 0, 0, 1]
    assert Rotation.identity(2).quat.tolist() == [[0, 0, 0, 1]] * 2
    same_rotation(Rotation.concatenate([OURS[:2], OURS[2:]]), EXPECTED)


@pytest.mark.parametrize("seq", ["xyz", "zyx", "zxz", "yxy", "XYZ", "ZXY", "ZYZ", "XZX"])
def test_euler_angles(seq):
    angles = RNG.uniform(-1.5, 1.5, size=(5, 3)).astype(np.float32)
    same_rotation(Rotation.from_euler(seq, angles), oracle.Rotation.from_euler(seq, angles))
    close(OURS.as_euler(seq), EXPECTED.as_euler(seq), 1e-4)
    close(OURS.as_euler(seq, degrees=True), EXPECTED.as_euler(seq, degrees=True), 1e-2)


def test_euler_angles_of_one_axis():
    same_rotation(Rotation.from_euler("z", 90, degrees=True), oracle.Rotation.from_euler("z", 90, degrees=True))
    same_rotation(Rotation.from_euler("XY", [0.1, 0.2]), oracle.Rotation.from_euler("XY", [0.1, 0.2]))
    angles = np.array([[0.1], [0.2]], np.float32)
    same_rotation(Rotation.from_euler("y", angles), oracle.Rotation.from_euler("y", angles))


@pytest.mark.filterwarnings("ignore:Gimbal lock")
@pytest.mark.parametrize("seq", ["xyz", "XYZ", "zxz", "ZXZ"])
def test_gimbal_lock(seq):
    middle = 0.0 if seq.lower() == "zxz" else np.pi / 2
    with sw.enable_x64(True):
        expected = oracle.Rotation.from_euler(seq, [0.3, middle, 0.4])
        close(Rotation.from_quat(expected.as_quat()).as_euler(seq), expected.as_euler(seq))


def test_products_and_vectors():
    others = oracle.Rotation.from_rotvec(VECTORS)
    same_rotation(OURS * Rotation.from_rotvec(VECTORS), EXPECTED * others)
    same_rotation(OURS.inv(), EXPECTED.inv())
    close(OURS.apply(VECTORS), EXPECTED.apply(VECTORS))
    close(OURS.apply(VECTORS, inverse=True), EXPECTED.apply(VECTORS, inverse=True))
    close(OURS[0].apply(VECTORS), EXPECTED[0].apply(VECTORS))
    weights = np.arange(1.0, 7.0)
    same_rotation(OURS.mean(), EXPECTED.mean())
    same_rotation(OURS.mean(weights), EXPECTED.mean(weights))
    assert len(OURS) == 6 and not OURS.single and OURS[1].single


def test_random_rotations_are_unit_quaternions():
    rotations = Rotation.random(sw.random.key(0), 5)
    close(jnp.linalg.norm(rotations.quat, axis=-1), np.ones(5))
    assert Rotation.random(sw.random.key(0)).single


@pytest.mark.slow
def test_slerp():
    times = [0.0, 1.0, 3.0, 4.0, 5.0, 7.0]
    at = np.array([0.0, 0.25, 1.0, 2.5, 6.9, 7.0])
    ours, expected = Slerp.init(times, OURS), oracle.Slerp(times, EXPECTED)
    same_rotation(ours(at), expected(at))
    same_rotation(ours(2.5), expected(2.5))
    same_rotation(sw.jit(lambda slerp, at: slerp(at))(ours, at), expected(at))


def test_derivatives_at_zero_are_finite():
    close(sw.jacobian(lambda v: Rotation.from_rotvec(v).as_rotvec())(jnp.zeros(3)), np.eye(3))


def test_sharded_over_eight_devices(mesh):
    quats = np.tile(QUATS[:4], (2, 1))
    sharded = sw.device_put(quats, NamedSharding(mesh, P("data")))
    vectors = np.tile(VECTORS[:4], (2, 1))
    out = sw.jit(lambda quats: Rotation.from_quat(quats).apply(vectors))(sharded)
    close(out, oracle.Rotation.from_quat(quats).apply(vectors))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: Rotation.from_euler("xx", [1, 2]), ValueError, "no two adjacent ones are equal, not 'xx'"),
        (lambda: Rotation.from_euler("xY", [1, 2]), ValueError, "of 'xyz' or of 'XYZ'"),
        (lambda: Rotation.from_euler("xyz", [1, 2]), ValueError, "'xyz' has 3 axes, but the last dim .* has 2"),
        (lambda: OURS.as_euler("xy"), ValueError, "as_euler: expected 3 letters"),
        (lambda: Rotation.from_quat(np.ones(3)), ValueError, "quaternions of shape"),
        (lambda: Rotation.from_matrix(np.ones((2, 2))), ValueError, "matrices of shape"),
        (lambda: OURS[0][0], TypeError, "cannot be indexed"),
        (lambda: len(OURS[0]), TypeError, "has no length"),
        (lambda: OURS.mean([1.0]), ValueError, "one weight for each of 6 rotations"),
        (lambda: Slerp.init([0], QUATS), TypeError, "must be a Rotation"),
        (lambda: Slerp.init([0], OURS[:1]), ValueError, "at least 2 rotations"),
        (lambda: Slerp.init([0, 1], OURS), ValueError, "one time for each of 6 rotations"),
        (lambda: Slerp.init(np.arange(6), OURS)(np.zeros((2, 2))), ValueError, "a scalar or a vector"),
    ],
)
def test_bad_input(call, error, message):
    with pytest.raises(error, match=message):
        call()
