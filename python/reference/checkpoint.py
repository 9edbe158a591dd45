"""A checkpoint directory as NumPy arrays: config.json, safetensors (one file or shards), packed INT4."""

import json
import pathlib

import numpy as np

DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "U8": "u1"}


def bf16_to_f32(bits):
    """bfloat16 is the upper half of a float32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def unpack_int4(packed, scale):
    """compressed-tensors pack-quantized: int32 [out, in/8] and scale [out, in/group] to float32 [out, in].

    A code q in -8..7 is stored as q + 8; element i of a row lies in bits 4*(i % 8) of word i // 8.
    """
    nibbles = packed.view(np.uint32)[:, :, None] >> np.arange(0, 32, 4, dtype=np.uint32) & 15
    codes = nibbles.reshape(len(packed), -1).astype(np.float32) - 8
    return codes * np.repeat(scale, codes.shape[1] // scale.shape[1], axis=1)


class Safetensors:
    """One .safetensors file: 8 bytes of header length, a JSON header, then the tensors' bytes."""

    def __init__(self, path):
        self.bytes = np.memmap(path, np.uint8, "r")
        size = int(self.bytes[:8].view("<u8")[0])
        self.entries = json.loads(bytes(self.bytes[8 : 8 + size]))
        self.entries.pop("__metadata__", None)
        self.data = self.bytes[8 + size :]

    def __getitem__(self, name):
        """Floating-point tensors come back as float32, integer tensors as they are."""
        entry = self.entries[name]
        begin, end = entry["data_offsets"]
        raw = np.frombuffer(self.data[begin:end].tobytes(), DTYPES[entry["dtype"]]).reshape(entry["shape"])
        if entry["dtype"] == "BF16":
            return bf16_to_f32(raw)
        return raw.astype(np.float32) if raw.dtype.kind == "f" else raw


class Checkpoint:
    """All tensors of a directory by name. A leading `prefix` (e.g. "language_model.") is tolerated and stripped."""

    def __init__(self, directory, prefix=""):
        directory = pathlib.Path(directory)
        self.config = json.loads((directory / "config.json").read_text())
        index = directory / "model.safetensors.index.json"
        names = (
            sorted(set(json.loads(index.read_text())["weight_map"].values()))
            if index.exists()
            else ["model.safetensors"]
        )
        self.where = {}
        for name in names:
            shard = Safetensors(directory / name)
            for full in shard.entries:
                self.where[full.removeprefix(prefix)] = (shard, full)

    def __contains__(self, name):
        return name in self.where

    def __getitem__(self, name):
        shard, full = self.where[name]
        return shard[full]

    def linear(self, module):
        """The float32 weight of a Linear. It is quantised exactly if `weight_packed` exists."""
        if module + ".weight_packed" in self:
            return unpack_int4(self[module + ".weight_packed"], self[module + ".weight_scale"])
        return self[module + ".weight"]
