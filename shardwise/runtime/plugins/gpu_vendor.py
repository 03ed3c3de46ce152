"""GpuVendor: the parts of the GPU plugins of one vendor that PJRT does not cover.

jaxlib's kernels for GPUs (cuSOLVER, cuSPARSE and others) are in a package beside the plugin. They are registered with
XLA after the library is loaded, and before a client is created.
"""

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, final

from shardwise.base._jaxlib import gpu_plugin_options, register_gpu_kernels
from shardwise.runtime.plugins.plugin import Plugin

GPU_PRIORITY = 500  # as in JAX


@final
@dataclass(frozen=True)
class GpuVendor:
    """The GPU plugins of one vendor.

    Attributes:
        name: PJRT's name of the platform.
        library: the file name of the plugin's library.
        xla_platform: the name under which XLA registers custom calls.
        extension: the module that registers kernels with the plugin.
        kernel_packages: the packages with jaxlib's kernels, the newest first.
        platform_option: the value of the plugin's option `platform_name`.
    """

    name: str
    library: str
    xla_platform: str
    extension: str
    kernel_packages: tuple[str, ...]
    platform_option: str

    def default_options(self) -> dict[str, Any]:
        """Return the options of every client: those of the memory allocator, from environment variables."""
        return {**gpu_plugin_options(), "platform_name": self.platform_option}

    def kernel_package(self, library: str) -> str | None:
        """Return the installed package with the kernels for a library; None if there is none.

        If several are installed, it is the package with the version of the library's folder: `jax_cuda12_plugin` for a
        library in `jax_plugins/xla_cuda12`.
        """
        version = Path(library).parent.name.removeprefix(f"xla_{self.name}")
        installed = [package for package in self.kernel_packages if find_spec(package) is not None]
        same_version = [package for package in installed if package == f"jax_{self.name}{version}_plugin"]
        return next(iter(same_version or installed), None)


CUDA = GpuVendor(
    "cuda",
    "xla_cuda_plugin.so",
    "CUDA",
    "cuda_plugin_extension",
    ("jax_cuda13_plugin", "jax_cuda12_plugin"),
    "cuda",
)
ROCM = GpuVendor(
    "rocm",
    "xla_rocm_plugin.so",
    "ROCM",
    "rocm_plugin_extension",
    ("jax_rocm10_plugin", "jax_rocm7_plugin", "jax_rocm60_plugin"),
    "ROCM",
)
VENDORS = (CUDA, ROCM)


def vendor_of(plugin: Plugin) -> GpuVendor | None:
    """Return the vendor of a plugin, by the file name of its library; None for other plugins than GPU plugins."""
    file_name = Path(plugin.library).name
    return next((vendor for vendor in VENDORS if vendor.library == file_name), None)


_registered: set[str] = set()  # the vendors whose kernels are registered


def register_kernels(vendor: GpuVendor, library: str, api: Any) -> None:
    """Register the kernels for a library, if they are installed.

    jaxlib has one set of kernels per vendor and process, so they are registered for the first library only. The same
    library may be loaded under several names.
    """
    package = vendor.kernel_package(library)
    if package is not None and vendor.name not in _registered:
        register_gpu_kernels(api, vendor.xla_platform, package, vendor.extension)
        _registered.add(vendor.name)
