"""Models as plain functions, whose steps `simulate` and `autoshard` plan for hardware that need not be present."""

from shardwise.base.lazy import set_public_names
from shardwise.models.decoder import Decoder as Decoder
from shardwise.models.decoder import train_state as train_state
from shardwise.models.decoder import train_step as train_step
from shardwise.models.presets import PRESETS as PRESETS
from shardwise.models.presets import preset as preset

__all__: list[str] = ["PRESETS", "Decoder", "preset", "train_state", "train_step"]

set_public_names(__name__, __all__)
