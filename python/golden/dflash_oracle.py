"""The published DFlash module as the oracle of the drafter variant.

    python3 -m golden.dflash_oracle path/to/dflash/model.py

The file is that of github.com/z-lab/dflash at 44947fb (not part of this project); needs torch and transformers. That
version takes one attention mask for all layers, so each layer is handed its own here, written down once more from
the rule.
"""

import importlib.util
import json
import sys

import numpy as np
import torch
import transformers
from safetensors.torch import load_file

from golden.make_drafter import KEPT, OBSERVED, SETTINGS, TARGET
from reference.checkpoint import Safetensors


def load(path, changes):
    spec = importlib.util.spec_from_file_location("dflash_model", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    config = {**json.loads((TARGET / "drafter/config.json").read_text()), **changes}
    config["block_size"] = config["dflash_config"]["block_size"]
    model = module.DFlashDraftModel(transformers.Qwen3Config(**config, attn_implementation="eager"))
    tensors = load_file(TARGET / "drafter/model.safetensors")
    model.load_state_dict({name.removeprefix("model."): value.float() for name, value in tensors.items()})
    return model.float().eval(), config


def mask(config, kind, context, block):
    """Additive float mask [1, 1, block, context + block]."""
    out = torch.full((block, context + block), float("-inf"))
    causal = config.get("is_causal", kind == "sliding_attention")
    window = config["sliding_window"] if kind == "sliding_attention" else 10**9
    for i in range(block):
        for key in range(context + block):
            ahead = key - (context + i)
            if (ahead <= 0 or not causal) and abs(ahead) <= window - 1:
                out[i, key] = 0
    return out[None, None]


@torch.no_grad()
def run(path, changes, amplitude, taps, tokens, embedding, head):
    model, config = load(path, changes)
    if amplitude == "legacy":
        model.rotary_emb.attention_scaling = 1 + 0.1 * float(np.log(config["rope_scaling"]["factor"]))
    block, results = config["block_size"], []
    for start in np.cumsum(OBSERVED):
        # All context at once: keys and values depend on their own row only.
        for layer, kind in zip(model.layers, config["layer_types"]):
            plain, layer_mask = type(layer).forward, mask(config, kind, int(start), block)
            layer.forward = lambda layer=layer, plain=plain, m=layer_mask, **kw: plain(
                layer, **{**kw, "attention_mask": m}
            )
        slots = [int(tokens[start])] + [config["dflash_config"]["mask_token_id"]] * (block - 1)
        hidden = model(
            position_ids=torch.arange(int(start) + block)[None],
            noise_embedding=embedding[slots][None],
            target_hidden=taps[:start][None],
        )
        logits = hidden[0, 1:] @ head.T
        results.append((*logits.topk(KEPT), logits.logsumexp(-1)))
    return [torch.stack(parts).numpy() for parts in zip(*results)]


def main():
    stored = Safetensors(TARGET / "drafter/expected.safetensors")
    target = load_file(TARGET / "model.safetensors")
    embedding, head = target["model.embed_tokens.weight"].float(), target["lm_head.weight"].float()
    worst = 0.0
    for name, changes, amplitude in SETTINGS:
        values, ids, lse = run(
            sys.argv[1], changes, amplitude, torch.tensor(stored["taps"]), stored["tokens"], embedding, head
        )
        delta = max(np.abs(values - stored[name + ".top_val"]).max(), np.abs(lse - stored[name + ".lse"]).max())
        same = np.array_equal(ids, stored[name + ".top_id"])
        worst = max(worst, delta, 0.0 if same else 1.0)
        print(f"{name:14} max |d| {delta:.1e}, ids equal {same}")
    raise SystemExit(worst > 1e-4)


if __name__ == "__main__":
    main()
