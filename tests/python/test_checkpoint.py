import json
import struct

import numpy as np
import pytest
from golden.writer import Bf16, quantise_int4, write_safetensors
from reference.checkpoint import Checkpoint, Safetensors, bf16_to_f32, unpack_int4


def test_int4_words():
    packed = np.array([[0x76543210, 0xFEDCBA98]], np.uint32).view(np.int32)
    assert unpack_int4(packed, np.array([[2.0]], np.float32)).tolist() == [[2.0 * q for q in range(-8, 8)]]


def test_int4_scale_covers_its_group():
    packed = np.full((2, 8), 0x99999999, np.uint32).view(np.int32)  # all codes are 1
    weight = unpack_int4(packed, np.array([[0.5, 1.0], [2.0, 4.0]], np.float32))
    assert weight.shape == (2, 64)
    assert weight[:, [0, 31, 32, 63]].tolist() == [[0.5, 0.5, 1.0, 1.0], [2.0, 2.0, 4.0, 4.0]]


def test_int4_quantiser_rounds_to_the_nearest_code():
    weight = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)
    packed, scale = quantise_int4(weight)
    error = np.abs(unpack_int4(packed, scale) - weight)
    # Half a step. The largest magnitude lies at 7.5 steps, give or take the scale's bf16 rounding (7.5 * 2^-8 steps).
    assert (error <= 0.53 * np.repeat(scale, 32, axis=1)).all()


def test_bf16():
    bits = np.array([0x3F80, 0xC000, 0x7F80, 0x0001], np.uint16)
    assert bf16_to_f32(bits).tolist() == [1.0, -2.0, float("inf"), 2.0**-133]
    # 1 + 2^-8 lies between two neighbours and goes to the even one, 1 + 3 * 2^-8 to the even one above.
    halves = np.array([1 + 2**-8, 1 + 3 * 2**-8], np.float32)
    assert bf16_to_f32(Bf16(halves).bits).tolist() == [1.0, 1 + 2**-6]


def test_safetensors_layout(tmp_path):
    header = json.dumps(
        {
            "__metadata__": {"a": "b"},
            "x": {"dtype": "I32", "shape": [2], "data_offsets": [4, 12]},
            "y": {"dtype": "BF16", "shape": [1, 2], "data_offsets": [0, 4]},
        }
    ).encode()
    data = struct.pack("<HHii", 0x3F80, 0x4000, -5, 7)
    (tmp_path / "f").write_bytes(struct.pack("<Q", len(header)) + header + data)
    file = Safetensors(tmp_path / "f")
    assert sorted(file.entries) == ["x", "y"]
    assert file["x"].tolist() == [-5, 7]
    assert file["y"].tolist() == [[1.0, 2.0]]


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int64, np.int32, np.int16])
def test_writer_round_trip(tmp_path, dtype):
    values = np.arange(6).reshape(2, 3).astype(dtype)
    write_safetensors(tmp_path / "model.safetensors", {"p.a": values, "b": Bf16(np.ones(3, np.float32))})
    (tmp_path / "config.json").write_text("{}")
    checkpoint = Checkpoint(tmp_path, prefix="p.")
    assert checkpoint["a"].tolist() == values.tolist() and checkpoint["b"].tolist() == [1, 1, 1]
    assert "a" in checkpoint and "p.a" not in checkpoint
