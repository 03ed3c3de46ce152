"""The process of one library in the suite `flax`: answers requests, one JSON object per line, until its input ends.

    python -m shardwise run benchmarks/flax_worker.py    Shardwise
    python benchmarks/flax_worker.py                     JAX

{"case": CASE} compiles a case and returns its counts; {"case": CASE, "calls": N} returns the seconds of one call. The
first call of a case is not counted.
"""

import gc
import json
import sys
from collections.abc import Callable
from functools import cache
from time import perf_counter
from typing import Any

import jax
from flax import nnx

from benchmarks.counts import counts
from benchmarks.flax_transformer import KINDS, Parallel, Sizes, batches, create, make_mesh, train_step

STEP = Sizes(layers=4, batch=32, length=64, width=128, heads=8, hidden=512, words=512)
TINY = Sizes(layers=1, batch=1, length=2, width=4, heads=1, hidden=4, words=4)


@nnx.jit
def apply(model: Any, x: jax.Array) -> jax.Array:
    return model(x)


@cache
def prepared(case: str) -> tuple[Any, tuple[Any, ...]]:
    """Return the jitted function of a case and its arguments; the first call has been made."""
    if case == "call":  # a function of a model that returns an array
        function, args = apply, (nnx.Linear(2, 2, rngs=nnx.Rngs(0)), jax.numpy.ones((1, 2)))
    else:
        one_device = case == "update"
        parallel, sizes = (Parallel(), TINY) if one_device else (KINDS[case], STEP)
        mesh = make_mesh(1 if one_device else 8)
        jax.set_mesh(mesh)
        function, args = train_step, (*create(sizes, parallel), *batches(sizes, parallel, mesh, 1))
    jax.block_until_ready(function(*args))
    return function, args


def seconds(function: Callable[..., Any], args: tuple[Any, ...], calls: int) -> float:
    """Return the seconds of one call, until its result is ready."""
    gc.collect()
    start = perf_counter()
    for _ in range(calls):
        function(*args).block_until_ready()
    return (perf_counter() - start) / calls


def answer(request: dict[str, Any]) -> Any:
    function, args = prepared(request["case"])
    if "calls" in request:
        return seconds(function, args, request["calls"])
    found = counts(function.lower(*args).compile().runtime_executable())
    return {
        "wire bytes": found.wire.sent,
        "collectives": found.wire.count,
        "temp memory": found.temp_bytes,
        "argument memory": found.argument_bytes,
        "flops": found.flops,
    }


for line in sys.stdin:
    print(json.dumps(answer(json.loads(line))), flush=True)
