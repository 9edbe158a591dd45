"""Writes trained states as the checkpoints that the engine loads.

    python3 -m train.export TARGET.pt DRAFTER.pt OUT     writes OUT/target and OUT/drafter

config.json is copied from the training configuration; add the tokenizer files beside the target.
"""

import json
import pathlib
import sys

import numpy as np

from golden.writer import Bf16, quantise_int4, write_safetensors


def target_tensors(state):
    """Hugging Face names; routed experts packed as INT4, the rest bfloat16, the correction bias float32."""
    tensors = {}
    for name, value in state.items():
        value = value.float().cpu().numpy()
        full = name if name.startswith("lm_head") else "model." + name
        if name.endswith("mlp.bias"):
            tensors[full.replace("mlp.bias", "mlp.gate.e_score_correction_bias")] = value
        elif value.ndim < 3:
            tensors[full] = Bf16(value)
        else:
            prefix, projection = full.rsplit(".", 1)
            for e, weight in enumerate(value):
                packed, scale = quantise_int4(weight)
                module = f"{prefix}.experts.{e}.{projection}"
                tensors[module + ".weight_packed"] = packed
                tensors[module + ".weight_scale"] = Bf16(scale)
                tensors[module + ".weight_shape"] = np.array(weight.shape, np.int64)
    return tensors


def drafter_tensors(state):
    return {name: Bf16(value.float().cpu().numpy()) for name, value in state.items()}


def write(directory, config, tensors):
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    write_safetensors(directory / "model.safetensors", tensors)


def main():
    import torch

    target, drafter = (torch.load(path, map_location="cpu") for path in sys.argv[1:3])
    out = pathlib.Path(sys.argv[3])
    write(out / "target", target["config"], target_tensors(target["state"]))
    write(out / "drafter", drafter["config"], drafter_tensors(drafter["state"]))


if __name__ == "__main__":
    main()
