"""Attributes of ops reach the compiled program: set_xla_metadata, compute_on and scheduling groups."""

import re

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.errors import UnsupportedError
from shardwise.experimental import xla_metadata
from shardwise.experimental.compute_on import compute_on, compute_on2
from shardwise.experimental.scheduling_groups import scheduling_group, xla_metadata_call
from shardwise.experimental.xla_metadata import set_xla_metadata
from shardwise.memory import Space


def attributes(text):
    """Return the attributes of every op with some in the text of a module."""
    return {
        name: dict(re.findall(r'"?([\w.]+)"? = "(.*?)"', entries))
        for name, entries in re.findall(r"stablehlo\.(\w+)[^\n]*?mhlo\.frontend_attributes = \{(.*?)\}", text)
    }


def lowered(function, *args):
    return attributes(sw.jit(function).lower(*args).as_text())


def annotated(set_metadata, namespace):
    def function(x):
        with set_metadata(a="1", b=True):
            y = namespace.sin(x) * 2
        return set_metadata(y + 1, breakpoint=3)

    return function


def test_contexts_and_values():
    expected = {"sine": {"a": "1", "b": "true"}, "multiply": {"a": "1", "b": "true"}, "add": {"breakpoint": "3"}}
    function = annotated(set_xla_metadata, jnp)
    assert lowered(function, 1.0) == expected
    assert 'frontend_attributes={a="1",b="true"}' in sw.jit(function).lower(1.0).compile().as_text()
    np.testing.assert_allclose(sw.jit(function)(1.0), 2 * np.sin(1) + 1, rtol=1e-6)


@pytest.mark.jax
def test_attributes_like_jax():
    jax = pytest.importorskip("jax")
    from jax.experimental.xla_metadata import set_xla_metadata as jax_set  # noqa: PLC0415 - the other tests need no jax

    theirs = attributes(jax.jit(annotated(jax_set, jax.numpy)).lower(1.0).as_text())
    assert lowered(annotated(set_xla_metadata, jnp), 1.0) == theirs


def test_nesting_transformations_and_sharded_programs():
    def function(x):
        with set_xla_metadata(a=1, b=1), set_xla_metadata(b=2):
            return jnp.sin(x).sum()

    assert lowered(function, jnp.ones(3))["sine"] == {"a": "1", "b": "2"}
    assert lowered(sw.grad(function), jnp.ones(3))["cosine"] == {"a": "1", "b": "2"}
    assert lowered(sw.vmap(function), jnp.ones((2, 3)))["sine"] == {"a": "1", "b": "2"}
    loop = lambda x: sw.lax.fori_loop(0, 3, lambda _, x: set_xla_metadata(jnp.sin(x), c=1), x)  # noqa: E731
    assert lowered(loop, 1.0) == {"sine": {"c": "1"}}
    x = sw.device_put(np.ones(8, np.float32), sw.NamedSharding(sw.make_mesh((4,), ("x",)), sw.P("x")))
    assert lowered(function, x)["sine"] == {"a": "1", "b": "2"}


def test_a_context_applies_to_functions_that_were_compiled_before():
    function = sw.jit(lambda x: x + 1)
    function(1.0)
    assert attributes(function.lower(1.0).as_text()) == {}
    with set_xla_metadata(c=2):
        assert attributes(function.lower(1.0).as_text()) == {"add": {"c": "2"}}
    assert attributes(function.lower(1.0).as_text()) == {}
    assert attributes(set_xla_metadata(c=2)(function).lower(1.0).as_text()) == {"add": {"c": "2"}}
    assert lowered(set_xla_metadata(c=2)(lambda x: x + 1), 1.0) == {"add": {"c": "2"}}


def test_special_characters_and_concrete_values():
    assert lowered(lambda x: set_xla_metadata(x + 1, path='a "b" \\c'), 1.0)["add"]["path"].startswith("a ")
    x = jnp.ones(2)
    assert set_xla_metadata(x, a=1) is x
    assert lowered(lambda x: set_xla_metadata(x, a=1), 1.0) == {}


@pytest.mark.parametrize(
    ("compute_type", "expected"),
    [
        ("device_host", {"_xla_compute_type": "host"}),
        ("gpu_stream:1", {"_xla_stream_annotation": "1"}),
        ("tpu_sparsecore", {"_xla_compute_type": "sparse"}),
    ],
)
def test_compute_on(compute_type, expected):
    def function(x):
        with compute_on(compute_type):
            return jnp.sin(x)

    assert lowered(function, 1.0) == {"sine": expected}
    assert lowered(compute_on(compute_type)(jnp.sin), 1.0) == {"sine": expected}
    np.testing.assert_allclose(sw.jit(function)(1.0), np.sin(1), rtol=1e-6)


def test_compute_on_the_device_has_no_attribute():
    assert lowered(compute_on("device")(jnp.sin), 1.0) == {}


def test_compute_on2_puts_results_in_memories():
    @compute_on2(compute_type="device_host", out_memory_spaces=(Space.Host, Space.Device))
    def function(x):
        return jnp.sin(x), x + 1

    assert lowered(function, 1.0)["sine"] == {"_xla_compute_type": "host"}
    sine, plus = sw.jit(function)(1.0)
    assert sine.sharding.memory_kind == "pinned_host" != plus.sharding.memory_kind
    np.testing.assert_allclose([sine, plus], [np.sin(1), 2], rtol=1e-6)
    with pytest.raises(UnsupportedError, match="pass them to `jit`"):
        compute_on2(jnp.sin, compute_type="device", out_memory_spaces=Space.Any, compiler_options={})


def test_compute_on_errors():
    with pytest.raises(TypeError, match="compute_type must be a string, not 1"), compute_on(1):
        pass
    with pytest.raises(ValueError, match=r"one of 'device', 'device_host'.*not 'abacus'"), compute_on("abacus"):
        pass


def test_scheduling_groups():
    group = {"scheduling_group": "first"}
    assert lowered(scheduling_group("first")(lambda x: jnp.sin(x) + 1), 1.0) == {"sine": group, "add": group}
    assert lowered(xla_metadata_call(jnp.sin, mark="x"), 1.0) == {"sine": {"mark": "x"}}
    assert lowered(xla_metadata_call(mark=1)(jnp.sin), 1.0) == {"sine": {"mark": "1"}}


def test_calls_with_attributes():
    marked = {"sine": {"mark": "true"}}
    assert lowered(xla_metadata.xla_metadata_call2(jnp.sin, {"mark": True}), 1.0) == marked
    assert lowered(xla_metadata.xla_metadata_call2(metadata={"mark": True})(jnp.sin), 1.0) == marked
    assert lowered(xla_metadata.must_fuse_call("7")(jnp.sin), 1.0) == {"sine": {"MUST_FUSE": "7"}}

    def limited(x):
        with xla_metadata.fuse_limit():
            return jnp.sin(x)

    assert lowered(limited, 1.0) == {"sine": {"FUSE_LIMIT": "true"}}
    with pytest.raises(NotImplementedError, match="ad_metadata='drop' is not supported"):
        xla_metadata.xla_metadata_call2(jnp.sin, {}, ad_metadata="drop")
