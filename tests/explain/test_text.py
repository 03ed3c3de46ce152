"""The text that `explain` prints."""

import re

import shardwise as sw
from shardwise import lax
from shardwise.explain.text import human_bytes, human_seconds
from shardwise.sharding import PartitionSpec as P
from tests.explain.arguments import shaped


def test_printed_text(mesh, capsys):
    def layers(w, x):
        return lax.scan(lambda h, w: (h @ w, None), x, w)[0]

    args = shaped(mesh, P(None, "data"), 6, 64, 64), shaped(mesh, P("data"), 256, 64)
    plan = sw.explain(layers, hardware="h100")(*args)
    text = capsys.readouterr().out
    assert text == f"{plan}\n"
    assert re.sub(r"test_text.py:\d+", "LINE", text).splitlines() == [
        "layers on mesh data=4, model=2: 1 collective, 73.7 kB sent per device",
        "  about 40.8 µs per call on h100, with overlap: 27.8 µs of compute, 36.2 µs of communication, "
        "of which 13.0 µs exposed (63.9 µs per call without the schedule of communication)",
        "",
        "  in  `w`                      f32[6,64,64]     P(None, 'data', None)        6×16×64 per device",
        "  in  `x`                      f32[256,64]      P('data', None)              64×64 per device",
        "  out `output`                 f32[256,64]      P('data', None)              64×64 per device",
        "",
        "  collective     axes                   sent      time shard          line               why",
        "  all_gather     data                73.7 kB   36.2 µs f32[16,64]     LINE    "
        "scan at LINE has sharding P('data', None); dot at LINE needs P(None, None) (6 times)",
        "",
        "  launch of                    sent      time   exposed line               beside",
        "  all_gather                73.7 kB   36.2 µs   13.0 µs LINE    dot at LINE, for the next iteration (6 times)",
        "",
        "  peak memory: 106.5 kB per device, during dot at LINE",
        "     24.6 kB `w`                      f32[6,16,64]",
        "     16.4 kB `x`                      f32[64,64]",
        "     16.4 kB a result                 f32[64,64]",
        "     16.4 kB passed on in the loop    f32[64,64]       LINE",
        "     16.4 kB passed on in the loop    f32[64,64]       LINE",
        "     16.4 kB dot                      f32[64,64]       LINE",
        "",
        f"  {plan.advice}",
    ]


def test_bytes_and_seconds_have_units():
    assert [human_bytes(n) for n in (0, 999, 1536, 2.5e6, 3e9, 4e12)] == [
        "0 B",
        "999 B",
        "1.5 kB",
        "2.5 MB",
        "3.0 GB",
        "4000.0 GB",
    ]
    assert [human_seconds(s) for s in (0, 2e-9, 1.5e-5, 0.25, 90)] == ["0 s", "2.0 ns", "15.0 µs", "250.0 ms", "90.0 s"]


def test_totals_come_first(mesh):
    found = sw.explain(lambda x, y: (x.sum(), y.sum(), (x @ y).sum()))(
        shaped(mesh, P("data"), 64, 64), shaped(mesh, P("model"), 64, 64)
    )
    totals = found.plan.totals()
    assert sum(total.count for total in totals) == len(found.collectives) > 2
    assert sum(total.sent for total in totals) == found.plan.wire_bytes
    assert sorted((total.kind, total.axes) for total in totals) == sorted(
        {(row.kind, row.axes) for row in found.collectives}
    )
    lines = str(found).splitlines()
    assert lines[3].split() == ["total", "axes", "count", "sent", "time"]
    assert lines[4].split()[:3] == [totals[0].kind, ",".join(totals[0].axes), str(totals[0].count)]
