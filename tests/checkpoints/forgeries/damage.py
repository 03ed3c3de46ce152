"""Damage to files: each function changes one copy of an original, by the numbers of a generator."""

import json
import os
import random
import shutil
from pathlib import Path

import tensorstore as ts

from shardwise.checkpoints import manifest

HOSTILE = [
    -1,
    0,
    1,
    2,
    1 << 31,
    1 << 40,
    (1 << 62) - 1,
    1 << 63,
    1 << 64,
    10**30,
    0.5,
    1e308,
    True,
    None,
    "",
    "../../etc/passwd",
    "/dev/zero",
    "\x00",
    "x" * 5000,
    [],
    {},
    [1] * 100,
    [1 << 40, 1 << 40],
    [[[[[1]]]]],
    [1, 1],
    {"a": {"b": []}},
]
_RLE_BLOCK = (1 << 17 << 3 | 1 << 1).to_bytes(3, "little") + b"\0"


def files_of(folder: Path) -> list[Path]:
    """Return the files that a reader may read; those of other steps are material for swaps."""
    return sorted(path for path in folder.rglob("*") if path.is_file() and "step-2" not in path.parts)


def zstd_bomb(blocks: int) -> bytes:
    """Return a zstd frame that expands to 128 KiB of zeros for each block of 4 bytes."""
    return b"\x28\xb5\x2f\xfd\x00\x58" + _RLE_BLOCK * blocks + b"\x01\x00\x00"


# --- bytes ------------------------------------------------------------------------------------------------------------


def flip_bits(rng: random.Random, folder: Path) -> None:
    path = rng.choice(files_of(folder))
    content = bytearray(path.read_bytes())
    for _ in range(rng.choice([1, 1, 2, 8])):
        if content:
            content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


def truncate(rng: random.Random, folder: Path) -> None:
    path = rng.choice(files_of(folder))
    size = path.stat().st_size
    os.truncate(path, rng.choice([0, size // 2, max(0, size - 1), max(0, size - 9), rng.randrange(size + 1)]))


def extend(rng: random.Random, folder: Path) -> None:
    path = rng.choice(files_of(folder))
    path.write_bytes(path.read_bytes() + rng.randbytes(rng.choice([1, 8, 1000])))


def overwrite(rng: random.Random, folder: Path) -> None:
    path = rng.choice(files_of(folder))
    content = bytearray(path.read_bytes())
    start, count = rng.randrange(len(content) + 1), rng.choice([1, 8, 64])
    content[start : start + count] = rng.choice([bytes(count), b"\xff" * count, rng.randbytes(count)])
    path.write_bytes(content)


def replace_content(rng: random.Random, folder: Path) -> None:
    content = rng.choice(
        [b"", b"{}", b"[]", b"null", b"[" * 100_000, b'{"a":' * 50_000, rng.randbytes(500), b"\x80\x04."]
    )
    rng.choice(files_of(folder)).write_bytes(content)


def make_sparse(rng: random.Random, folder: Path) -> None:
    os.truncate(rng.choice(files_of(folder)), rng.choice([1 << 33, 1 << 40]))


# --- files ------------------------------------------------------------------------------------------------------------


def delete(rng: random.Random, folder: Path) -> None:
    rng.choice(files_of(folder)).unlink()


def make_fifo(rng: random.Random, folder: Path) -> None:
    path = rng.choice(files_of(folder))
    path.unlink()
    os.mkfifo(path)


def link_to_device(rng: random.Random, folder: Path) -> None:
    path = rng.choice(files_of(folder))
    path.unlink()
    path.symlink_to(rng.choice(["/dev/zero", "/dev/null", path.name, "/nonexistent", "/", "/dev/stdin"]))


def make_directory(rng: random.Random, folder: Path) -> None:
    path = rng.choice(files_of(folder))
    path.unlink()
    path.mkdir()


def swap_files(rng: random.Random, folder: Path) -> None:
    first, second = rng.sample(files_of(folder), 2) if len(files_of(folder)) > 1 else files_of(folder) * 2
    contents = first.read_bytes(), second.read_bytes()
    first.write_bytes(contents[1])
    second.write_bytes(contents[0])


def copy_of_other_step(rng: random.Random, folder: Path) -> None:
    path = rng.choice(files_of(folder))
    shutil.copyfile(folder / "step-2" / path.relative_to(folder / "step-1"), path)


# --- JSON -------------------------------------------------------------------------------------------------------------


def mutate(rng: random.Random, tree: object, keep: frozenset[str] = frozenset()) -> None:
    """Change a value somewhere in JSON objects and lists, but not in the fields `keep`."""
    places = [(parent, key) for parent, key in _places(tree, keep)]
    parent, key = rng.choice(places)
    match rng.randrange(6):
        case 0 if isinstance(parent, dict):
            del parent[key]
        case 1 if isinstance(parent[key], list):
            parent[key].extend(parent[key] or [1])
        case 2 if isinstance(parent[key], int) and not isinstance(parent[key], bool):
            parent[key] = rng.choice([parent[key] + 1, parent[key] * 2, parent[key] << 33, -parent[key] - 1])
        case _:
            parent[key] = rng.choice(HOSTILE)


def _places(tree, keep):
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in list(items):
        if key not in keep:
            yield tree, key
            yield from _places(value, keep)


# A manifest with a right checksum may say what it wants about these.
_FREE = frozenset(["metadata", "versions", "created", "sharding", "is_host", "value", "dtype", "key_impl"])


def forge_manifest(rng: random.Random, folder: Path) -> None:
    path = folder / "step-1" / "manifest.json"
    content = json.loads(path.read_bytes())["content"]
    for _ in range(rng.choice([1, 1, 2])):
        mutate(rng, content, _FREE)
    path.write_bytes(manifest.encode_file(json.dumps(content).encode()))


def forge_shape(rng: random.Random, folder: Path) -> None:
    """Change the shape, the shape of files and chunks and the number of bytes together."""
    path = folder / "step-1" / "manifest.json"
    content = json.loads(path.read_bytes())["content"]
    leaf = content["leaves"]["large/0"]
    before = leaf["shape"][0] * leaf["shape"][1] * 4
    leaf["shape"] = rng.choice([[1 << 40, 1], [1 << 31, 1 << 29], [40, 1 << 33], [1200, 1], [0, 1 << 61]])
    leaf["file_shape"] = rng.choice([leaf["shape"], [1, 1], leaf["file_shape"]])
    leaf["chunk_shape"] = rng.choice([leaf["file_shape"], [1, 1]])
    if rng.randrange(2):
        leaf.pop("checksums", None)
    content["total_bytes"] += leaf["shape"][0] * leaf["shape"][1] * 4 - before
    if rng.randrange(2):
        os.truncate(folder / "step-1" / "arrays" / "0" / "c" / "0" / "0", 1 << 43)  # bytes that are not there
    path.write_bytes(manifest.encode_file(json.dumps(content).encode()))


def forge_orbax_tree(rng: random.Random, folder: Path) -> None:
    path = folder / "one" / "_METADATA"
    content = json.loads(path.read_bytes())
    mutate(rng, content)
    path.write_text(json.dumps(content))


def _array_store(folder: Path):
    """Return the key-value store with the arrays of an Orbax checkpoint."""
    base = {"driver": "file", "path": f"{folder}/one/"}
    is_ocdbt = (folder / "one" / "manifest.ocdbt").exists()
    return ts.KvStore.open({"driver": "ocdbt", "base": base} if is_ocdbt else base).result()


def forge_zarr(rng: random.Random, folder: Path) -> None:
    """Change the metadata of an array of an Orbax checkpoint."""
    store = _array_store(folder)
    keys = [key for key in store.list().result() if key.endswith((b".zarray", b"zarr.json"))]
    key = rng.choice(sorted(keys))
    content = json.loads(store.read(key).result().value)
    for _ in range(rng.choice([1, 1, 2])):
        mutate(rng, content)
    if rng.randrange(3) == 0 and "chunks" in content:
        content["shape"], content["chunks"] = rng.choice(
            [([1 << 40, 4], [3, 4]), ([1 << 40], [1 << 40]), ([1 << 16, 1 << 16], [1, 1]), ([1] * 40, [1] * 40)]
        )
    store.write(key, json.dumps(content).encode()).result()


def write_bomb(rng: random.Random, folder: Path) -> None:
    """Replace the chunks of an Orbax checkpoint by zstd data that expands to up to 39 GB."""
    store = _array_store(folder)
    keys = [key for key in store.list().result() if b"/" in key and not key.endswith((b".zarray", b"zarr.json"))]
    keys = [key for key in keys if b"0" in key.split(b"/")[-1] or b"/c" in key]
    key = rng.choice(sorted(keys))
    bomb = zstd_bomb(rng.choice([100, 10_000, 300_000]))
    index = (0).to_bytes(8, "little") + len(bomb).to_bytes(8, "little")
    store.write(key, bomb + index + ts_crc32c(index) if b"/c" in key else bomb).result()


def ts_crc32c(data: bytes) -> bytes:
    """Return the crc32c of data as a shard index has it."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return (crc ^ 0xFFFFFFFF).to_bytes(4, "little")


def forge_header(rng: random.Random, folder: Path) -> None:
    """Change the header of a safetensors file: overlaps, holes, duplicates, or any value."""
    path = folder / "one.safetensors"
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header, data = json.loads(content[8 : 8 + length]), content[8 + length :]
    first, second, *_ = header
    kind = rng.randrange(6)
    if kind == 0:
        header[second]["data_offsets"] = header[first]["data_offsets"]
    elif kind == 1:
        data += bytes(64)
    elif kind == 2:
        del header[first]
    elif kind == 3:
        header["__metadata__"] = rng.choice([{"a": 1}, [], "x", {"a": "b" * 100_000}])
    else:
        mutate(rng, header)
    text = json.dumps(header).encode()
    if rng.randrange(4) == 0:
        text = text[:-1] + b"," + text[1:]  # every key twice
    declared = rng.choice([len(text)] * 6 + [1 << 62, 0, len(text) + len(data) + 1])
    path.write_bytes(declared.to_bytes(8, "little") + text + data)


def forge_npy(rng: random.Random, folder: Path) -> None:
    fields = {"descr": "<u2", "fortran_order": False, "shape": (3000,)}
    values = [
        (1 << 40,),
        (-1,),
        (3000, 1),
        (),
        3000,
        "<u2",
        "|O",
        "<f8",
        ">u2",
        None,
        [("a", "<u2")],
        (1 << 70,),
        "V1000",
    ]
    fields[rng.choice(list(fields))] = rng.choice(values)
    text = rng.choice([repr(fields)] * 5 + ["{" * 5000, "__import__('os').abort()", "(" * 200])
    version = rng.choice([b"\x01\x00"] * 4 + [b"\x02\x00", b"\x09\x09"])
    size = rng.choice([len(text)] * 5 + [0, 65535])
    (folder / "tokens.npy").write_bytes(
        b"\x93NUMPY" + version + size.to_bytes(4 if version[0] == 2 else 2, "little") + text.encode() + bytes(6000)
    )


BYTES = [flip_bits, flip_bits, truncate, extend, overwrite, replace_content, make_sparse]
FILES = [delete, make_fifo, link_to_device, make_directory]
_ORBAX = [*BYTES, *FILES, swap_files, forge_orbax_tree, forge_zarr, forge_zarr, forge_zarr, write_bomb]
DAMAGE = {
    "shardwise": [*BYTES, *FILES, swap_files, copy_of_other_step, forge_manifest, forge_manifest, forge_shape],
    "orbax-zarr2": _ORBAX,
    "orbax-zarr2-ocdbt": _ORBAX,
    "orbax-zarr3-ocdbt": _ORBAX,
    "safetensors": [*BYTES, *FILES, forge_header, forge_header, forge_header, forge_header],
    "npy": [*BYTES, *FILES, forge_npy, forge_npy, forge_npy],
    "tokens": [*BYTES, *FILES],
    "export": [flip_bits, flip_bits, truncate, extend, overwrite, replace_content],  # the caller reads the file
    "cache": [*BYTES, *FILES],
    "chips": [*BYTES, *FILES],
    "profile": [*BYTES, *FILES],
    "record": [*BYTES, *FILES],
}
