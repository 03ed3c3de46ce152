"""Types without mesh axes of size 1, `remove_size_one_mesh_axis_from_type`: as JAX has them."""

import jax
import numpy as np
import pytest

import shardwise as sw

pytestmark = pytest.mark.jax

X = np.arange(16, dtype=np.float32).reshape(8, 2)


def same_in_both(program, sizes=(2, 1), names=("x", "y")):
    """Check that a program of a library and a mesh has the same types, and return these."""
    texts = []
    for lib in (sw, jax):
        mesh = lib.make_mesh(sizes, names, axis_types=(lib.sharding.AxisType.Explicit,) * len(names))
        seen = []

        def note(x, lib=lib, seen=seen):
            type = lib.typeof(x)
            spec = type.sharding.spec
            mat = type.manual_axis_type
            sets = (spec.unreduced, spec.reduced, mat.varying, mat.unreduced, mat.reduced)
            seen.append((type.shape, tuple(spec), *(tuple(sorted(axes)) for axes in sets)))
            return x

        with lib.remove_size_one_mesh_axis_from_type(True), lib.set_mesh(mesh):
            result = program(lib, note)
        texts.append((seen, tuple(note(result).sharding.spec), np.asarray(result).tolist()))
    ours, theirs = texts
    assert ours == theirs
    return ours


@pytest.mark.parametrize("axes", [("x", "y"), (("x", "y"),), ("y",)], ids=str)
def test_types_of_arguments_results_and_constraints(axes):
    def program(lib, note):
        P = lib.sharding.PartitionSpec
        array = note(lib.device_put(X, P(*axes)))

        @lib.jit
        def f(x):
            out = note(note(x) * 2)
            return note(lib.lax.with_sharding_constraint(out, P(*axes)))

        return f(array)

    same_in_both(program)


def test_reshard_and_contraction():
    def program(lib, note):
        P = lib.sharding.PartitionSpec

        @lib.jit
        def f(x, w):
            product = note(lib.numpy.einsum("ij,jk->ik", x, w, out_sharding=P("x", "y")))
            return note(lib.reshard(product, P(None, "y")))

        return f(lib.device_put(X, P("x", None)), lib.device_put(X[:2], P("y", None)))

    same_in_both(program)


@pytest.mark.parametrize("out", [("x",), ("x", "y"), ()], ids=str)
def test_types_inside_shard_map(out):
    def program(lib, note):
        P = lib.sharding.PartitionSpec

        def body(x):
            x = note(lib.lax.pcast(note(x), "y", to="varying"))
            x = note(lib.lax.psum(x, "y"))
            x = note(x + lib.lax.axis_index("y"))
            return note(x) if out else note(lib.lax.psum(x, "x"))

        return lib.jit(lib.shard_map(body, in_specs=P("x", "y"), out_specs=P(*out)))(lib.device_put(X, P("x", "y")))

    same_in_both(program)


def test_gradients_through_shard_map():
    def program(lib, note):
        P = lib.sharding.PartitionSpec

        def body(x, w):
            return lib.lax.psum(note(lib.numpy.sin(note(x) * note(w))), ("x", "y"))

        mapped = lib.shard_map(body, in_specs=(P("x", "y"), P()), out_specs=P())
        loss = lambda x, w: mapped(x, w).sum()  # noqa: E731
        return lib.jit(lib.grad(loss))(lib.device_put(X, P("x", "y")), lib.numpy.float32(2))

    same_in_both(program)


@pytest.mark.parametrize("spmd", [("data", "model", "stage"), ("data", "stage")], ids=str)
def test_spmd_axis_name(spmd):
    def program(lib, note):
        P = lib.sharding.PartitionSpec
        array = lib.device_put(np.arange(16, dtype=np.float32).reshape(4, 2, 2), P(spmd, None))
        return lib.jit(lib.vmap(lambda x: note(note(x) * 2), spmd_axis_name=spmd))(array)

    same_in_both(program, (2, 2, 1), ("data", "model", "stage"))


def test_a_type_along_axes_of_size_one_only_is_replicated():
    def program(lib, note):
        P = lib.sharding.PartitionSpec
        return lib.jit(lambda x: note(lib.reshard(note(x), P())))(lib.device_put(X, P("x", "y")))

    seen, spec, _ = same_in_both(program, (1, 1))
    assert {entry[1] for entry in seen} == {(None, None)} and spec in ((), (None, None))
