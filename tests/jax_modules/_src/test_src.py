"""Private names of JAX that libraries import are Shardwise's own."""

from operator import attrgetter

import numpy as np
import pytest

import shardwise as sw
from shardwise.experimental import checkify
from shardwise.jax_modules import _src
from shardwise.jax_modules._src.state.types import AbstractRef

OWN = {
    "checkify.checkify": checkify.checkify,
    "core.ShapedArray": sw.core.ShapedArray,
    "dispatch.wait_for_tokens": sw.effects_barrier,
    "dtypes.extended": sw.dtypes.extended,
    "flatten_util.ravel_pytree": sw.flatten_util.ravel_pytree,
    "numpy.ufuncs.ufunc": sw.numpy.ufunc,
}


@pytest.mark.parametrize("name", OWN)
def test_names_are_those_of_the_public_modules(name):
    assert attrgetter(name)(_src) is OWN[name]


def test_the_primitive_of_stop_gradient_is_that_of_jaxprs():
    (equation,) = sw.make_jaxpr(sw.lax.stop_gradient)(1.0).eqns
    assert equation.primitive is _src.ad_util.stop_gradient_p


def test_a_reference_has_the_abstract_type():
    assert isinstance(sw.typeof(sw.new_ref(np.zeros(3))), AbstractRef)


def test_the_platform_in_use_is_listed():
    sw.devices()
    assert "cpu" in _src.xla_bridge._backends


def test_a_process_alone_has_no_client_of_other_processes():
    assert (_src.distributed.global_state.client, _src.distributed.global_state.process_id) == (None, 0)


def test_what_replaces_the_compilation_is_called(monkeypatch):
    def refuse(backend):
        raise RuntimeError("compilation is not allowed")

    monkeypatch.setattr(_src.compiler, "backend_compile_and_load", refuse)
    with pytest.raises(RuntimeError, match="compilation is not allowed"):
        sw.jit(lambda x: x + 41)(np.ones(7, np.float32))


def test_a_registered_class_is_in_the_registry():
    class Static:
        pass

    assert Static not in _src.tree_util._registry
    sw.tree_util.register_static(Static)
    assert Static in _src.tree_util._registry


@pytest.mark.parametrize(
    "node", [(1, (2, 3)), [None, 4], {"b": 5, "a": [6]}, None, sw.tree_util.Partial(max, 7, key=abs)]
)
def test_entries_of_the_registry_flatten_and_create_one_level(node):
    entry = _src.tree_util._registry[type(node)]
    children, metadata = entry.to_iter(node)
    assert list(children) == list(_src.tree_util.flatten_one_level(node)[0])
    created = entry.from_iter(metadata, children)
    assert sw.tree.structure(created) == sw.tree.structure(node) and sw.tree.leaves(created) == sw.tree.leaves(node)
    assert {metadata, entry.to_iter(created)[1]} == {metadata}


def test_the_registry_lists_the_classes_that_are_nodes():
    registry = _src.tree_util._registry
    assert {tuple, list, dict, type(None)} < set(registry) and len(registry) == len(set(registry))
    with pytest.raises(KeyError):
        registry[int]
