"""One process of `benchmarks.gpu_plugin`: it runs programs on a platform and compares them with NumPy.

    python -m benchmarks.gpu_plugin_worker PLATFORM [--as-jax]

It prints one JSON object per line: first the platforms, then the checks.
"""

import argparse
import json
import sys
import traceback
from collections.abc import Iterator
from typing import Any

import numpy as np

import shardwise as sw
import shardwise.numpy as jnp
from benchmarks.gpu.check import TOLERANCE, Check, relative_error

RNG = np.random.default_rng(0)
X = RNG.normal(size=(64, 64)).astype(np.float32)
POSITIVE = X @ X.T + 64 * np.eye(64, dtype=np.float32)


def checks(device: Any) -> Iterator[tuple[str, Check]]:
    """Yield the checks of a device by name."""
    x, positive = sw.device_put(X, device), sw.device_put(POSITIVE, device)

    def placed(result: Any, expected: Any) -> float:
        assert result.devices() == {device}, f"the result is on {result.devices()}, not on {device}"
        return relative_error(result, expected)

    def eigh() -> float:
        values, vectors = sw.jit(jnp.linalg.eigh)(positive)
        return relative_error(np.asarray(positive) @ np.asarray(vectors), np.asarray(vectors) * np.asarray(values))

    def eig() -> float:
        """A hybrid routine, which calls LAPACK on the host."""
        values = np.sort(np.asarray(sw.jit(jnp.linalg.eigvals)(positive)).real)
        return relative_error(values, np.linalg.eigvalsh(POSITIVE))

    def callback() -> float:
        shape = sw.ShapeDtypeStruct(X.shape, X.dtype)
        return placed(sw.jit(lambda x: sw.pure_callback(np.sin, shape, x) + 1)(x), np.sin(X) + 1)

    def scan() -> float:
        total, _ = sw.jit(lambda x: sw.lax.scan(lambda c, row: (c + row, None), jnp.zeros(64), x))(x)
        return placed(total, X.sum(0))

    yield "jit", lambda: placed(sw.jit(lambda x: jnp.tanh(x) * 2)(x), np.tanh(X) * 2)
    yield "matmul", lambda: placed(sw.jit(lambda x: jnp.dot(x, x, precision="highest"))(x), X @ X)
    yield "grad", lambda: placed(sw.jit(sw.grad(lambda x: (jnp.sin(x) * x).sum()))(x), np.cos(X) * X + np.sin(X))
    yield "scan", scan
    yield "cholesky", lambda: placed(sw.jit(jnp.linalg.cholesky)(positive), np.linalg.cholesky(POSITIVE))
    yield "solve", lambda: placed(sw.jit(jnp.linalg.solve)(positive, x), np.linalg.solve(POSITIVE, X))
    yield "eigh", eigh
    yield "eig", eig
    yield "callback", callback


def run_check(name: str, check: Check) -> dict[str, Any]:
    """Run one check. Any exception is a failure, with its traceback."""
    try:
        error = check()
    except Exception as failure:
        problem = f"{type(failure).__name__}: {failure}"
        return {"check": name, "ok": False, "error": problem, "traceback": traceback.format_exc()}
    return {"check": name, "ok": error <= TOLERANCE, "error": f"{error:.1e}"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("platform", help="the platform to run on; empty for the default")
    parser.add_argument("--as-jax", action="store_true", help="call as_jax() first")
    options = parser.parse_args()
    if options.as_jax:
        sw.as_jax()
    default = sw.devices()[0]
    device = sw.devices(options.platform or None)[0]
    state = {
        "platforms": list(sw.extend.backend.backends()),
        "default": sw.default_backend(),
        "device": f"{device} ({device.device_kind}), default {default}",
        "version": str(device.client.platform_version),
        "jax_modules": sorted(name for name in sys.modules if name == "jax" or name.startswith("jax.")),
    }
    print(json.dumps(state), flush=True)
    for name, check in checks(device):
        print(json.dumps(run_check(name, check)), flush=True)


if __name__ == "__main__":
    main()
