"""GpuVendor: which plugins are GPU plugins, and where their kernels are."""

import pytest

from shardwise.runtime.plugins import gpu_vendor
from shardwise.runtime.plugins.gpu_vendor import CUDA, ROCM, register_kernels, vendor_of
from shardwise.runtime.plugins.plugin import Plugin


@pytest.mark.parametrize(
    ("library", "vendor"),
    [("/a/xla_cuda_plugin.so", CUDA), ("/a/xla_rocm_plugin.so", ROCM), ("/a/libtpu.so", None), ("", None)],
)
def test_vendor_follows_from_the_file_and_not_from_the_name(library, vendor):
    assert vendor_of(Plugin("any name", "a test", library)) is vendor


@pytest.fixture
def both_versions(tmp_path, monkeypatch):
    for name in ("jax_cuda12_plugin", "jax_cuda13_plugin"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("both_versions")
def test_kernels_have_the_version_of_the_library():
    assert CUDA.kernel_package("/site/jax_plugins/xla_cuda12/xla_cuda_plugin.so") == "jax_cuda12_plugin"
    assert CUDA.kernel_package("/site/jax_plugins/xla_cuda13/xla_cuda_plugin.so") == "jax_cuda13_plugin"
    assert CUDA.kernel_package("/opt/xla_cuda_plugin.so") == "jax_cuda13_plugin"  # the newest
    assert ROCM.kernel_package("/opt/xla_rocm_plugin.so") is None


@pytest.mark.usefixtures("both_versions")
def test_kernels_are_registered_once_per_vendor(monkeypatch):
    calls = []
    monkeypatch.setattr(gpu_vendor, "register_gpu_kernels", lambda *arguments: calls.append(arguments))
    monkeypatch.setattr(gpu_vendor, "_registered", set())
    for name in ("first", "second"):
        register_kernels(CUDA, "/site/xla_cuda12/xla_cuda_plugin.so", name)
    register_kernels(ROCM, "/site/xla_rocm7/xla_rocm_plugin.so", "third")  # its kernels are not installed
    assert calls == [("first", "CUDA", "jax_cuda12_plugin", "cuda_plugin_extension")]


def test_options_are_those_of_the_allocator(monkeypatch):
    monkeypatch.setenv("XLA_CLIENT_MEM_FRACTION", "0.25")
    assert CUDA.default_options()["memory_fraction"] == 0.25
    assert (CUDA.default_options()["platform_name"], ROCM.default_options()["platform_name"]) == ("cuda", "ROCM")
