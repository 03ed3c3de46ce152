"""sweep: rows like single simulations, the table, the plot, and bad input."""

from dataclasses import replace

import numpy as np
import pytest

import shardwise as sw
import shardwise.numpy as jnp
from shardwise.compiler.plan.hardware import chip
from shardwise.errors import HardwareError
from shardwise.sharding import AbstractMesh, NamedSharding
from shardwise.sharding import PartitionSpec as P
from tests.explain import expert_layer

BF16 = np.dtype(jnp.bfloat16)
MESHES = [AbstractMesh((size,), ("data",)) for size in (2, 8)]


def product(x, w):
    return jnp.tanh(x @ w)


def arguments(mesh, batch=4096):
    data, weights = (NamedSharding(mesh, spec) for spec in (P("data"), P()))
    x = sw.ShapeDtypeStruct((batch, 1024), BF16, sharding=data)
    return x, sw.ShapeDtypeStruct((1024, 1024), BF16, sharding=weights)


def test_rows_are_those_of_single_simulations():
    runs = sw.sweep(product, arguments, hardware=["a100", "h100"], mesh=MESHES, batch=[4096, 8192])
    assert runs.variables == ("hardware", "mesh", "batch") and len(runs.rows) == 8
    for row in runs.rows:
        hardware, mesh, batch = row.variables.values()
        assert row.run.seconds == sw.simulate(product, hardware=hardware)(*arguments(mesh, batch)).seconds
        assert row.devices == mesh.size and row.fits and not row.error
    assert runs.best is min(runs.rows, key=lambda row: row.run.seconds)
    assert [runs.best.label(name) for name in runs.variables] == ["h100", "data=8", "4096"]


def test_fixed_arguments_are_moved_to_each_mesh():
    moved = sw.sweep(product, arguments(MESHES[0]), hardware="h100", mesh=MESHES)
    direct = sw.sweep(product, arguments, hardware="h100", mesh=MESHES)
    assert [row.run.seconds for row in moved.rows] == [row.run.seconds for row in direct.rows]
    assert sw.sweep(product, arguments(MESHES[0]), hardware="h100").rows[0].devices == 2


def test_the_table_has_a_line_per_configuration():
    lines = str(sw.sweep(product, arguments, hardware="h100", mesh=MESHES)).splitlines()
    assert lines[0] == "product: 2 configurations"
    assert lines[1].split() == ["hardware", "mesh", "time", "of", "peak", "memory", "sent", "bound", "by"]
    assert lines[2].startswith("h100      data=2  ") and lines[3].startswith("h100      data=8  ")
    assert lines[4] == "fastest that fits: h100, data=8"


def test_configurations_within_the_error_of_predictions_are_ties():
    close = [
        replace(chip("a100"), name=f"a{percent}", kernel_gap=0.0, product_fraction=0.7 * 100 / (100 + percent))
        for percent in (0, 3, 12)
    ]
    x = sw.ShapeDtypeStruct((8192, 8192), BF16)
    runs = sw.sweep(lambda x: x @ x, (x,), hardware=close)
    assert runs.best is runs.rows[0] and runs.ties == (runs.rows[1],) and close[0].prediction_error == 0.042
    assert str(runs).endswith("fastest that fits: a0\nties with it, within the error of 4% of predictions: a3")
    assert sw.sweep(lambda x: x @ x, (x,), hardware=close[:1]).ties == ()


def test_a_configuration_that_does_not_fit_is_never_the_best():
    x = sw.ShapeDtypeStruct((1 << 33,), np.float32)
    runs = sw.sweep(lambda x: x + 1, (x,), hardware=["v5e", "h100"])
    assert [row.fits for row in runs.rows] == [False, True] and runs.best is runs.rows[1]
    assert "(does not fit)" in str(runs)
    assert "none fits the memory" in str(sw.sweep(lambda x: x + 1, (x,), hardware="v5e"))


def test_a_configuration_that_cannot_be_partitioned_is_a_row():
    other = AbstractMesh((8,), ("rows",))
    runs = sw.sweep(product, arguments, hardware="h100", mesh=[other, MESHES[1]])
    assert runs.rows[0].run is None and "'data'" in runs.rows[0].error and runs.best is runs.rows[1]
    assert runs.rows[0].error in str(runs)
    with pytest.raises(ValueError, match="none of the 1 configurations can be simulated"):
        sw.sweep(product, arguments, hardware="h100", mesh=other).plot("nothing.svg")


def test_plots_are_written(tmp_path):
    runs = sw.sweep(product, arguments, hardware=["a100", "h100"], mesh=MESHES, batch=[4096, 8192])
    by_devices = runs.plot(tmp_path / "devices.svg").read_text()
    for text in ("devices", "seconds per call", "memory of a100, h100"):
        assert f"<!-- {text} -->" in by_devices
    by_batch = runs.plot(tmp_path / "batch.svg", "batch").read_text()
    assert "<!-- batch -->" in by_batch and "<!-- a100, data=2 -->" in by_batch
    assert runs.plot(tmp_path / "mesh.png", "mesh").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match=r"there is no variable 'width'\. Variables: 'devices', hardware, mesh, batch"):
        runs.plot(tmp_path / "width.svg", "width")


def test_bad_input():
    with pytest.raises(TypeError, match=r"'width' is not a parameter of .* Its parameters: batch, mesh"):
        sw.sweep(product, arguments, hardware="h100", mesh=MESHES, width=[1])
    with pytest.raises(ValueError, match="there are no values of 'batch', so there is nothing to simulate"):
        sw.sweep(product, arguments, hardware="h100", mesh=MESHES, batch=[])
    with pytest.raises(HardwareError, match="unknown hardware 'h10'"):
        sw.sweep(product, arguments, hardware=["h100", "h10"], mesh=MESHES)


def test_the_busiest_experts_have_the_tokens_of_the_imbalance():
    balanced, busy = (
        sw.sweep(expert_layer.step, expert_layer.arguments, hardware="h100", expert_imbalance=ratio)
        for ratio in (1, 1.5)
    )
    assert busy.rows[0].run.seconds == pytest.approx(1.5 * balanced.rows[0].run.seconds)
    with pytest.raises(ValueError, match="sweep: expert_imbalance must be at least 1"):
        sw.sweep(expert_layer.step, expert_layer.arguments, hardware="h100", expert_imbalance=0.5)
