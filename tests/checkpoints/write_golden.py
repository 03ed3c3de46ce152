"""Write the golden checkpoint of this version of the format: python -m tests.checkpoints.write_golden

Run it once when `FORMAT_VERSION` changes, and commit what it writes. `test_manifest_golden.py` keeps all of them
readable.
"""

from pathlib import Path

import ml_dtypes
import numpy as np

import shardwise as sw
import shardwise.numpy as jnp
from shardwise import checkpoints
from shardwise.checkpoints import manifest, snapshot

FOLDER = Path(__file__).parent / "golden"


def golden_tree():
    """Return a pytree with every kind of leaf; `large` is saved in a folder of its own, the other arrays in a pack."""
    mesh = sw.make_mesh((4, 2), ("data", "model"))
    large = np.arange(240, dtype=np.float32).reshape(20, 12)
    return {
        "large": sw.device_put(large, sw.NamedSharding(mesh, sw.P("data", "model"))),
        "uneven": sw.device_put(np.arange(7, dtype=np.int16), sw.NamedSharding(mesh, sw.P("data"))),
        "small": [jnp.arange(3, dtype=jnp.bfloat16), np.arange(4, dtype=np.int64), jnp.zeros((0, 2))],
        "f8": jnp.asarray(np.arange(5).astype(ml_dtypes.float8_e5m2)),
        "i4": jnp.asarray(np.arange(-4, 4).astype(ml_dtypes.int4)),
        "key": sw.random.key(3),
        "values": {"int": 7, "float": 0.1, "complex": 1 - 2j, "text": "é", "flag": True, "none": None, "a/b~": -1},
    }


def main() -> None:
    snapshot.LARGEST_PACKED = 500
    path = FOLDER / f"version-{manifest.FORMAT_VERSION}"
    checkpoints.save(path, golden_tree(), metadata={"note": "golden"}).wait()
    print(path)


if __name__ == "__main__":
    sw.config.update("num_cpu_devices", 8)
    main()
