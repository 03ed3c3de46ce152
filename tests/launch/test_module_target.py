"""`shardwise explain` of modules of StableHLO and of exported functions: plans, and one line for bad input."""

import pytest

import shardwise as jax
import shardwise.numpy as jnp
from shardwise import export
from shardwise.launch.command_line import main

MODULE = """
module @jit_step attributes {{mhlo.num_partitions = {partitions} : i32}} {{
  func.func @main(%x: tensor<64x16xf32> loc("x"), %w: tensor<16x8xf32> loc("params['w']")) -> tensor<64x8xf32> {{
    %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      : (tensor<64x16xf32>, tensor<16x8xf32>) -> tensor<64x8xf32>
    return %0 : tensor<64x8xf32>
  }}
}}
"""
WITH_MESH = """
sdy.mesh @mesh = <["data"=4, "model"=2]>
func.func @main(%x: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}) -> tensor<8x4xf32> {
  %0 = stablehlo.exponential %x : tensor<8x4xf32>
  %1 = sdy.sharding_constraint %0 <@mesh, [{}, {"data"}]> : tensor<8x4xf32>
  return %1 : tensor<8x4xf32>
}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("modules")
    (path / "step.mlir").write_text(MODULE.format(partitions=1))
    (path / "eight.mlir").write_text(MODULE.format(partitions=8))
    (path / "mesh.mlir").write_text(WITH_MESH)
    (path / "wide.mlir").write_text(MODULE.format(partitions=1).replace("f32", "f64"))
    (path / "empty.mlir").write_text("\n")
    (path / "prose.mlir").write_text("hello world")
    (path / "prose.bin").write_text("hello world, which is no exported function")
    step = jax.jit(lambda params, x: jnp.tanh(x @ params["w"]))
    struct = jax.ShapeDtypeStruct
    exported = export.export(step)({"w": struct((16, 8), jnp.float32)}, struct((64, 16), jnp.float32))
    (path / "step.bin").write_bytes(exported.serialize())
    (path / "step.mlirbc").write_bytes(exported.mlir_module_serialized)
    (path / "bytecode.bin").write_bytes(exported.mlir_module_serialized)
    (rows,) = export.symbolic_shape("rows")
    sums = export.export(jax.jit(lambda x: x.sum(0)))(struct((rows, 8), jnp.float32))
    (path / "sums.bin").write_bytes(sums.serialize())
    return path


@pytest.fixture
def explain(folder, capsys):
    """Run the command, and return its exit code, its output and its errors."""

    def run(file, *options):
        code = main(["explain", str(folder / file), *options, "--no-advice"])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


MESH = ("--mesh", "data=64,model=8", "--hardware", "h100")


@pytest.mark.table(default=2)
@pytest.mark.parametrize(
    ("file", "pins"),
    [
        ("step.mlir", ("x=None,data", "params['w']=data")),
        ("step.mlir", ("0=None,data", "arg1=data,None")),
        ("wide.mlir", ("x=None,data", "1=data")),
        ("step.bin", ("1=None,data", "0=data")),
        ("step.mlirbc", ("1=None,data", "0=data")),
        ("bytecode.bin", ("1=None,data", "0=data")),
    ],
)
def test_pins_name_arguments_of_a_file(explain, file, pins):
    code, out, err = explain(file, *MESH, *(part for pin in pins for part in ("--pin", pin)))
    assert (code, err) == (0, "")
    assert "on mesh data=64, model=8: 1 collective" in out and "per call on h100" in out
    assert "all_reduce" in out or "reduce_scatter" in out


def test_several_axes_shard_a_dim(explain):
    code, out, _ = explain("step.mlir", *MESH, "--pin", "x=data+model")
    assert code == 0 and "P(('data', 'model'), None)" in out


def test_the_mesh_and_the_shardings_of_a_module_are_defaults(explain):
    code, out, _ = explain("mesh.mlir")
    assert code == 0 and "on mesh data=4, model=2: 1 collective" in out
    code, out, _ = explain("mesh.mlir", "--mesh", "rows=4,columns=2", "--pin", "0=None,rows")
    assert code == 0 and "on mesh rows=4, columns=2: 0 collectives" in out


def test_symbolic_dims_have_sizes(explain):
    code, out, _ = explain("sums.bin", "--mesh", "data=4", "--pin", "0=data", "--set", "rows=32")
    assert code == 0 and "f32[32,8]" in out and "1 collective" in out


def test_pages_traces_and_stages_are_those_of_functions(explain, tmp_path):
    page, trace = tmp_path / "page.html", tmp_path / "trace.json"
    code, out, _ = explain(
        "step.mlir", *MESH, "--pin", "x=data", "--page", str(page), "--trace", str(trace), "--stages"
    )
    assert code == 0 and out.startswith("== 1. trace") and page.exists() and trace.exists()


X = ("--mesh", "data=8", "--pin", "x=data")


@pytest.mark.table(default=4)
@pytest.mark.parametrize(
    ("file", "options", "message"),
    [
        ("missing.mlir", X, "there is no file"),
        ("missing.bin", X, "there is no file"),
        ("empty.mlir", X, "is empty"),
        ("prose.mlir", X, "the module cannot be parsed: line 1, column 1"),
        ("prose.bin", X, "the serialized function is damaged, or no file of `export`"),
        ("step.mlir", ("--pin", "x=data"), "the module states no mesh: write --mesh"),
        ("step.bin", ("--pin", "0=data"), "the exported function states no mesh: write --mesh"),
        ("step.mlir", X[:2], "no argument is sharded: pin one, such as --pin x=data"),
        (
            "step.mlir",
            (*X[:2], "--pin", "y=data"),
            "there is no argument 'y'. Its arguments: x f32[64,16], params['w']",
        ),
        ("step.mlir", (*X[:2], "--pin", "param['w']=data"), "Did you mean \"params['w']\"?"),
        ("step.mlir", (*X[:2], "--pin", "2=data"), "there is no argument '2'"),
        ("step.mlir", (*X[:2], "--pin", "x=date"), "the mesh data=8 has no axis 'date'. Did you mean 'data'?"),
        ("step.mlir", (*X[:2], "--pin", "x=data,data"), "an axis can shard one dim only"),
        ("step.mlir", (*X[:2], "--pin", "x=data,None,None"), "'x' is f32[64,16], and the pin has 3 dims"),
        ("step.mlir", (*X[:2], "--pin", "x"), "write ARGUMENT=AXES"),
        ("step.mlir", (*X[:2], "--pin", "x=data+"), "write ARGUMENT=AXES"),
        ("step.mlir", (*X, "--pin", "0=data"), "'x' is pinned twice"),
        ("step.mlir", (*X, "--mesh", "data=4"), "mesh can be given once here"),
        ("step.mlir", (*X, "--set", "rows=3"), "only an exported function has symbolic dims"),
        ("step.mlir", (*X, "--arguments", "f"), "--arguments needs a function"),
        ("eight.mlir", ("--mesh", "data=4", "--pin", "x=data"), "the module is for 8 devices, and the mesh data=4"),
        ("mesh.mlir", ("--mesh", "data=8"), "the mesh of the module is data=4, model=2, and data=8 has other sizes"),
        ("sums.bin", ("--mesh", "data=8", "--pin", "0=data"), "write --set rows=SIZE"),
        ("sums.bin", ("--mesh", "data=8", "--pin", "0=data", "--set", "rows=x"), "is an integer"),
    ],
)
def test_bad_input_is_one_line(explain, file, options, message):
    code, out, err = explain(file, *options)
    assert (code, out) == (2, "")
    assert err.startswith("shardwise explain: ") and err.count("\n") == 1
    assert message in err


def test_a_pin_needs_a_module(capsys):
    assert main(["explain", "train.py:step", "--pin", "x=data"]) == 2
    assert "--pin needs a module" in capsys.readouterr().err
