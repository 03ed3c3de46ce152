"""Attributes that need buffers raise an error on a tracer that says why."""

import numpy as np
import pytest

import shardwise as sw

ARGUMENTS = {"addressable_data": (0,), "to_device": (None,)}
PROPERTIES = (
    "committed",
    "device",
    "is_fully_addressable",
    "is_fully_replicated",
    "global_shards",
    "addressable_shards",
)
METHODS = (
    *("addressable_data", "devices", "to_device", "block_until_ready", "is_ready", "copy_to_host_async", "delete"),
    *("is_deleted", "on_device_size_in_bytes", "unsafe_buffer_pointer", "tobytes"),
)


@pytest.mark.parametrize("name", [*PROPERTIES, *METHODS])
def test_of_a_tracer_raise(name):
    def function(x):
        attribute = getattr(x, name)
        attribute(*ARGUMENTS.get(name, ()))
        return x

    with pytest.raises(AttributeError, match=rf"a traced f32\[3\] has no `{name}`: it has a type, but no elements"):
        sw.eval_shape(function, sw.ShapeDtypeStruct((3,), np.float32))
