"""`clear_caches` empties every cache that can keep a user's objects alive."""

import ast
import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardwise as sw
from shardwise import lax
from shardwise import numpy as jnp
from shardwise.base.caches import clear_all
from shardwise.compiler.ir.op import factor_rule, result_types
from shardwise.sharding import AbstractMesh, Mesh, NamedSharding
from shardwise.sharding import PartitionSpec as P

PACKAGE = Path(sw.__file__).parent
X = np.arange(8.0, dtype=np.float32)
RAW = {"functools.lru_cache", "functools.cache"}

# Uses of `functools.lru_cache` and `functools.cache` that `clear_all` leaves alone; `base/caches.py` says why.
UNREGISTERED = {
    "api/transformations/custom_remat.py": {"custom_remat"},
    "base/_jaxlib.py": {"_register_lapack"},
    "base/blas_threads.py": {"run_blas_in_calling_thread"},
    "base/caches.py": {"registered_cache"},
    "compiler/arrays/operands.py": {"_staged"},
    "compiler/special/approximations.py": {"_fit"},
    "compiler/special/incomplete.py": {"_temme"},
    "compiler/plan/hardware.py": {"built_in_chips"},
    "jax_modules/jax_names.py": {"jax_names"},
    "processes/coordinator.py": {"_warn_of_other_machines"},
    "processes/protocol.py": {"_field_checks", "_text_limits"},
    "runtime/array.py": {"_interned_signature"},
    "runtime/cache_stores.py": {"cache_store"},
    "runtime/compilation_cache.py": {"_processor"},
}


def jit_closure(w):
    return sw.jit(lambda x: x * w)


def grad_closure(w):
    return sw.jit(sw.grad(lambda x: (x * w).sum()))


def vmap_closure(w):
    return sw.jit(sw.vmap(lambda x: x * w[0]))


def custom_vjp_rules(w):
    @sw.custom_vjp
    def f(x):
        return x * w

    f.defvjp(lambda x: (f(x), None), lambda _, ct: (ct * w,))
    return sw.jit(sw.grad(lambda x: f(x).sum()))


def custom_vjp_outside_jit(w):
    @sw.custom_vjp
    def f(x):
        return x * w

    f.defvjp(lambda x: (f(x), None), lambda _, ct: (ct * w,))
    return sw.grad(lambda x: f(x).sum())


def custom_jvp_rule(w):
    @sw.custom_jvp
    def f(x):
        return x * w

    @f.defjvp
    def _(primals, tangents):
        return f(*primals), tangents[0] * w

    return sw.jit(sw.grad(lambda x: f(x).sum()))


def checkpoint_body(w):
    return sw.jit(sw.grad(lambda x: sw.checkpoint(lambda y: jnp.sin(y * w))(x).sum()))


def scan_body(w):
    return sw.jit(lambda x: lax.scan(lambda c, y: (c + y * w, None), x, x[:, None])[0])


def cond_branches(w):
    return sw.jit(lambda x: lax.cond(x[0] > 0, lambda y: y * w, lambda y: y + w, x))


def while_body(w):
    return sw.jit(lambda x: lax.while_loop(lambda y: y[0] < 3, lambda y: y + 1 + w, x))


def shard_map_body(w):
    mesh = sw.make_mesh((8,), ("data",))
    return sw.jit(sw.shard_map(lambda x: x * w[0], mesh=mesh, in_specs=P("data"), out_specs=P("data")))


def pmap_body(w):
    return sw.pmap(lambda x: x * w[0])


def sharded_jit(w):
    mesh = Mesh(np.array(sw.devices()), ("data",))
    return sw.jit(lambda x: x * w, in_shardings=NamedSharding(mesh, P("data")))


def pure_callback(w):
    return sw.jit(lambda x: sw.pure_callback(lambda y: y * np.asarray(w), sw.ShapeDtypeStruct((8,), np.float32), x))


def associative_scan(w):
    return sw.jit(lambda x: lax.associative_scan(lambda a, b: a + b * w[0], x))


def explained(w):
    def f(x):
        return x * w

    return sw.explain(f)


FUNCTIONS: list[Callable[[Any], Callable[[Any], Any]]] = [
    jit_closure,
    grad_closure,
    vmap_closure,
    custom_vjp_rules,
    custom_vjp_outside_jit,
    custom_jvp_rule,
    checkpoint_body,
    scan_body,
    cond_branches,
    while_body,
    shard_map_body,
    pmap_body,
    sharded_jit,
    pure_callback,
    associative_scan,
    explained,
]


def collect():
    """Run the garbage collector; the second pass collects what XLA's threads released during the first."""
    gc.collect()
    gc.collect()


@pytest.mark.table(default=2)
@pytest.mark.parametrize("make", FUNCTIONS, ids=lambda make: make.__name__)
def test_clear_caches_releases_captured_arrays_and_functions(make):
    captured = jnp.asarray(X + 1) * 1
    function = make(captured)
    sw.block_until_ready(function(jnp.asarray(X)))
    references = [weakref.ref(captured), weakref.ref(function)]
    del captured, function
    sw.clear_caches()
    collect()
    assert [reference() for reference in references] == [None, None]


@pytest.mark.table(default=1)
@pytest.mark.parametrize("make", [custom_vjp_rules, custom_jvp_rule, scan_body], ids=lambda make: make.__name__)
def test_clear_caches_releases_programs(make):
    function = make(jnp.asarray(X + 1) * 1)
    function(jnp.asarray(X))
    request = function.request((jnp.asarray(X),), {})[0]
    reference = weakref.ref(request.program)
    del request, function
    sw.clear_caches()
    collect()
    assert reference() is None


def test_clear_caches_releases_arrays_of_a_function_that_is_still_alive():
    captured = jnp.asarray(X + 1) * 1
    box = [captured]
    function = sw.jit(lambda x: x * box[0])
    function(jnp.asarray(X))
    reference = weakref.ref(captured)
    del captured
    box[0] = 3.0
    sw.clear_caches()
    collect()
    assert reference() is None
    np.testing.assert_array_equal(function(jnp.asarray(X)), X * 3)


def test_clear_all_empties_every_registered_cache():
    sw.jit(lambda x: jnp.sin(x) * 2)(jnp.asarray(X))
    assert result_types.cache_info().currsize > 0
    clear_all()
    assert result_types.cache_info().currsize == 0
    assert factor_rule.cache_info().currsize == 0


def test_functools_caches_are_registered_or_listed():
    found: dict[str, set[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text()
        if "functools" not in text or "cache" not in text:
            continue
        tree = ast.parse(text)
        imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module == "functools"]
        names = {alias.asname or alias.name for node in imports for alias in node.names if "cache" in alias.name}
        names -= {"cached_property"}  # which belongs to its object
        for node in tree.body:
            used = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)} & names
            used |= {ast.unparse(part) for part in ast.walk(node) if isinstance(part, ast.Attribute)} & RAW
            if used:
                found.setdefault(str(path.relative_to(PACKAGE)), set()).add(getattr(node, "name", "module"))
    assert found == UNREGISTERED


def test_shardings_on_an_abstract_mesh_match_before_and_after_clearing():
    mesh = AbstractMesh((4, 2), ("data", "model"))
    x = sw.ShapeDtypeStruct((16, 16), np.float32, sharding=NamedSharding(mesh, P("data")))
    double = sw.jit(lambda x: x * 2, out_shardings=NamedSharding(mesh, P("data")))
    double.lower(x)
    sw.clear_caches()
    columns = NamedSharding(mesh, P(None, "data"))
    (row,) = sw.jit(lambda x: x * 3, out_shardings=columns).lower(x).plan.outputs
    assert str(row.layout) == "P(None, 'data')"
