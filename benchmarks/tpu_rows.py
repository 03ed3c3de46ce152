"""Published training runs of decoders on TPUs, with the configurations that their sources state.

MaxText has changed the sizes of its models, its batches and the flops that it counts. Rows have those of the commit
that published the run, which is named with the source.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

from benchmarks.decoder_run import ATTENTION, DEVELOPED, FITTED, HELD_OUT, LAYERS, DecoderRun, tokens_per_second
from shardwise.models import Decoder, preset

_V4 = "MaxText, README.md (281e04b, 2023)"
_V5E = "MaxText, README.md (9bc243c, 2023)"
_V5P = "MaxText, configs/v5p/README.md (76bd53b, 2023)"
_V5P_RECIPE = "Google tpu-recipes, training/v5p/Llama3.1-405B-MaxText"
_PALM = "PaLM (arXiv 2204.02311)"


def _maxtext(scale: int) -> Decoder:
    """Return the decoder of MaxText's `global_parameter_scale` of 2023, a power of 2."""
    cycles, rest = divmod(scale.bit_length() - 1, 3)
    wide, deep = 2 ** (cycles + (rest > 1)), 2**cycles
    more = 2 ** (cycles + (rest > 0))
    return Decoder(16 * deep, 2560 * wide, 8 * more, 8 * more, 256, 8192 * more, 32768, is_gated=False, is_tied=True)


def _tpu(
    chip: str,
    source: str,
    name: str,
    sizes: Decoder,
    attention: float,
    slice_: int,
    rates: Sequence[tuple[int, float]],
    length: int = 2048,
    splits: Mapping[int, str] = MappingProxyType({}),
    **settings: Any,
) -> list[DecoderRun]:
    """Return the rows of a model on one slice and on several, with data parallelism between them.

    Args:
        attention: the share of pairs of tokens whose flops the source counts.
        slice_: the chips of a slice.
        rates: pairs of the number of slices and the teraflops per second per chip.
        splits: the splits of some numbers of slices.
        settings: other attributes of the rows.
    """
    return [
        DecoderRun(
            chip,
            f"{name}, {slices} × {slice_} chips",
            sizes,
            length,
            slices * slice_,
            published=tokens_per_second(tflops, sizes, length, attention),
            source=source,
            split=splits.get(slices, HELD_OUT),
            shards_width=True,
            replicas=slices,
            node=slice_,
            **settings,
        )
        for slices, tflops in rates
    ]


# Attention was not a fused kernel: scores were stored.
_relu = partial(Decoder, head_width=256, vocabulary=32768, is_gated=False, is_tied=True, attention="xla")
_B22 = _relu(48, 6144, 24, 24, hidden=24576)
_B52 = _relu(32, 12288, 32, 32, hidden=49152)
_V4_ROWS = (
    *_tpu(
        "v4",
        _V4,
        "22B",
        _B22,
        0.0,
        64,
        ((1, 156), (2, 152), (4, 149), (8, 146)),
        sequences=16,
        length=1024,
        recomputed=LAYERS,
    ),
    *_tpu(
        "v4",
        _V4,
        "52B",
        _B52,
        0.0,
        192,
        ((1, 154), (2, 162)),
        sequences=10,
        length=1024,
        recomputed=LAYERS,
    ),
    DecoderRun(
        "v4",
        "PaLM 540B, tensor 12, 2 × 3,072 chips",
        Decoder(118, 18432, 48, 1, 256, 73728, 256000, is_tied=True),
        2048,
        6144,
        1 / 3,
        238300 / 6144,
        _PALM,
        recomputed=ATTENTION,
        tensor=12,
        replicas=2,
        node=3072,
        unlike="attention and feed-forward layers were parallel; Adafactor; the recomputation and the mesh are assumed",
    ),
)

_v5e = partial(_tpu, "v5e", _V5E, attention=1.0, slice_=256)
_V5E_ROWS = (
    *_v5e(
        "16B",
        _maxtext(16),
        rates=((1, 120), (2, 117), (4, 117), (8, 115), (16, 111)),
        sequences=6,
        recomputed=LAYERS,
        splits={1: FITTED, 8: DEVELOPED},
    ),
    *_v5e(
        "32B", _maxtext(32), rates=((1, 132), (2, 128), (4, 126), (8, 125), (16, 123)), sequences=4, recomputed=LAYERS
    ),
    *_v5e(
        "64B",
        _maxtext(64),
        rates=((1, 118), (2, 112), (4, 110), (8, 108), (16, 105)),
        sequences=2,
        recomputed=LAYERS,
        splits={1: DEVELOPED},
    ),
    *_v5e(
        "128B, tensor 16",
        _maxtext(128),
        rates=((1, 110), (2, 110), (4, 108), (8, 104), (16, 100)),
        sequences=1,
        recomputed=LAYERS,
        tensor=16,
    ),
)

_v5p = partial(_tpu, "v5p", _V5P, attention=0.5)
_V5P_ROWS = (
    *_v5p(
        "32B, tensor 4",
        _maxtext(32),
        slice_=64,
        rates=((1, 328), (2, 319)),
        sequences=8,
        recomputed=ATTENTION,
        tensor=4,
        splits={1: DEVELOPED},
    ),
    *_v5p(
        "64B, tensor 4",
        _maxtext(64),
        slice_=64,
        rates=((1, 323), (2, 309)),
        sequences=4,
        recomputed=ATTENTION,
        tensor=4,
    ),
    *_v5p(
        "128B, tensor 8",
        _maxtext(128),
        slice_=128,
        rates=((1, 315), (2, 305)),
        sequences=2,
        recomputed=ATTENTION,
        tensor=8,
    ),
    *_v5p(
        "128B, tensor 8",
        _maxtext(128),
        slice_=256,
        rates=((1, 316), (2, 274)),
        sequences=2,
        recomputed=ATTENTION,
        tensor=8,
    ),
    *_v5p(
        "256B, tensor 8",
        _maxtext(256),
        slice_=512,
        rates=((1, 308), (2, 289)),
        sequences=2,
        recomputed=ATTENTION,
        tensor=8,
    ),
    *_v5p(
        "512B, tensor 16",
        _maxtext(512),
        slice_=512,
        rates=((1, 294), (2, 282)),
        sequences=2,
        recomputed=LAYERS,
        tensor=16,
    ),
    *_v5p(
        "1024B, tensor 16",
        _maxtext(1024),
        slice_=1024,
        rates=((1, 254), (2, 237)),
        sequences=2,
        recomputed=LAYERS,
        tensor=16,
    ),
    *_v5p(
        "1024B, tensor 16",
        _maxtext(1024),
        slice_=2048,
        rates=((1, 297), (2, 279)),
        sequences=2,
        recomputed=LAYERS,
        tensor=16,
    ),
    DecoderRun(
        "v5p",
        "Llama 3 405B, 512 chips",
        preset("llama3-405b"),
        8192,
        512,
        2,
        124.618,
        _V5P_RECIPE,
        recomputed=LAYERS,
        node=512,
        unlike="two values per layer were saved in the memory of the host",
    ),
)

ROWS: tuple[DecoderRun, ...] = (*_V4_ROWS, *_V5E_ROWS, *_V5P_ROWS)
