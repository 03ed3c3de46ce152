"""Refs: reads and writes, types, and Refs as arguments and results of jit, compared with JAX's."""

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.experimental.serialize_executable import serialize
from shardwise.sharding import NamedSharding
from shardwise.sharding import PartitionSpec as P


def programs(jax):
    """Return functions that use Refs, for a library with JAX's names."""
    jnp = jax.numpy

    @jax.jit
    def count(ref, x):
        ref[...] += 1
        ref[0] = x * 2
        return x + ref[1]

    def update():
        ref = jax.new_ref(jnp.arange(3.0))
        results = [count(ref, 5.0), count(ref, 7.0)]
        return [*results, ref[...]]

    @jax.jit
    def swap(tree):
        a, b = tree["a"], tree["b"]
        a[...], b[...] = b[...], a[...]

    def change_two():
        tree = {"a": jax.new_ref(jnp.zeros(2)), "b": jax.new_ref(jnp.ones(2)), "c": jnp.ones(2)}
        swap(tree)
        return [tree["a"][...], tree["b"][...]]

    def change_in_nested():
        @jax.jit
        def outer(x):
            ref = jax.new_ref(x)
            y = count(ref, x[2])
            return y + ref[0]

        return [outer(jnp.arange(3.0))]

    def close_over():
        ref = jax.new_ref(jnp.zeros(3))

        @jax.jit
        def f(x):
            ref[1] += x
            return ref[1] * 2

        return [f(1.0), f(2.0), jax.jit(lambda x: f(x) + ref[1])(3.0), ref[...]]

    def loops():
        ref, other = jax.new_ref(jnp.float32(1)), jax.new_ref(jnp.zeros(2))

        def step(carry, x):
            ref[...] *= 2
            other[0] += ref[...]
            return carry + x, ref[...]

        results = [jax.lax.scan(step, 0.0, jnp.arange(4.0)), jax.lax.scan(step, 0.0, jnp.arange(4.0))]

        def body(count):
            ref[...] += 10
            return count + other[1].astype(int) + 1

        results.append(jax.lax.while_loop(lambda count: count < 3, body, 0))
        jax.lax.fori_loop(0, 3, lambda i, _: ref.__setitem__(..., ref[...] + i), None)
        return [*results, jax.lax.map(lambda x: x + ref[...], jnp.arange(3.0)), ref[...], other[...]]

    def scan_over_refs():
        ref = jax.new_ref(jnp.arange(3.0))

        def step(carry, x):
            x[...] = x[...] * 2 + carry
            return carry + 1, x[...]

        return [jax.lax.scan(step, 0.0, ref), ref[...]]

    def branches():
        ref, other = jax.new_ref(jnp.float32(1)), jax.new_ref(jnp.float32(2))
        seen = []
        for index in range(3):
            double = lambda: ref.__setitem__(..., ref[...] * 2)  # noqa: E731
            swap = lambda: (ref.__setitem__(..., other[...]), other.__setitem__(..., 7.0))[0]  # noqa: E731
            jax.jit(lambda index, double=double, swap=swap: jax.lax.switch(index, [double, swap, lambda: None]))(index)
            jax.lax.cond(index > 1, lambda ref: ref.__setitem__(..., ref[...] + 100), lambda ref: None, other)
            seen += [ref[...], other[...]]
        return seen

    def derivatives():
        ref = jax.new_ref(jnp.float32(3))

        def f(x):
            def step(carry, _):
                ref[...] += 1
                return carry * x, None

            y = jax.lax.scan(step, 1.0, None, length=3)[0]
            kept = jax.lax.stop_gradient(y)
            ref[...] += kept
            return y * ref[...]

        results = [jax.value_and_grad(f)(2.0), jax.jit(jax.grad(f))(2.0)]
        return [*results, jax.grad(lambda x, r: x * r[...])(2.0, ref), ref[...]]

    def pure():
        def f(x):
            ref = jax.new_ref(x)
            jax.lax.scan(lambda _, __: (ref.__setitem__(..., ref[...] * x), None), None, None, length=3)
            return ref[...]

        return [jax.grad(f)(2.0), jax.jit(jax.grad(f))(2.0), jax.vmap(f)(jnp.arange(3.0)), jax.jvp(f, (2.0,), (1.0,))]

    def mapped():
        out, scale = jax.new_ref(jnp.zeros((3, 3))), jax.new_ref(jnp.float32(2))

        def distance(x, y, out):
            out[...] = jnp.sum((x - y) ** 2) * scale[...]
            return out[...] + 1

        vectors = jnp.arange(12.0).reshape(3, 4)
        pairs = jax.vmap(jax.vmap(distance, (0, None, 0)), (None, 0, 0))
        return [jax.jit(pairs)(vectors, vectors, out) if jax is sw else pairs(vectors, vectors, out), out[...]]

    def stashed():
        @jax.custom_vjp
        def stash(ref, x):
            return x

        def backward(ref, g):
            ref[...] = g
            return None, g

        stash.defvjp(lambda ref, x: (x, ref), backward)
        ref = jax.new_ref(jnp.float32(0))
        f = lambda x, ref: jnp.sin(stash(ref, x))  # noqa: E731
        results = [jax.grad(f)(1.0, ref), ref[...]]
        return [*results, jax.jit(jax.grad(f))(2.0, ref), ref[...]]

    def functions():
        ref = jax.new_ref(jnp.arange(12.0).reshape(3, 4))
        results = [jax.ref.get(ref, 0), jax.ref.swap(ref, (0, slice(0, 2)), jnp.ones(2))]
        jax.ref.set(ref, 1, jnp.zeros(4))
        jax.ref.addupdate(ref, (2,), jnp.ones(4))
        return [*results, jax.freeze(ref)]

    first = [update, change_two, change_in_nested, close_over, loops, scan_over_refs, branches]
    return [*first, derivatives, pure, mapped, stashed, functions]


@pytest.mark.jax
@pytest.mark.parametrize("name", [program.__name__ for program in programs(sw)])
def test_refs_change_like_jax(name):
    jax = pytest.importorskip("jax")
    ours, expected = ({f.__name__: f for f in programs(library)}[name]() for library in (sw, jax))
    for mine, other in zip(sw.tree.leaves(ours), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-6)


def test_results_may_be_refs():
    ref = sw.new_ref(jnp.float32(1.0))

    @sw.jit
    def f(ref):
        ref[...] += 1.0
        return ref, {"new": sw.new_ref(ref[...] * 10)}

    for step in (2.0, 3.0):
        same, new = f(ref)
        assert same is ref and ref[...] == step
        assert isinstance(new["new"], sw.Ref) and new["new"][...] == 10 * step


def test_a_compiled_function_of_refs_is_traced_once():
    traces = []

    @sw.jit
    def f(ref, x):
        traces.append(ref)
        ref[...] = ref[...] + x

    ref, other = sw.new_ref(jnp.zeros(4)), sw.new_ref(jnp.ones(4))
    f(ref, 1.0)
    f(other, 2.0)
    assert len(traces) == 1
    assert ref[...].tolist() == [1] * 4 and other[...].tolist() == [3] * 4


def test_a_ref_keeps_its_sharding(mesh):
    rows = NamedSharding(mesh, P("data"))
    ref = sw.new_ref(sw.device_put(jnp.zeros(8), rows))

    @sw.jit
    def f(ref):
        ref[...] += 1
        return ref[...].sum()

    assert f(ref) == 8
    assert ref[...].sharding.is_equivalent_to(rows, 1)


def test_shardings_and_static_arguments_with_refs(mesh):
    rows = NamedSharding(mesh, P("data"))
    f = sw.jit(lambda ref, n: ref[...] * n, static_argnums=1, out_shardings=rows)
    out = f(sw.new_ref(jnp.arange(8.0)), 3)
    assert out.sharding == rows and out.tolist() == (3 * np.arange(8.0)).tolist()


def test_types_of_refs():
    ref = sw.new_ref(jnp.zeros((2, 3)))
    type = sw.typeof(ref)
    assert str(type) == "Ref{f32[2,3]}" and type == sw.typeof(sw.new_ref(jnp.ones((2, 3))))
    assert (type.shape, type.dtype, type.inner_aval) == ((2, 3), np.float32, sw.typeof(jnp.zeros((2, 3))))


def test_errors():
    ref = sw.new_ref(jnp.zeros(2))
    with pytest.raises(ValueError, match="a Ref is passed twice"):
        sw.jit(lambda a, b: None)(ref, ref)

    with pytest.raises(ValueError, match="both an argument of the function and closed over"):
        sw.jit(lambda other: other[...] + ref[...])(ref)
    with pytest.raises(TypeError, match=r"is not an array: read it with `ref\[...\]`"):
        jnp.sin(ref)
    with pytest.raises(TypeError, match=r"pass `ref\[...\]`"):
        sw.new_ref(ref)
    with pytest.raises(TypeError, match="expected a Ref"):
        sw.freeze(jnp.ones(2))
    with pytest.raises(NotImplementedError, match="memory_space is not supported"):
        sw.new_ref(jnp.ones(2), memory_space="host")


def test_transformations_that_cannot_change_outer_refs(mesh):
    ref = sw.new_ref(jnp.zeros(()))

    def store(x):
        ref[...] = x
        return x

    with pytest.raises(NotImplementedError, match=r"Each slice would set it: pass it as an argument"):
        sw.vmap(store)(jnp.arange(3.0))
    with pytest.raises(ValueError, match=r"`store` .*stores a value that is being differentiated.*stop_gradient"):
        sw.grad(store)(1.0)
    with pytest.raises(NotImplementedError, match="cannot be changed inside"):
        sw.shard_map(store, mesh=mesh, in_specs=P(), out_specs=P())(jnp.float32(1))
    with pytest.raises(NotImplementedError, match="make_jaxpr of `store`"):
        sw.make_jaxpr(store)(1.0)
    assert ref[...] == 0
    assert sw.eval_shape(store, 1.0).shape == () and ref[...] == 0
    assert sw.vmap(lambda x: x + ref[...])(jnp.arange(3.0)).tolist() == [0, 1, 2]


def test_freeze():
    ref = sw.new_ref(jnp.arange(2))
    with pytest.raises(NotImplementedError, match="cannot be frozen inside"):
        sw.jit(lambda: sw.freeze(ref))()
    assert sw.freeze(ref).tolist() == [0, 1]
    with pytest.raises(ValueError, match="is used after `freeze`"):
        ref[0] = 1
    assert sw.ref.empty_ref(sw.ShapeDtypeStruct((2,), np.int32))[...].tolist() == [0, 0]


@pytest.mark.parametrize("body", [lambda ref: (ref, None), lambda ref: (0.0, ref)])
def test_loops_do_not_return_refs(body):
    ref = sw.new_ref(jnp.float32(1))
    with pytest.raises(ValueError, match=r"returned a Ref of type f32\[\] as result \d: Refs cannot be returned"):
        sw.lax.scan(lambda carry, _: body(ref), 0.0, None, length=2)
    with pytest.raises(TypeError, match="Let the function close over the Ref"):
        sw.lax.while_loop(lambda ref: ref[...] < 3, lambda ref: ref, ref)


def test_a_function_that_closes_over_refs_is_traced_once(mesh):
    rows = NamedSharding(mesh, P("data"))
    traces = []
    ref = sw.new_ref(sw.device_put(jnp.zeros(8), rows))

    @sw.jit
    def f(x):
        traces.append(x)
        ref[...] += x

    for step in range(3):
        f(jnp.float32(step))
    assert len(traces) == 1
    assert ref[...].tolist() == [3] * 8 and ref[...].sharding.is_equivalent_to(rows, 1)


def test_a_ref_has_the_attributes_of_its_array(mesh):
    ref = sw.new_ref(jnp.ones((2, 3)))
    assert (ref.shape, ref.dtype, ref.ndim, ref.size, ref.weak_type) == ((2, 3), np.float32, 2, 6, False)
    assert ref.aval == sw.typeof(ref)
    sharding = NamedSharding(mesh, P("data"))
    assert sw.new_ref(sw.device_put(np.ones(8), sharding)).sharding == sharding


def test_where_a_ref_keeps_its_elements():
    ref = sw.new_ref(jnp.arange(3.0))
    assert ref.unsafe_buffer_pointer() == ref[...].unsafe_buffer_pointer() != 0
    assert not ref.committed and sw.new_ref(sw.device_put(jnp.arange(3.0), sw.devices()[1])).committed
    assert ref.format.sharding == ref.sharding and ref.format.layout.major_to_minor == (0,)


def accumulate(ref, scale, x):
    ref[...] = scale * ref[...] + x["b"]
    return {"before": x["b"]}


def test_refs_among_the_arguments_of_compiled_functions():
    ref, x = sw.new_ref(jnp.ones(2)), {"b": jnp.arange(2.0)}
    traced = sw.jit(accumulate, static_argnums=1).trace(ref, 3, x)
    assert sw.tree.map(lambda info: info.shape, traced.out_info) == {"before": (2,)}
    lowered = traced.lower()
    assert sw.tree.map(lambda info: info.shape, lowered.out_info) == {"before": (2,)}
    compiled = lowered.compile()
    assert ref[...].tolist() == [1, 1]
    assert compiled(ref, x)["before"].tolist() == [0, 1] and ref[...].tolist() == [3, 4]
    other = sw.new_ref(jnp.zeros(2))
    compiled(other, x)
    assert (other[...].tolist(), ref[...].tolist()) == ([0, 1], [3, 4])
    with pytest.raises(TypeError, match="must be a Ref, for which the function was compiled"):
        compiled(jnp.zeros(2), x)
    with pytest.raises(TypeError, match="must be an array, for which the function was compiled"):
        compiled(ref, {"b": ref})
    with pytest.raises(NotImplementedError, match="uses Refs"):
        serialize(compiled)


def test_refs_that_compiled_functions_close_over():
    read, written = sw.new_ref(2.0), sw.new_ref(jnp.zeros(2))

    def store(x):
        written[...] = written[...] + read[...] * x
        return x + 1

    compiled = sw.jit(store).lower(1.0).compile()
    assert written[...].tolist() == [0, 0]
    assert compiled(1.0) == 2 and written[...].tolist() == [2, 2]
    read[...] = 10.0
    assert compiled(2.0) == 3 and written[...].tolist() == [22, 22]


@pytest.mark.jax
def test_compiled_functions_with_refs_like_jax():
    jax = pytest.importorskip("jax")

    def of(package):
        ref, held = package.new_ref(package.numpy.ones(2)), package.new_ref(1.0)

        def f(ref, x):
            ref[...] = ref[...] * x
            held[...] = held[...] + x
            return x

        compiled = package.jit(f).lower(ref, 3.0).compile()
        return [float(compiled(ref, x)) for x in (3.0, 4.0)], ref[...].tolist(), float(held[...])

    assert of(sw) == of(jax) == ([3, 4], [12, 12], 8)


@pytest.mark.jax
@pytest.mark.parametrize(
    "use",
    [
        lambda package, ref: package.jit(lambda a, b: a[...] + b[...])(ref, ref),
        lambda package, ref: package.jit(lambda a: a[...] + ref[...])(ref),
        lambda package, ref: package.lax.cond(True, lambda: ref, lambda: ref),
        lambda package, ref: package.lax.scan(lambda carry, _: (carry, ref), 0.0, None, length=2),
    ],
    ids=["passed twice", "passed and closed over", "cond", "scan"],
)
def test_a_second_name_of_a_ref_is_an_error_as_in_jax(use):
    for package in (sw, pytest.importorskip("jax")):
        with pytest.raises(ValueError, match=r"(?i)ref"):
            use(package, package.new_ref(package.numpy.zeros(3)))


@pytest.mark.parametrize("transform", [lambda f: f, sw.jit])
def test_refs_are_arguments_of_shard_map(mesh, transform):
    totals = sw.new_ref(jnp.zeros(8))
    count, untouched = sw.new_ref(jnp.float32(0)), sw.new_ref(jnp.float32(5))

    def step(refs, x, other):
        refs["totals"][...] += x * sw.lax.axis_index("data").astype(np.float32)
        refs["count"][...] += 1
        return sw.lax.psum(x.sum(), "data") + other[...]

    specs = {"totals": P("data"), "count": P()}, P("data"), None
    mapped = transform(sw.shard_map(step, mesh=mesh, in_specs=specs, out_specs=P()))
    for _ in range(2):
        assert float(mapped({"totals": totals, "count": count}, jnp.ones(8), untouched)) == 13
    np.testing.assert_array_equal(totals[...], 2 * np.arange(8).repeat(8 // mesh.shape["data"])[:8])
    assert count[...] == 2 and untouched[...] == 5


def test_a_ref_that_is_passed_to_shard_map_twice_raises(mesh):
    ref = sw.new_ref(jnp.zeros(8))
    mapped = sw.shard_map(lambda a, b: a[...], mesh=mesh, in_specs=(P(), P()), out_specs=P())
    with pytest.raises(ValueError, match=r"shard_map of `<lambda>` .*a Ref is passed twice"):
        mapped(ref, ref)
