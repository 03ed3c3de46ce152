"""Inputs and outputs with equal layouts are shown together."""

import re

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.explain.end_groups import path_pattern, path_patterns
from shardwise.sharding import PartitionSpec as P
from tests.explain.arguments import shaped


def test_many_inputs_and_outputs_are_collapsed_by_layout(mesh):
    layers = [{"w1": shaped(mesh, P(None, "model"), 64, 64), "b": shaped(mesh, P(), 64)} for _ in range(12)]

    def step(params, x):
        for layer in params["h"]:
            x = jnp.tanh(x @ layer["w1"] + layer["b"])
        return sw.tree.map(lambda p: p * 0.9, params), x.sum()

    found = sw.explain(step)({"h": layers}, shaped(mesh, P("data"), 64, 64))
    lines = str(found).splitlines()
    assert next(index for index, line in enumerate(lines) if line.startswith("  collective")) < 20
    text = "\n".join(lines)
    assert re.search(r"in +P\(None, 'model'\) +12 arrays +98.3 kB `params\['h'\]\[\*\]\['w1'\]`\n", text)
    assert re.search(r"out +P\(None\) +12 arrays +3.1 kB `output\[\*\]\['h'\]\[\*\]\['b'\]`\n", text)
    assert re.search(r"out +P\(\) +1 array +4 B `output\[1\]`\n", text)
    assert len(found.plan.inputs) == 25  # the data has all of them
    page = found.to_html()
    assert "12 inputs" in page and "12 outputs" in page and page.count('class="card"') < 8
    assert page.count("params[&#x27;h&#x27;][7][&#x27;w1&#x27;]") >= 1


def test_paths_become_patterns():
    assert path_pattern("`params['h_3'][0]['w1']`") == "`params['h_*'][*]['w1']`"
    assert path_pattern("`w1`") == "`w1`"
    assert path_pattern("`args[2]`") == "`args[*]`"
    assert path_patterns(["`a[0]`", "`a[1]`", "`b`", "`c`", "`d`"]) == "`a[*]`, `b`, `c` and 1 more"
