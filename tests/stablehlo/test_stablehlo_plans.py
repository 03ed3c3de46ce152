"""Plans of modules of JAX have the bytes and collectives of the plans of their jaxprs."""

import numpy as np
import pytest

import shardwise as sw
from shardwise import stablehlo

jax = pytest.importorskip("jax")
inside_jax = pytest.importorskip("shardwise.inside_jax")
programs = pytest.importorskip("tests.stablehlo.programs")
P = jax.sharding.PartitionSpec

pytestmark = pytest.mark.jax


@pytest.fixture(scope="module")
def mesh():
    return jax.make_mesh((4, 2), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)


def plans(mesh, function, arguments, specs):
    """Return the plan from the jaxpr, and the plan from the module."""
    structs = jax.tree.map(
        lambda x, spec: jax.ShapeDtypeStruct(np.shape(x), x.dtype, sharding=jax.sharding.NamedSharding(mesh, spec)),
        arguments,
        specs,
    )
    of_jaxpr = inside_jax.explain(function, hardware="h100", advise=False)(*structs)
    loaded = stablehlo.load(jax.jit(function, keep_unused=True).lower(*structs).as_text())
    ours = [
        sw.ShapeDtypeStruct(type.shape, type.dtype, sharding=sharding)
        for type, sharding in zip(loaded.in_types, loaded.in_shardings, strict=True)
    ]
    return of_jaxpr, sw.explain(loaded, hardware="h100", advise=False)(*ours)


MEGATRON = {"w1": P(None, "model"), "w2": P("model")}
TRANSFORMER = {
    "embed": P("model"),
    "qkv": P(None, None, "model"),
    "out": P(None, "model"),
    "up": P(None, None, "model"),
    "down": P(None, "model"),
}
FULLY_SHARDED = {name: P(*[None] * (x.ndim - 1), "data") for name, x in programs.TRANSFORMER.items()}
BATCH = P("data")
STEPS = {
    "mlp, tensor parallel": ("mlp_step", (MEGATRON, BATCH, BATCH)),
    "mlp, data parallel": ("mlp_step", (dict.fromkeys(MEGATRON, P()), BATCH, BATCH)),
    "adam, tensor parallel": ("adam_step", (MEGATRON, MEGATRON, MEGATRON, P(), BATCH, BATCH)),
    "transformer, tensor parallel": ("transformer_step", (TRANSFORMER, BATCH)),
    "transformer, fully sharded": ("transformer_step", (FULLY_SHARDED, BATCH)),
}


@pytest.mark.table(default=3)
@pytest.mark.parametrize("name", STEPS)
def test_training_steps(mesh, name):
    program, specs = STEPS[name]
    of_jaxpr, of_module = plans(mesh, *programs.PROGRAMS[program], specs)
    assert of_jaxpr.wire_bytes > 0
    assert (of_module.counts(), of_module.wire_bytes) == (of_jaxpr.counts(), of_jaxpr.wire_bytes)


@pytest.mark.table(default=10)
@pytest.mark.parametrize("name", programs.PROGRAMS)
def test_programs_whose_arguments_are_sharded_by_rows(mesh, name):
    function, arguments = programs.PROGRAMS[name]
    specs = jax.tree.map(lambda x: BATCH if np.ndim(x) and len(x) % 4 == 0 else P(), arguments)
    of_jaxpr, of_module = plans(mesh, function, arguments, specs)
    assert of_module.wire_bytes == of_jaxpr.wire_bytes
