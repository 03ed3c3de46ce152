"""Block schedules: the sequence of collective-permutes that moves blocks between devices with the fewest bytes.

The input is a list of pieces: consecutive elements of one device that another device needs. A round is one
collective-permute: every device sends at most one block and receives at most one, all of the size of the largest. The
pieces between senders and receivers are the edges of a bipartite multigraph, and rounds are the colors of an edge
coloring. By König's theorem, the number of rounds is the largest number of pieces of one device, whatever the number of
devices.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import count
from typing import NamedTuple

MAX_ROUNDS = 6  # no more rounds to save bytes, because each round has a latency
_Slots = dict[int, dict[int, int]]  # device → round → the piece that it sends or receives


class Piece(NamedTuple):
    """Elements of device `source` that device `target` needs. Devices are indices along the exchange's axes.

    Attributes:
        source: the device that holds the elements.
        target: the device that needs them.
        start: their start in the operand of the source.
        position: their start in the result of the target.
        size: their number.
    """

    source: int
    target: int
    start: int
    position: int
    size: int

    def after_all_gather(self, operand_size: int) -> "Piece":
        """Return the piece after an all-gather that concatenates operands of this size on every device."""
        return self._replace(source=self.target, start=self.source * operand_size + self.start)


class Round(NamedTuple):
    """The pieces that are sent at once, in blocks of `size` elements. `is_local`: all pieces stay on their device."""

    size: int
    pieces: tuple[Piece, ...]
    is_local: bool


def schedule(pieces: Iterable[Piece]) -> tuple[Round, ...]:
    """Return the rounds of an exchange: the cheapest of several edge colorings, and rounds without communication.

    Long pieces may be split, so that all pieces of a round have about the same size. A piece that stays on its device
    joins a round in which the device neither sends nor receives, if there is one.
    """
    pieces = sorted(pieces, key=lambda piece: -piece.size)
    remote = [piece for piece in pieces if piece.source != piece.target]
    colorings = [color(_split(remote, size)) for size in _block_sizes(remote) for color in COLORINGS]
    fewest = max(MAX_ROUNDS, min(map(len, colorings)))
    rounds = min(
        (rounds for rounds in colorings if len(rounds) <= fewest),
        key=lambda rounds: (sum(group[0].size for group in rounds), len(rounds)),
    )
    local = [piece for piece in pieces if piece.source == piece.target]
    busy = [({piece.source for piece in group}, {piece.target for piece in group}) for group in rounds]
    rest = []
    for piece in local:
        for group, (sources, targets) in zip(rounds, busy, strict=True):
            if piece.source not in sources and piece.target not in targets and piece.size <= group[0].size:
                group.append(piece)
                sources.add(piece.source)
                targets.add(piece.target)
                break
        else:
            rest.append(piece)
    return (
        *(Round(group[0].size, tuple(group), is_local=False) for group in rounds),
        *(Round(group[0].size, tuple(group), is_local=True) for group in _first_fit(rest)),
    )


def merge_adjacent(pieces: Iterable[Piece]) -> list[Piece]:
    """Merge pieces that are adjacent in the operand of their source and in the result of their target."""
    merged: list[Piece] = []
    for piece in sorted(pieces, key=lambda piece: (piece.source, piece.target, piece.position)):
        before = merged[-1] if merged else None
        if before and piece == before._replace(
            start=before.start + before.size, position=before.position + before.size, size=piece.size
        ):
            merged[-1] = before._replace(size=before.size + piece.size)
        else:
            merged.append(piece)
    return merged


def sent_elements(rounds: Iterable[Round]) -> int:
    """Return the number of elements that each device sends."""
    return sum(each.size for each in rounds if not each.is_local)


def _block_sizes(pieces: Sequence[Piece]) -> list[int]:
    """Return a few candidate block sizes: the size of the largest piece, and some other sizes that occur."""
    sizes = sorted({piece.size for piece in pieces}, reverse=True) or [1]
    return [sizes[len(sizes) * index // 4] for index in range(min(4, len(sizes)))]


def _split(pieces: Sequence[Piece], size: int) -> list[Piece]:
    """Split pieces into pieces of at most `size` elements, largest first."""
    parts = [
        piece._replace(start=piece.start + at, position=piece.position + at, size=min(size, piece.size - at))
        for piece in pieces
        for at in range(0, piece.size, size)
    ]
    return sorted(parts, key=lambda piece: -piece.size)


def _first_fit(pieces: Sequence[Piece]) -> list[list[Piece]]:
    """Put each piece into the first round in which both of its devices are free, largest first."""
    sent: _Slots = defaultdict(dict)
    received: _Slots = defaultdict(dict)
    rounds: list[list[Piece]] = []
    for index, piece in enumerate(pieces):
        free = next(r for r in count() if r not in sent[piece.source] and r not in received[piece.target])
        sent[piece.source][free] = received[piece.target][free] = index
        if free == len(rounds):
            rounds.append([])
        rounds[free].append(piece)
    return rounds


def _with_fewest_rounds(pieces: Sequence[Piece]) -> list[list[Piece]]:
    """Color the edges with as few colors as possible, by alternating paths."""
    sent: _Slots = defaultdict(dict)
    received: _Slots = defaultdict(dict)
    for index, piece in enumerate(pieces):
        first = next(r for r in count() if r not in sent[piece.source])
        second = next(r for r in count() if r not in received[piece.target])
        if first in received[piece.target]:
            _swap_colors(pieces, sent, received, piece.target, first, second)
        sent[piece.source][first] = received[piece.target][first] = index
    rounds: dict[int, list[Piece]] = defaultdict(list)
    for index, piece in enumerate(pieces):
        rounds[next(r for r, other in sent[piece.source].items() if other == index)].append(piece)
    return [rounds[r] for r in sorted(rounds)]


def _swap_colors(pieces: Sequence[Piece], sent: _Slots, received: _Slots, target: int, first: int, second: int) -> None:
    """Swap two colors along the alternating path that starts at `target`, so that `first` becomes free there."""
    path: list[tuple[int, int]] = []  # pieces with their colors
    slots, color = received[target], first
    while color in slots:
        number = slots[color]
        path.append((number, color))
        came_from_target = slots is received[pieces[number].target]
        slots = sent[pieces[number].source] if came_from_target else received[pieces[number].target]
        color = second if color == first else first
    for number, color in path:
        del sent[pieces[number].source][color], received[pieces[number].target][color]
    for number, color in path:
        other = second if color == first else first
        sent[pieces[number].source][other] = received[pieces[number].target][other] = number


COLORINGS = (_first_fit, _with_fewest_rounds)
