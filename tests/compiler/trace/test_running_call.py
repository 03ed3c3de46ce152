"""The call that the user's line executes, found from its source text."""

import math

import numpy as np
import pytest

import shardwise.numpy as jnp
from shardwise.base.call_site import PACKAGE
from shardwise.compiler.trace.running_call import running_call, shared_numpy_name

SOURCE = '''
class Asks:
    """An object whose conversion to an array or an integer asks which function is called, as tracers do."""

    function = "not asked"

    def __array__(self, dtype=None, copy=None):
        self.function = running_call()
        return np.zeros(2)

    def __index__(self):
        self.function = running_call()
        return 2
'''
NAMESPACE = {"np": np, "running_call": running_call}
exec(compile(SOURCE, f"{PACKAGE}asks.py", "exec"), NAMESPACE)  # its frames count as frames of the package
Asks = NAMESPACE["Asks"]


def test_call_of_a_ufunc_in_an_expression():
    x = Asks()
    assert (1 + np.sin(x) * 2).shape == (2,)
    assert x.function is np.sin


def test_call_over_several_lines_and_through_python_code_of_numpy():
    x = Asks()
    np.linalg.norm(
        x,
        axis=0,
    )
    assert x.function is np.linalg.norm


def test_call_of_a_builtin_and_of_a_local_name():
    x, count = Asks(), range
    list(range(x))
    assert x.function is range
    count(x)
    assert x.function is range


def test_unknown_calls():
    x = Asks()
    [1, 2, 3][x]  # no call
    assert x.function is None
    [np.cos][0](x)  # neither a name nor an attribute of a module
    assert x.function is None
    exec("import numpy as np\nnp.sin(x)", {"x": x})  # no source text
    assert x.function is None


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (np.sin, "sin"),
        (np.mean, "mean"),
        (np.linalg.norm, "linalg.norm"),
        (np.fft.fft, "fft.fft"),
        (np.busday_count, ""),
        (math.sin, ""),
        (None, ""),
        (range, ""),
    ],
)
def test_name_that_shardwise_numpy_shares(function, name):
    assert shared_numpy_name(function, jnp) == name
