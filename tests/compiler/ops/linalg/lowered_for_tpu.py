"""Programs that are lowered for TPUs and run on the CPU, where XLA expands its own decompositions too."""

import shardwise as sw
from shardwise.base import _jaxlib
from tests.device_shards import shards_to_numpy


def lower_for(platform, function, *args):
    """Return the stage of a function that is lowered for a platform."""
    return sw.jit(function).trace(*args).lower(lowering_platforms=(platform,))


def run_as_for_tpu(function, *args):
    """Lower a function for TPUs, run it on a CPU device, and return its results as numpy arrays."""
    stage = lower_for("tpu", function, *args)
    text = stage.as_text()
    assert "lapack" not in text and "solver" not in text
    devices = sw.devices("cpu")[:1]
    handlers = [_jaxlib.result_handler(leaf.shape, leaf.dtype, devices) for leaf in sw.tree.leaves(stage.out_info)]
    launch = _jaxlib.launcher(_jaxlib.compile_text(text, devices), handlers)
    return [shards_to_numpy(result)[0] for result in launch([_jaxlib.put([x], devices, devices) for x in args])]
