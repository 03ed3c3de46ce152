"""hijax: Flax declares types and primitives when it is imported; using them is an error that says what to use."""

import pytest

import shardwise as sw
from shardwise.errors import UnsupportedError
from shardwise.experimental import hijax


def test_declarations_are_accepted():
    class Boxed(hijax.MutableHiType):
        pass

    hijax.register_hitype(Boxed, lambda x: x)
    hijax.control_flow_allowed_effects.add_type(Boxed)
    assert not hijax.is_undefined_primal(1.0)


@pytest.mark.parametrize(
    "use",
    [
        lambda: hijax.HiPrimitive("new_variable").bind(1.0),
        *(hijax.HiType, hijax.MutableHiType, hijax.VJPHiPrimitive, hijax.AvalQDD),
    ],
    ids=["HiPrimitive", "HiType", "MutableHiType", "VJPHiPrimitive", "AvalQDD"],
)
def test_use_names_the_alternatives(use):
    with pytest.raises(NotImplementedError, match=r"hijax types and primitives are not supported.*Refs \(`new_ref`\)"):
        use()
    ref = sw.new_ref(1.0)
    sw.jit(lambda: ref.__setitem__(..., ref[...] + 1))()
    assert ref[...] == 2


def test_names_of_newer_versions_can_be_imported():
    for use in (lambda: type("Square", (hijax.HiPrim,), {}), hijax.vmap_rule, hijax.GradAccum):
        with pytest.raises(UnsupportedError, match=r"not supported yet. Define derivatives with `custom_jvp`"):
            use()
    assert hijax.ShapedArray((2,), "float32") == sw.typeof(sw.numpy.zeros(2))
    assert isinstance(sw.typeof(sw.new_ref(1.0)), hijax.AbstractRef)
