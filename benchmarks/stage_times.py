"""The times of a pipeline stage's programs, measured on one device."""

import time
from typing import NamedTuple, final

import numpy as np

import shardwise as jax
from shardwise.parallel.mpmd.accumulation import Accumulation
from shardwise.parallel.mpmd.stage_programs import StagePrograms, StageTypes
from shardwise.sharding import Mesh, NamedSharding
from shardwise.sharding import PartitionSpec as P


@final
class StageTimes(NamedTuple):
    """The seconds of the programs of a stage.

    Attributes:
        forward: the forward pass.
        input: the input gradient.
        weight: the weight gradient.
        backward: both gradients in one program.
    """

    forward: float
    input: float
    weight: float
    backward: float


@final
class TimedStage:
    """The compiled programs of a stage on the first device of this process.

    Args:
        function: the function of the stage.
        params: its parameters, an array.
        x: its input, an array.
        is_first: whether nothing needs the gradient of its input.
    """

    def __init__(self, function, params, x, is_first=False):
        mesh = Mesh(np.array(jax.local_devices()[:1]), ("data",))
        replicated = NamedSharding(mesh, P())
        self._params, self._x = jax.device_put((params, x), replicated)
        y = jax.eval_shape(function, self._params, self._x)
        self._cotangents = [jax.device_put(np.ones(y.shape, y.dtype), replicated)]
        param_types = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=replicated), self._params
        )
        types = StageTypes(param_types, jax.ShapeDtypeStruct(x.shape, x.dtype), (), y)
        self._programs = StagePrograms(
            function,
            "calibrated",
            mesh,
            P(),
            types,
            Accumulation.unchanged(param_types),
            remat=False,
            has_input_gradient=not is_first,
            has_aux=False,
        )

    def measure(self):
        """Run each program once, and return their times."""
        programs, params, x = self._programs, self._params, self._x
        marks = []

        def mark(results):
            jax.block_until_ready(results)
            marks.append(time.perf_counter())
            return results

        totals = programs.zeros(params)
        mark(totals)
        *_, pull_back = mark(programs.forward(params, x, ()))
        _, add_weight = mark(programs.input_gradient(params, x, pull_back, self._cotangents))
        mark(add_weight(totals))
        totals = programs.zeros(params)
        mark(totals)
        mark(programs.backward(params, x, pull_back, self._cotangents, totals))
        forward, input, weight, _, backward = map(float, np.diff(marks))
        return StageTimes(forward, input, weight, backward)
