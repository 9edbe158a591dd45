"""Writes .safetensors files and packed INT4 weights (the inverse of reference/checkpoint.py)."""

import json

import numpy as np

from reference.checkpoint import bf16_to_f32

NAMES = {"float32": "F32", "float16": "F16", "int64": "I64", "int32": "I32", "int16": "I16", "uint8": "U8"}


def f32_to_bf16(values):
    """Round to nearest even; the result holds bit patterns (uint16)."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


class Bf16:
    """Marks a float32 array that is to be stored as bfloat16."""

    def __init__(self, values):
        self.bits = f32_to_bf16(values)


def write_safetensors(path, tensors):
    header, chunks, offset = {}, [], 0
    for name, value in tensors.items():
        kind, array = (
            ("BF16", value.bits) if isinstance(value, Bf16) else (NAMES[str(value.dtype)], np.ascontiguousarray(value))
        )
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [offset, offset + array.nbytes]}
        chunks.append(array.tobytes())
        offset += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 16 + 8)  # header length and data both aligned: 8 + len is a multiple of 16
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text + b"".join(chunks))


def quantise_int4(weight, group=32):
    """float32 [out, in] -> packed int32 [out, in/8], scale float32 [out, in/group] (exact in bfloat16)."""
    grouped = weight.reshape(len(weight), -1, group)
    bits = f32_to_bf16(np.abs(grouped).max(axis=-1) / 7.5)
    scale = bf16_to_f32(bits)
    codes = np.clip(np.rint(grouped / scale[..., None]), -8, 7).astype(np.int32) + 8
    nibbles = codes.reshape(len(weight), -1, 8).astype(np.uint32) << np.arange(0, 32, 4, dtype=np.uint32)
    return np.bitwise_or.reduce(nibbles, axis=-1).view(np.int32), scale
