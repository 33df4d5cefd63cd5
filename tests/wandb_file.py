"""What the real wandb client wrote offline: reads the history from its `.wandb` file.

The file is a header of 7 bytes and then LevelDB's log format: blocks of 32 KiB with records of crc (4 bytes), length
(2), type (1: whole, 2: first, 3: middle, 4: last) and data, a protobuf `Record`.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path

BLOCK, HEADER = 32768, 7


def records(path: Path) -> Iterator[bytes]:
    content, place, part = path.read_bytes(), HEADER, b""
    assert content[:4] == b":W&B"
    while place + HEADER <= len(content):
        left = BLOCK - place % BLOCK
        if left < HEADER:
            place += left
            continue
        _, length, kind = struct.unpack_from("<IHB", content, place)
        if kind == 0:
            return
        part += content[place + HEADER : place + HEADER + length]
        place += HEADER + length
        if kind in (1, 4):
            yield part
            part = b""


def history(folder: Path) -> list[dict]:
    """The rows that were logged by the one run in a folder."""
    from wandb.proto.wandb_internal_pb2 import Record

    (path,) = folder.rglob("*.wandb")
    rows = []
    for data in records(path):
        record = Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "history":
            rows.append({x.key or "/".join(x.nested_key): json.loads(x.value_json) for x in record.history.item})
    return rows
