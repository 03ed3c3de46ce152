"""Which programs for GPUs are compiled with the products of libraries alone."""

from dataclasses import replace

import pytest

import shardwise as jax
import shardwise.numpy as jnp
from shardwise import lax
from shardwise.compiler.partition.product_options import OPTION, product_options
from shardwise.compiler.plan.hardware import chip
from shardwise.runtime import executable
from tests.compiler.schedule.local_programs import local_of

H200 = chip("h200")


def product(rows, size=4096):
    dot = "dot[contract=((1,), (0,)), batch=((), ())]"
    return local_of(
        f"(x: bf16[{rows},{size}], w: bf16[{size},{size}]) {{\ny: bf16[{rows},{size}] = {dot} x w\nreturn y\n}}"
    )


@pytest.mark.parametrize(
    ("rows", "options"), [(1, {}), (16, {}), (128, {}), (1024, {OPTION: False}), (8192, {OPTION: False})]
)
def test_products_that_compute_for_long_are_those_of_libraries(rows, options):
    assert product_options(product(rows), H200) == options


def test_programs_without_products_have_no_options():
    assert product_options(local_of("(x: f32[4,4]) {\ny: f32[4,4] = neg x\nreturn y\n}"), H200) == {}


@pytest.mark.parametrize("length", [1, 64])
def test_products_count_as_often_as_they_run(length):
    def step(large, small):
        x = large @ large
        y, _ = lax.scan(lambda y, _: (y @ large, None), small, None, length=length)
        return x, y

    arguments = (jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((2048, 2048), (1, 2048)))
    lowered = jax.jit(step).trace(*arguments).lower(lowering_platforms=("cuda",))
    local = lowered._prepared.stages.local
    assert product_options(local, H200) == ({OPTION: False} if length == 1 else {})


def compiled_options(monkeypatch, **options):
    """Return the options with which XLA compiles a program whose module has the option."""
    seen = []
    compile_text = executable.compile_text

    def recorded(text, devices, callbacks=(), options=()):
        seen.append(dict(options))
        return compile_text(text, devices, callbacks)

    monkeypatch.setattr(executable, "compile_text", recorded)
    prepared = jax.jit(lambda x: x + 1).lower(jnp.zeros(3))._prepared
    module = replace(prepared.stages.module, options=((OPTION, False),))
    replace(prepared, stages=replace(prepared.stages, module=module)).compile(tuple(options.items()))
    return seen.pop()


def test_users_choose_by_compiler_options_and_by_xla_flags(monkeypatch):
    assert compiled_options(monkeypatch) == {OPTION: False}
    assert compiled_options(monkeypatch, **{OPTION: True}) == {OPTION: True}
    monkeypatch.setenv("XLA_FLAGS", f"--xla_cpu_use_fusion_emitters=false --{OPTION}=true")
    assert compiled_options(monkeypatch) == {}
