from shardwise.checkpoints.manager import Manager as Manager, Restored as Restored
from shardwise.checkpoints.manifest import Manifest as Manifest
from shardwise.checkpoints.orbax import import_orbax as import_orbax, read_orbax as read_orbax
from shardwise.checkpoints.peer_snapshots import PeerSnapshots as PeerSnapshots
from shardwise.checkpoints.recover import recover as recover
from shardwise.checkpoints.restore import read_manifest as read_manifest, restore as restore
from shardwise.checkpoints.safetensors import (
    export_safetensors as export_safetensors,
    import_safetensors as import_safetensors,
    read_safetensors as read_safetensors,
)
from shardwise.checkpoints.save import Save as Save, save as save
from shardwise.checkpoints.verify import verify as verify
