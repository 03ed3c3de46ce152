"""What Shardwise reports about the transformer of `benchmarks/flax_transformer.py`, as JSON: one line for each kind.

`test_flax.py` runs it with `python -m shardwise run`.
"""

import contextlib
import io
import json

import jax

import shardwise
from benchmarks.flax_transformer import KINDS, Sizes, batches, create, make_mesh, train_step
from shardwise.explain.hlo_wire import wire

mesh, sizes = make_mesh(8), Sizes(layers=1)
jax.set_mesh(mesh)
for kind in ("data parallel", "FSDP", "tensor parallel"):
    parallel = KINDS[kind]
    initialization = create.lower(sizes, parallel).compile()
    model, optimizer = create(sizes, parallel)
    (tokens,) = batches(sizes, parallel, mesh, 1)
    with contextlib.redirect_stdout(io.StringIO()):
        plan = shardwise.explain(train_step, advise=False)(model, optimizer, tokens)
    hlo = wire(train_step.lower(model, optimizer, tokens).compile().as_text())
    arrays = jax.tree.leaves((jax.tree.leaves(model), jax.tree.leaves(optimizer)))
    memory = initialization.memory_analysis()
    report = {
        "kind": kind,
        "collectives": plan.counts(),
        "sent": plan.wire_bytes,
        "sent by the compiled step": hlo.sent,
        "kinds of the compiled step": sorted(hlo.kinds()),
        "cited files": sorted({row.source.file.rpartition("/")[2] for row in plan.collectives}),
        "reasons": sorted({row.reason for row in plan.collectives}),
        "initialization sends": wire(initialization.as_text()).sent,
        "initialization holds": memory.output_size_in_bytes + memory.temp_size_in_bytes,
        "shards of the state": sum(array.addressable_shards[0].data.nbytes for array in arrays),
        "the unsharded state": sum(array.nbytes for array in arrays),
        "largest array": max(array.nbytes for array in arrays),
    }
    print(json.dumps(report))
