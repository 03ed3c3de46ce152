"""Tracebacks show the user's lines; the package's frames are hidden unless asked for."""

import traceback

import pytest

import shardwise as sw
import shardwise.numpy as jnp


def layer(x):
    return x @ jnp.ones((5, 5))


def loss(x):
    return sw.jit(lambda y: layer(y) * 2.0)(x).sum()


def frames(function, *args):
    try:
        function(*args)
    except TypeError as error:
        return error, traceback.extract_tb(error.__traceback__)
    pytest.fail("no error")


@pytest.mark.parametrize(
    "transform", [lambda f: f, sw.jit, sw.grad, sw.vmap, lambda f: sw.jit(sw.grad(f)), lambda f: sw.vmap(sw.jit(f))]
)
def test_only_user_frames_and_called_functions_are_shown(transform):
    error, shown = frames(transform(loss), jnp.ones((2, 3)))
    inside = [frame for frame in shown if "/shardwise/" in frame.filename and "/tests/" not in frame.filename]
    assert len(inside) <= 6  # the public functions that were called, not their internals
    names = [frame.name for frame in shown if "/tests/" in frame.filename]
    assert names[0] == "frames" and "layer" in names[-1:]
    assert "(Frames inside shardwise are hidden" in error.__notes__[0]
    assert len(error.__notes__) == 1


def test_all_frames_on_request():
    hidden = len(frames(sw.jit(loss), jnp.ones((2, 3)))[1])
    sw.config.update("jax_traceback_filtering", "off")
    try:
        error, shown = frames(sw.jit(loss), jnp.ones((2, 3)))
    finally:
        sw.config.update("jax_traceback_filtering", "auto")
    assert len(shown) > hidden + 5
    assert not hasattr(error, "__notes__")


def test_user_exception_is_raised_unchanged():
    class Mine(Exception):
        pass

    def raises(x):
        raise Mine("as it was")

    for transform in (sw.jit, sw.grad, sw.vmap):
        with pytest.raises(Mine) as caught:
            transform(raises)(jnp.ones(2))
        assert str(caught.value) == "as it was"
