"""as_jax: what `import jax` gives, errors for what is missing, and the command line, each in a process of its own."""

import subprocess
import sys
import textwrap

import pytest

import shardwise as sw
from shardwise.jax_modules.version import JAX_VERSION


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
        print(jax.__version__, jax.grad(lambda x: x**2)(3.0), "jax._src.sharding_impls" in sys.modules)
    """)
    assert printed == f"{'.'.join(map(str, JAX_VERSION))} 6.0 False"
    assert sw.__version__ != ".".join(map(str, JAX_VERSION))


def test_a_library_that_imports_private_names(tmp_path):
    (tmp_path / "library.py").write_text(
        "import jax.extend.core\nfrom jax.interpreters import ad, batching, mlir\nfrom jax._src import core, dtypes\n"
        "import jax.experimental.array_serialization.serialization, jax.experimental.layout, shardwise.experimental\n"
        "assert jax.experimental is shardwise.experimental and jax._src.distributed.global_state.client is None\n"
        "assert jax._src.distributed.global_state.process_id == 0\n"
        "import jax.lib, jaxlib.version\nassert jax.lib.__version__ == jaxlib.version.__version__\n"
    )
    run("import sys, shardwise; sys.path.insert(0, sys.argv[1]); shardwise.as_jax(); import library", str(tmp_path))


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        (
            "import jax._src.sharding_impls",
            "jax._src.sharding_impls is not a module that Shardwise provides, and library",
        ),
        ("from jax._src.core import nothing", "jax._src.core.nothing, which library asks for, is not provided"),
        ("from jax._src.core import nothing", "It provides AbstractValue, ShapedArray, "),
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
