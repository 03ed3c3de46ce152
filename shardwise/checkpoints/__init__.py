"""Checkpoints: save and restore pytrees of sharded arrays, on any mesh and any number of processes.

The name is plural because `shardwise.checkpoint` is JAX's function for rematerialization.
"""

from shardwise.base.lazy import set_public_names
from shardwise.checkpoints.manager import Manager as Manager
from shardwise.checkpoints.manager import Restored as Restored
from shardwise.checkpoints.manifest import Manifest as Manifest
from shardwise.checkpoints.orbax import import_orbax as import_orbax
from shardwise.checkpoints.orbax import read_orbax as read_orbax
from shardwise.checkpoints.restore import read_manifest as read_manifest
from shardwise.checkpoints.restore import restore as restore
from shardwise.checkpoints.safetensors import export_safetensors as export_safetensors
from shardwise.checkpoints.safetensors import import_safetensors as import_safetensors
from shardwise.checkpoints.safetensors import read_safetensors as read_safetensors
from shardwise.checkpoints.save import Save as Save
from shardwise.checkpoints.save import save as save
from shardwise.checkpoints.verify import verify as verify

__all__ = [
    "Manager",
    "Manifest",
    "Restored",
    "Save",
    "export_safetensors",
    "import_orbax",
    "import_safetensors",
    "read_manifest",
    "read_orbax",
    "read_safetensors",
    "restore",
    "save",
    "verify",
]

set_public_names(__name__, __all__)
