"""Pictures of shardings: to scale for rank 1 and 2, a list for higher ranks, colored if the terminal supports it."""

import io

import numpy as np
import pytest
from rich.console import Console

import shardwise as sw
from shardwise.sharding import NamedSharding, PositionalSharding, SingleDeviceSharding
from shardwise.sharding import PartitionSpec as P


def drawn(shape, sharding, colors=False, **keywords):
    console = Console(file=io.StringIO(), width=100, force_terminal=colors, color_system="standard" if colors else None)
    sw.debug.visualize_sharding(shape, sharding, console=console, **keywords)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())


def test_uneven_shards_are_drawn_to_scale(mesh):
    assert drawn((10, 6), NamedSharding(mesh, P("data", "model")), max_width=20) == (
        "┌──────┬───────────┬───────────┐\n"
        "│ 10×6 │    0:3    │    3:6    │\n"
        "├──────┼───────────┼───────────┤\n"
        "│      │           │           │\n"
        "│ 0:3  │   CPU 0   │   CPU 1   │\n"
        "│      │           │           │\n"
        "├──────┼───────────┼───────────┤\n"
        "│      │           │           │\n"
        "│ 3:6  │   CPU 2   │   CPU 3   │\n"
        "│      │           │           │\n"
        "├──────┼───────────┼───────────┤\n"
        "│      │           │           │\n"
        "│ 6:9  │   CPU 4   │   CPU 5   │\n"
        "│      │           │           │\n"
        "├──────┼───────────┼───────────┤\n"
        "│ 9:10 │   CPU 6   │   CPU 7   │\n"
        "└──────┴───────────┴───────────┘"
    )


def test_one_dim_and_devices_with_empty_shards(mesh):
    text = drawn((5,), NamedSharding(mesh, P(("model", "data"))), min_width=3, max_width=56)
    assert "│ 5 │  0:1  │  1:2  │  2:3  │  3:4  │  4:5  │" in text
    assert "│   │ CPU 0 │ CPU 2 │ CPU 4 │ CPU 6 │ CPU 1 │" in text
    assert text.endswith("CPU 3,5,7 hold no elements")
    two = NamedSharding(sw.make_mesh((2,), ("x",)), P("x"))
    wide, narrow = drawn((9,), two).splitlines()[1].split("│")[2:4]
    assert len(wide) > len(narrow) > 0  # 5 and 4 elements


def test_devices_with_the_same_shard_share_a_cell():
    grid = PositionalSharding(sw.devices()).reshape(4, 2).replicate(0)
    assert "CPU 0,2,4,6" in drawn((8, 8), grid)
    assert "CPU 0 " in drawn((8, 8), SingleDeviceSharding(sw.devices()[0]))


def test_higher_ranks_are_a_list_of_shards(mesh):
    assert drawn((5, 2, 6), NamedSharding(mesh, P("data", None, "model"))) == (
        "5×2×6\n"
        "[0:2, 0:2, 0:3] CPU 0\n"
        "[0:2, 0:2, 3:6] CPU 1\n"
        "[2:4, 0:2, 0:3] CPU 2\n"
        "[2:4, 0:2, 3:6] CPU 3\n"
        "[4:5, 0:2, 0:3] CPU 4\n"
        "[4:5, 0:2, 3:6] CPU 5\n"
        "CPU 6,7 hold no elements"
    )
    assert drawn((), NamedSharding(mesh, P())) == "scalar\nCPU 0,1,2,3,4,5,6,7"
    assert drawn((0, 3), NamedSharding(mesh, P("data"))).endswith("CPU 0,1,2,3,4,5,6,7 hold no elements")


def test_colors_are_used_only_if_the_terminal_supports_them(mesh, capsys):
    where = NamedSharding(mesh, P("data"))
    assert "\x1b[" in drawn((8,), where, colors=True)
    sw.debug.visualize_array_sharding(sw.device_put(np.ones(8), where))
    text = capsys.readouterr().out
    assert "CPU 0,1" in text and "\x1b[" not in text
    with pytest.raises(TypeError, match="visualize_array_sharding needs an array, not 3"):
        sw.debug.visualize_array_sharding(3)
    with pytest.raises(TypeError, match=r"visualize_sharding: needs a Sharding such as .* not P\('data'\)"):
        sw.debug.visualize_sharding((8,), P("data"))


def test_one_argument_is_an_array_or_a_sharding(mesh, capsys):
    rows = NamedSharding(mesh, P("data"))
    x = sw.device_put(np.zeros((8, 2)), rows)
    sw.debug.visualize_sharding(x, use_color=False)
    of_array = capsys.readouterr().out
    sw.debug.visualize_sharding((8, 2), rows, use_color=False)
    assert capsys.readouterr().out == of_array
    sw.debug.visualize_sharding(NamedSharding(mesh, P("data", "model")), use_color=False)
    of_sharding = capsys.readouterr().out
    sw.debug.visualize_sharding((4, 2), NamedSharding(mesh, P("data", "model")), use_color=False)
    assert capsys.readouterr().out == of_sharding
    assert all(f"CPU {device}" in of_sharding for device in range(8))
    with pytest.raises(TypeError, match="one argument, a concrete array or a Sharding"):
        sw.debug.visualize_sharding((8, 2))


def test_scale_and_color_map(mesh, capsys):
    rows = NamedSharding(mesh, P("data"))
    heights = []
    for scale in (1, 2):
        sw.debug.visualize_sharding((8, 8), rows, use_color=False, scale=scale)
        heights.append(len(capsys.readouterr().out.splitlines()))
    assert heights[1] > heights[0]
    with pytest.raises(ValueError, match="scale must be positive"):
        sw.debug.visualize_sharding((8, 8), rows, scale=0)
    console = Console(force_terminal=True, color_system="truecolor", width=80)
    with console.capture() as capture:
        sw.debug.visualize_sharding((8, 8), rows, color_map=lambda x: (x, 0.0, 1.0, 1.0), console=console)
    assert "38;2;64;0;255" in capture.get()  # device 2 of 8: red is 0.25


EQUAL_SHARDS = [
    ((8, 8), P("data", "model"), {}),
    ((8, 8), P("data"), {}),
    ((8, 8), P(None, "model"), {}),
    ((8,), P("data"), {}),
    ((5,), P(), {"scale": 8.0}),
    ((128, 10000), P("data"), {}),
    ((64, 8), P("model", "data"), {"min_width": 12, "scale": 2.0}),
]


@pytest.mark.jax
@pytest.mark.parametrize(("shape", "spec", "options"), EQUAL_SHARDS, ids=str)
def test_equal_shards_are_drawn_as_in_jax(shape, spec, options, mesh, capsys):
    jax = pytest.importorskip("jax")
    theirs = jax.make_mesh((4, 2), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    jax.debug.visualize_sharding(shape, jax.NamedSharding(theirs, jax.P(*spec)), use_color=False, **options)
    expected = capsys.readouterr().out
    sw.debug.visualize_sharding(shape, NamedSharding(mesh, spec), use_color=False, **options)
    assert capsys.readouterr().out == expected


def test_inside_jit_the_planned_sharding_is_drawn(mesh, capsys):
    x = sw.device_put(np.ones((8, 8)), NamedSharding(mesh, P("data", "model")))
    sw.debug.visualize_array_sharding(x)
    expected = capsys.readouterr().out
    sw.jit(lambda x: sw.debug.visualize_array_sharding(x * 2))(x)
    assert capsys.readouterr().out == expected
