"""Writes tests/golden/variants/deepseek-v3-groups/drafter: a random DFlash drafter with what the demo drafter lacks.

    python3 -m golden.make_drafter            (from python/, after golden.make_variants; NumPy only)

Sliding layers that are causal inside the block beside a full layer, YaRN, block_size inside dflash_config, the
`model.` prefix. Its expected values come from the NumPy reference, whose shared parts the demo pair's goldens pin;
golden.dflash_oracle checks them with the published module.
"""

import json
import pathlib
import tempfile

import numpy as np

from golden.make_variants import SMALL, VARIANTS
from golden.writer import Bf16, write_safetensors
from reference.checkpoint import Safetensors
from reference.drafter import Drafter
from reference.ops import logsumexp, top_k
from reference.target import Target

TARGET = VARIANTS / "deepseek-v3-groups"
OBSERVED = [20, 3, 1, 6]  # rows that each round observes before it proposes
KEPT = 8  # candidates stored per slot

CONFIG = {
    "architectures": ["DFlashDraftModel"],
    "model_type": "qwen3",
    "attention_bias": False,
    "dflash_config": {"block_size": 6, "mask_token_id": 190, "target_layer_ids": [0, 1]},
    "dtype": "bfloat16",
    "head_dim": 8,
    "hidden_act": "silu",
    "hidden_size": 32,
    "intermediate_size": 32,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "max_position_embeddings": 1536,
    "num_attention_heads": 4,
    "num_hidden_layers": 3,
    "num_key_value_heads": 2,
    "num_target_layers": 2,
    "rms_norm_eps": 1e-5,
    "rope_theta": 100.0,
    "rope_scaling": {
        "type": "yarn",
        "factor": 64.0,
        "original_max_position_embeddings": 24,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
    },
    "sliding_window": 8,
    "tie_word_embeddings": False,
    "use_sliding_window": True,
    "vocab_size": 192,
}


def weights(rng):
    c, tensors = CONFIG, {}
    hidden, inner, head = c["hidden_size"], c["intermediate_size"], c["head_dim"]

    def linear(name, out, width, gain=1.5):
        tensors[f"model.{name}.weight"] = Bf16(
            (rng.standard_normal((out, width)) * gain / np.sqrt(width)).astype(np.float32)
        )

    def norm(name, width, mean=1.0):
        tensors[f"model.{name}.weight"] = Bf16((mean + 0.1 * rng.standard_normal(width)).astype(np.float32))

    linear("fc", hidden, hidden * len(c["dflash_config"]["target_layer_ids"]), gain=SMALL)
    norm("hidden_norm", hidden)
    norm("norm", hidden)
    for i in range(c["num_hidden_layers"]):
        p = f"layers.{i}."
        norm(p + "input_layernorm", hidden)
        norm(p + "post_attention_layernorm", hidden)
        linear(p + "self_attn.q_proj", c["num_attention_heads"] * head, hidden, gain=SMALL)
        linear(p + "self_attn.k_proj", c["num_key_value_heads"] * head, hidden, gain=SMALL)
        linear(p + "self_attn.v_proj", c["num_key_value_heads"] * head, hidden)
        linear(p + "self_attn.o_proj", hidden, c["num_attention_heads"] * head)
        norm(p + "self_attn.q_norm", head, mean=1.5)
        norm(p + "self_attn.k_norm", head)
        linear(p + "mlp.gate_proj", inner, hidden)
        linear(p + "mlp.up_proj", inner, hidden)
        linear(p + "mlp.down_proj", hidden, inner)
    return tensors


def expected(directory, taps, tokens, changes, amplitude):
    """Rounds of observe and propose on given tap rows, with a changed configuration or YaRN amplitude."""
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        (scratch / "config.json").write_text(json.dumps({**CONFIG, **changes}))
        (scratch / "model.safetensors").symlink_to((directory / "model.safetensors").resolve())
        drafter = Drafter(scratch, Target(TARGET), amplitude)
    start, rounds = 0, []
    for count in OBSERVED:
        drafter.observe(taps[start : start + count])
        start += count
        logits = drafter.propose(tokens[start])
        ids, values = top_k(logits, KEPT + 1)
        if np.diff(values).max() > -1e-3:
            return None  # a near-tie: the order of ids would depend on rounding
        rounds.append((ids[:, :KEPT], values[:, :KEPT], logsumexp(logits)))
    ids, values, lse = (np.stack(parts) for parts in zip(*rounds))
    return {"top_id": ids.astype(np.int32), "top_val": values, "lse": lse}


SETTINGS = (("ratio", {}, "ratio"), ("legacy", {}, "legacy"), ("bidirectional", {"is_causal": False}, "ratio"))


def main():
    directory = TARGET / "drafter"
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(CONFIG, indent=1) + "\n")
    target, oracle = Target(TARGET), Safetensors(TARGET / "expected.safetensors")
    tokens = np.concatenate([oracle["prompt"], oracle["greedy"]])[: sum(OBSERVED) + 1]
    _, taps = target.forward(tokens[:-1], target.new_cache(), taps=CONFIG["dflash_config"]["target_layer_ids"])
    for seed in range(1000):
        write_safetensors(directory / "model.safetensors", weights(np.random.default_rng(seed)))
        results = {name: expected(directory, taps, tokens, changes, amplitude) for name, changes, amplitude in SETTINGS}
        if None not in results.values():
            break
    else:
        raise SystemExit("no stable seed")
    out = {"tokens": tokens, "taps": taps, "observed": np.array(OBSERVED, np.int32)}
    for name, values in results.items():
        out.update({f"{name}.{key}": value for key, value in values.items()})
    write_safetensors(directory / "expected.safetensors", out)
    print(f"drafter: seed {seed}")


if __name__ == "__main__":
    main()
