"""as_jax: what `import jax` gives, errors for what is missing, and the command line, each in a process of its own."""

import subprocess
import sys
import textwrap

import pytest

import shardwise as sw
from shardwise.base import _jaxlib
from shardwise.jax_modules.version import release_of


def run(program, *arguments, fails=False):
    """Run a program, and return what it prints, or its error."""
    command = [sys.executable, "-c", textwrap.dedent(program), *arguments]
    process = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert (process.returncode != 0) == fails, process.stderr[-2000:]
    return (process.stderr if fails else process.stdout).strip()


def test_import_jax_gives_shardwise():
    printed = run("""
        import shardwise
        assert shardwise.as_jax() is shardwise.as_jax()
        import jax, jax.numpy as jnp
        from jax.sharding import PartitionSpec as P
        from jax import lax, random
        assert jnp is shardwise.numpy and lax is shardwise.lax and P is shardwise.P
        assert jax.config is shardwise.config and jax.jit is shardwise.jit
        import jax.scipy.special
        import sys
        import jax.version
        assert jax.version.__version_info__ == jax.__version_info__ and jax.version.__version__ == jax.__version__
        assert jax.version.__version_info__ == jax.__version_info__
        print(jax.__version__, jax.grad(lambda x: x**2)(3.0), "jax._src.sharding_impls" in sys.modules)
    """)
    jax_version = ".".join(map(str, release_of(_jaxlib.jaxlib_version())))
    assert printed == f"{jax_version} 6.0 False" and sw.__version__ != jax_version


@pytest.mark.parametrize(
    ("version", "release"),
    [("0.10.2", (0, 10, 2)), ("0.12.0.1", (0, 12, 0, 1)), ("0.12.1.dev20261101", (0, 12, 1)), ("0.13", (0, 13))],
)
def test_the_version_of_jax_is_the_release_of_jaxlib(version, release):
    assert release_of(version) == release


@pytest.mark.jax
def test_the_version_equals_that_of_the_installed_jax():
    jax = pytest.importorskip("jax")
    assert release_of(_jaxlib.jaxlib_version()) == jax.__version_info__


def test_a_library_that_imports_private_names(tmp_path):
    (tmp_path / "library.py").write_text(
        "import jax.extend.core\nfrom jax.interpreters import ad, batching, mlir\nfrom jax._src import core, dtypes\n"
        "import jax.experimental.array_serialization.serialization, jax.experimental.layout, shardwise.experimental\n"
        "assert jax.experimental is shardwise.experimental and jax._src.distributed.global_state.client is None\n"
        "assert jax._src.distributed.global_state.process_id == 0\n"
        "import jax.lib, jaxlib.version\nassert jax.lib.__version__ == jaxlib.version.__version__\n"
    )
    run("import sys, shardwise; sys.path.insert(0, sys.argv[1]); shardwise.as_jax(); import library", str(tmp_path))


@pytest.mark.table(default=1)
@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("import jax._src.nothing", "jax._src.nothing is not a module of JAX 0"),
        ("import jax._src.nothing", "which Shardwise follows, and library asks for it."),
        ("from jax._src.pjit import nothing", "ImportError: jax._src.pjit has no attribute 'nothing' in JAX 0"),
        ("from jax._src.core import nothing", "jax._src.core.nothing, which library asks for, is not provided"),
        (
            "from jax._src.core import nothing",
            "It provides DimSize, Shape, canonicalize_shape, full_lower, trace_state_clean.",
        ),
        ("from jax.extend import nothing", "jax.extend.nothing, which library asks for, is not provided"),
        ("from jax.lax import nothing", "shardwise.lax has no attribute 'nothing'"),
        ("import jax.extend.core as c; c.nothing", "jax.extend.core.nothing, which library asks for, is not provided"),
        ("import jax; jax.nothing", "has no attribute 'nothing'"),
    ],
)
def test_missing_names_are_errors_with_the_library(tmp_path, statement, message):
    (tmp_path / "library.py").write_text(statement)
    error = run(
        "import sys, shardwise; sys.path.insert(0, sys.argv[1]); shardwise.as_jax(); import library",
        str(tmp_path),
        fails=True,
    )
    assert message in error.splitlines()[-1]


def test_private_names_that_libraries_do_not_use_are_placeholders(tmp_path):
    """They can be imported; every use is an error, and is recorded where a library catches it."""
    (tmp_path / "library.py").write_text(
        textwrap.dedent("""
        import jax
        from typing import Optional
        from jax._src import core, effects, pjit
        from jax._src.core import EvalTrace
        from jax._src.interpreters import pxla
        from shardwise.base.unsupported import used_placeholders
        from shardwise.errors import UnsupportedError

        def annotated(a: EvalTrace | None, b: Optional[EvalTrace]): ...

        assert core.EvalTrace.__name__ == "EvalTrace" and not hasattr(core, "nothing")
        assert pjit.__all__ and not hasattr(pjit, "nothing") and not used_placeholders()
        for use in (
            lambda: EvalTrace(),
            lambda: EvalTrace.process_primitive,
            lambda: isinstance(1, EvalTrace),
            lambda: EvalTrace >= 448,
            lambda: [*EvalTrace],
            lambda: type("Derived", (dict, EvalTrace), {}),
            lambda: effects.EffectTypeSet().add_type(int),
            lambda: pxla.shard_args(),
        ):
            try:
                use()
            except UnsupportedError as error:
                print(error)
        print(used_placeholders())
        """)
    )
    program = (
        "import sys, shardwise; from shardwise.base.call_site import skip_folder; skip_folder(sys.argv[1]); "
        "sys.path.insert(0, sys.argv[1]); shardwise.as_jax(); import library"
    )
    lines = run(program, str(tmp_path)).splitlines()
    names = ["core.EvalTrace"] * 6 + ["effects.EffectTypeSet", "interpreters.pxla.shard_args"]
    assert len(lines) == len(names) + 1
    for name, line in zip(names, lines, strict=False):
        assert line.startswith(f"jax._src.{name} is not supported yet. library uses it. "), line
    assert lines[-1] == str([f"jax._src.{name}" for name in sorted(set(names))])


def test_private_names_of_public_things_are_these():
    run("""
        import shardwise
        shardwise.as_jax()
        import jax, jaxlib.xla_client
        from jax._src import api, lib
        from jax._src.lax import lax
        from jax._src.numpy import lax_numpy
        from jax._src.sharding_impls import NamedSharding
        from jax._src.typing import Array
        assert api.vmap is jax.vmap and lax.add is jax.lax.add and lax_numpy.arange is jax.numpy.arange
        assert NamedSharding is jax.sharding.NamedSharding and Array is jax.Array
        assert lib.xla_client is jaxlib.xla_client and lib.jaxlib_extension_version > 400
        assert lib.version == jax.__version_info__
        from jax._src.lib.mlir import ir
        from jax._src.pjit import jit_p
        assert ir.__name__ == "jaxlib.mlir.ir" and jit_p is jax.extend.core.primitives.jit_p
        import jax.experimental.checkify, jax.experimental.hijax
        from jax import _src
        from jax._src import flatten_util
        from jax._src.state.types import AbstractRef
        assert _src.ad_util.stop_gradient_p is jax.lax.stop_gradient_p
        assert _src.checkify.checkify is jax.experimental.checkify.checkify
        assert _src.core.ShapedArray is jax.core.ShapedArray and _src.core.TraceTag is jax.extend.core.TraceTag
        assert _src.dtypes.extended is jax.dtypes.extended and _src.dtypes.finfo is jax.numpy.finfo
        assert flatten_util.ravel_pytree is jax.flatten_util.ravel_pytree
        assert AbstractRef is jax.experimental.hijax.AbstractRef
        assert _src.xla_bridge.get_backend is jax.extend.backend.get_backend
        # jaxlib looks for names in this module when it creates arrays.
        assert (jax.jit(lambda x: 2 * x)(jax.numpy.arange(3)) == jax.numpy.array([0, 2, 4])).all()
    """)


def test_missing_names_can_be_looked_for(tmp_path):
    (tmp_path / "library.py").write_text(
        "import jax.extend.core, jax.numpy\n"
        "assert not hasattr(jax.extend.core, 'nothing') and not hasattr(jax.numpy, 'nothing')\n"
        "try:\n    from jax.extend.core import nothing\nexcept ImportError:\n    pass\n"
    )
    run("import sys, shardwise; sys.path.insert(0, sys.argv[1]); shardwise.as_jax(); import library", str(tmp_path))


def test_a_missing_public_name_names_the_installed_library(tmp_path):
    (tmp_path / "library.py").write_text("from jax.numpy import nothing\n")
    program = (
        "import sys, shardwise; from shardwise.base.call_site import skip_folder; skip_folder(sys.argv[1]); "
        "sys.path.insert(0, sys.argv[1]); shardwise.as_jax(); import library"
    )
    error = run(program, str(tmp_path), fails=True).splitlines()[-1]
    assert error.startswith("ImportError: shardwise.numpy has no attribute 'nothing'")
    assert error.endswith("library asks for it.")


def test_after_the_real_jax_it_is_an_error(tmp_path):
    (tmp_path / "jax.py").write_text("")
    error = run(
        "import sys; sys.path.insert(0, sys.argv[1]); import jax, shardwise; shardwise.as_jax()",
        str(tmp_path),
        fails=True,
    )
    assert "is already imported. Call `shardwise.as_jax()` before" in error.splitlines()[-1]


@pytest.mark.slow
def test_command_line_runs_scripts_and_modules(tmp_path):
    (tmp_path / "script.py").write_text(
        "import sys, jax, helper\nprint(jax.__name__, sys.argv[1:], __name__, jax.numpy.arange(3).sum(), helper.X)\n"
    )
    (tmp_path / "helper.py").write_text("X = 5\n")

    def command(*arguments):
        program = [sys.executable, "-m", "shardwise", *arguments]
        return subprocess.run(program, check=False, capture_output=True, text=True, cwd=tmp_path, timeout=120)

    for arguments in (["run", "script.py", "a", "--flag"], ["run", "-m", "script", "a", "--flag"]):
        assert command(*arguments).stdout.strip() == "jax ['a', '--flag'] __main__ 3 5"
    missing = command("run", "absent.py")
    assert missing.returncode == 2 and "the script 'absent.py' does not exist" in missing.stderr
