"""experimental.compilation_cache: the functions that set the folder of the persistent cache."""

import pytest

import shardwise as sw
from shardwise.experimental.compilation_cache import compilation_cache


@pytest.fixture
def restored():
    before = sw.config.compilation_cache_dir
    yield
    sw.config.update("compilation_cache_dir", before)


def test_programs_are_cached_in_the_folder(tmp_path, restored):
    compilation_cache.set_cache_dir(tmp_path / "cache")
    compilation_cache.reset_cache()
    assert sw.jit(lambda x: 3 * x + 1)(2.0) == 7
    assert list((tmp_path / "cache").glob("*.executable"))
    with pytest.raises(TypeError):
        compilation_cache.set_cache_dir(3)
