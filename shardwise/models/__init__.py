"""Models as plain functions, whose steps `simulate` and `autoshard` plan for hardware that need not be present."""

from shardwise.base.lazy import set_public_names
from shardwise.models.attention import LatentAttention as LatentAttention
from shardwise.models.decoder import Decoder as Decoder
from shardwise.models.feed_forward import Experts as Experts
from shardwise.models.presets import PRESETS as PRESETS
from shardwise.models.presets import preset as preset
from shardwise.models.training import train_state as train_state
from shardwise.models.training import train_step as train_step

__all__: list[str] = ["PRESETS", "Decoder", "Experts", "LatentAttention", "preset", "train_state", "train_step"]

set_public_names(__name__, __all__)
