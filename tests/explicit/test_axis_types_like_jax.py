"""auto_axes, explicit_axes and use_abstract_mesh: types, meshes and values as JAX has them."""

import jax
import numpy as np
import pytest

import shardwise as sw

pytestmark = pytest.mark.jax

RNG = np.random.default_rng(0)
X = RNG.normal(size=(8, 4)).astype(np.float32)
W = RNG.normal(size=(4, 8)).astype(np.float32)


class Case:
    """One run of a case in one library: the library, and what the case has seen inside its functions."""

    def __init__(self, library, mesh):
        self.lib = library
        self.mesh = mesh
        self.P = library.sharding.PartitionSpec
        self.np = library.numpy
        self.seen = []

    def axis_type(self, name):
        return getattr(self.lib.sharding.AxisType, name)

    def see(self, x):
        """Record the spec and the mesh of a value's type, and the current mesh."""
        sharding = self.lib.typeof(x).sharding if not hasattr(x, "aval") else x.aval.sharding
        kinds = [
            [str(kind) for kind in mesh.axis_types] for mesh in (sharding.mesh, self.lib.sharding.get_abstract_mesh())
        ]
        self.seen.append((tuple(sharding.spec), *kinds))
        return x


def partly_auto(case, x, w):
    def product(x, w):
        case.see(x)
        return case.see(case.np.sin(x) @ w)

    return case.lib.sharding.auto_axes(product, axes="Y", out_sharding=case.P("X", None))(x, w)


def all_auto(case, x, w):
    return case.lib.sharding.auto_axes(lambda x, w: case.see(x @ w), out_sharding=case.P(None, ("X", "Y")))(x, w)


def several_results(case, x, w):
    call = case.lib.sharding.auto_axes(lambda x, w: (x.sum(0), {"w": w * 2}))
    total, rest = call(x, w, out_sharding=(case.P("Y"), case.P()))
    return total.sum() + rest["w"]


def gradient(case, x, w):
    loss = case.lib.sharding.auto_axes(lambda x, w: (case.np.tanh(x @ w) ** 2).sum(), out_sharding=case.P())
    return case.lib.grad(loss)(x, w)


def mapped(case, x, w):
    call = case.lib.sharding.auto_axes(lambda row: case.see(case.np.cumsum(row)), out_sharding=case.P())
    return case.lib.vmap(call)(x)


def loop(case, x, w):
    layer = case.lib.sharding.auto_axes(lambda h: case.see(case.np.cos(h)), out_sharding=case.P("X", "Y"))
    start = case.lib.sharding.reshard(x, case.P("X", "Y"))
    return case.lib.lax.scan(lambda h, _: (layer(h), None), start, None, length=3)[0]


def nested(case, x, w):
    def inner(y):
        return case.see(case.np.sin(case.see(y)))

    def outer(x):
        y = case.lib.sharding.explicit_axes(inner, axes="Y", in_sharding=case.P(None, "Y"))(x)
        return case.see(y * 2)

    return case.lib.sharding.auto_axes(outer, out_sharding=case.P("X"))(x)


def other_types(case, x, w):
    with case.lib.sharding.use_abstract_mesh(case.mesh.abstract_mesh.update_axis_types({"X": case.axis_type("Auto")})):
        y = case.see(case.lib.sharding.reshard(x, case.P(None, "Y")))
        y = case.see(case.np.sin(y))
    return case.lib.sharding.reshard(y, case.P("X"))


def other_names(case, x, w):
    axes = case.mesh.abstract_mesh.update(axis_sizes=(2, 4), axis_names=("a", "b"))
    with case.lib.sharding.use_abstract_mesh(axes):
        y = case.see(case.lib.sharding.reshard(x, case.P("b", "a")) * 2)
    return case.lib.sharding.reshard(y, case.P("Y"))


def run(library, function, under_jit, axis_types, specs):
    """Return what a case has seen, the spec of its result, and the elements."""
    kinds = tuple(getattr(library.sharding.AxisType, name) for name in axis_types)
    mesh = library.make_mesh((4, 2), ("X", "Y"), axis_types=kinds)
    case = Case(library, mesh)
    with library.set_mesh(mesh):
        arrays = [library.device_put(x, case.P(*spec)) for x, spec in zip((X, W), specs, strict=True)]
        call = library.jit(lambda *args: function(case, *args)) if under_jit else lambda *args: function(case, *args)
        result = call(*arrays)
        spec = list(result.sharding.spec)
    while spec and spec[-1] is None:
        spec.pop()
    assert result.sharding.mesh == mesh
    return case.seen, spec, np.asarray(result)


def like_jax(function, under_jit, axis_types, specs):
    seen, spec, result = run(sw, function, under_jit, axis_types, specs)
    jax_seen, jax_spec, jax_result = run(jax, function, under_jit, axis_types, specs)
    assert seen == jax_seen
    np.testing.assert_allclose(result, jax_result, rtol=1e-4, atol=1e-5)
    return spec, jax_spec


CASES = [partly_auto, all_auto, several_results, gradient, mapped, loop, nested]


@pytest.mark.parametrize("function", CASES, ids=lambda function: function.__name__)
@pytest.mark.parametrize("specs", [(("X", "Y"), ("Y", None)), (("X", None), (None, "Y")), ((None, "Y"), ("Y", "X"))])
def test_types_in_traced_functions_are_those_of_jax(function, specs):
    if function is gradient:
        specs = (specs[0], (None, None))  # JAX cannot name the sharding of a product that is ambiguous outside
    spec, jax_spec = like_jax(function, True, ("Explicit", "Explicit"), specs)
    assert spec == jax_spec


@pytest.mark.parametrize("function", [partly_auto, all_auto, several_results], ids=lambda function: function.__name__)
def test_types_outside_of_traced_functions_are_those_of_jax(function):
    spec, jax_spec = like_jax(function, False, ("Explicit", "Explicit"), (("X", "Y"), ("Y", None)))
    assert spec == jax_spec


@pytest.mark.parametrize("function", [other_types, other_names], ids=lambda function: function.__name__)
def test_other_axes_in_a_part_of_a_function(function):
    spec, jax_spec = like_jax(function, True, ("Explicit", "Explicit"), (("X", "Y"), ("Y", None)))
    assert spec == jax_spec


@pytest.mark.parametrize("axis_types", [("Auto", "Auto"), ("Explicit", "Auto")])
def test_explicit_axes_inside_are_those_of_jax(axis_types):
    def function(case, x, w):
        call = case.lib.sharding.explicit_axes(
            lambda x, w: case.see(case.see(x) @ case.see(w)), in_sharding=(case.P("X", None), case.P(None, "Y"))
        )
        return call(x, w) + 1

    like_jax(function, True, axis_types, (("X", None), (None, None)))
