"""Private names of JAX that libraries import, and that no public name stands for."""

from inspect import signature

import numpy as np
import pytest

import shardwise as sw
from shardwise.jax_modules import version
from shardwise.jax_modules._src import api_util, compiler, core, distributed, literals, mesh, tree_util, xla_bridge
from shardwise.jax_modules._src import util as axes
from shardwise.jax_modules._src.cudnn import fused_attention_stablehlo
from shardwise.jax_modules._src.image import scale
from shardwise.jax_modules._src.numpy import einsum, util
from shardwise.jax_modules._src.state import indexing
from shardwise.jax_modules.interpreters.pxla import thread_resources


def test_the_platform_in_use_is_listed():
    sw.devices()
    assert "cpu" in xla_bridge._backends


def test_a_process_alone_has_no_client_of_other_processes():
    assert (distributed.global_state.client, distributed.global_state.process_id) == (None, 0)


def test_what_replaces_the_compilation_is_called(monkeypatch):
    def refuse(backend):
        raise RuntimeError("compilation is not allowed")

    monkeypatch.setattr(compiler, "backend_compile_and_load", refuse)
    with pytest.raises(RuntimeError, match="compilation is not allowed"):
        sw.jit(lambda x: x + 41)(np.ones(7, np.float32))


def test_a_registered_class_is_in_the_registry():
    class Static:
        pass

    assert Static not in tree_util._registry
    sw.tree_util.register_static(Static)
    assert Static in tree_util._registry


@pytest.mark.parametrize(
    ("argnums", "argnames", "expected"),
    [
        (None, None, ((), ())),
        (1, None, ((1,), ("y",))),
        (None, ("y", "x"), ((0, 1), ("y", "x"))),
        (None, "z", ((), ("z",))),
        ((0,), "y", ((0,), ("y",))),
    ],
)
def test_parameters_are_inferred_from_numbers_or_names(argnums, argnames, expected):
    def function(x, y, *, z): ...

    assert api_util.infer_argnums_and_argnames(signature(function), argnums, argnames) == expected


def test_only_tracers_of_libraries_are_lowered():
    class Stored:
        def full_lower(self):
            return 3

    assert core.full_lower(Stored()) == 3
    assert core.full_lower(2.5) == 2.5


def test_scalars_with_a_dtype_are_scalars():
    number = literals.TypedFloat(0.5, np.float16)
    assert (number + 1, number.dtype, repr(number)) == (1.5, np.float16, "TypedFloat(0.5, dtype=float16)")
    assert isinstance(literals.TypedInt(3, np.int8), int)
    assert literals.TypedComplex(1j, np.complex64) == 1j
    array = literals.TypedNdArray(np.arange(3), weak_type=False)
    assert (array.dtype, array.shape, array.weak_type) == (np.int64, (3,), False)
    assert np.asarray(array, dtype=np.float32).tolist() == [0, 1, 2]


def test_einsum_evaluates_the_contractions_of_a_path():
    rng = np.random.default_rng(0)
    x, y, z = (rng.normal(size=shape).astype(np.float32) for shape in ((3, 4), (4, 5), (5, 2)))
    calls = []

    def dot_general(a, b, dimension_numbers, **options):
        calls.append((dimension_numbers, options["preferred_element_type"]))
        return sw.lax.dot_general(a, b, dimension_numbers, **options)

    operands, path = einsum._default_poly_einsum_handler(
        "ij,jk,kl->li", x, y, z, einsum_call=True, use_blas=True, optimize="optimal"
    )
    contractions = tuple((positions, frozenset(names), equation) for positions, names, equation, *_ in path)
    result = einsum._einsum(operands, contractions, None, None, dot_general)
    np.testing.assert_allclose(result, (x @ y @ z).T, rtol=1e-5)
    assert [dtype for _, dtype in calls] == [np.float32, np.float32]


def test_the_concrete_mesh_is_the_current_one_in_traced_functions_too():
    rows, meshes = sw.make_mesh((2,), ("rows",)), []

    @sw.jit
    def f(x):
        meshes.append((mesh.get_concrete_mesh(), thread_resources.env.physical_mesh))
        return x

    assert mesh.get_concrete_mesh().empty and thread_resources.env.physical_mesh.empty
    with sw.set_mesh(rows):
        f(np.ones(2))
    assert meshes == [(rows, rows)]


def test_slices_with_a_dynamic_start_are_told_from_others():
    assert isinstance(sw.ds(0, 2), indexing.Slice)
    assert not isinstance(slice(0, 2), indexing.Slice)


@pytest.mark.parametrize(
    "node", [(1, (2, 3)), [None, 4], {"b": 5, "a": [6]}, None, sw.tree_util.Partial(max, 7, key=abs)]
)
def test_entries_of_the_registry_flatten_and_create_one_level(node):
    entry = tree_util._registry[type(node)]
    children, metadata = entry.to_iter(node)
    assert list(children) == list(sw.tree_util.flatten_one_level(node)[0])
    created = entry.from_iter(metadata, children)
    assert sw.tree.structure(created) == sw.tree.structure(node) and sw.tree.leaves(created) == sw.tree.leaves(node)
    assert {metadata, entry.to_iter(created)[1]} == {metadata}


def test_the_registry_lists_the_classes_that_are_nodes():
    registry = tree_util._registry
    assert {tuple, list, dict, type(None)} < set(registry) and len(registry) == len(set(registry))
    with pytest.raises(KeyError):
        registry[int]


def test_attention_of_cudnn_is_not_there():
    with pytest.raises(RuntimeError, match=r"cuDNN's attention is not used"):
        fused_attention_stablehlo.check_cudnn_version()


def test_operands_are_promoted_to_floats_and_keep_their_shapes():
    image, scale = util.promote_dtypes_inexact(np.ones((2, 3), np.int32), np.float16(2))
    assert (image.dtype, image.shape, scale.dtype, scale.shape) == (np.float16, (2, 3), np.float16, ())


def test_every_method_that_has_a_kernel_resizes_with_it():
    """A kernel is 1 at the distance 0 and 0 at other integers, so that pixels at their own places do not change."""
    for kernel in scale._kernels.values():
        np.testing.assert_allclose(kernel(sw.numpy.arange(4.0)), [1, 0, 0, 0], atol=1e-6)


def test_axes_and_shapes_are_integers():
    assert axes.canonicalize_axis(-1, 3) == 2
    with pytest.raises(ValueError, match="axis 3 is out of bounds for an array of rank 3"):
        axes.canonicalize_axis(3, 3)
    assert core.canonicalize_shape([np.int64(2), 3]) == (2, 3)


def test_the_version_is_also_private():
    assert version._version == version.__version__
