"""Writes the small random checkpoints of tests/golden/variants: what the demo model does not exercise.

    python3 -m golden.make_variants            (from python/; NumPy only)

Each variant gets the first seed whose greedy tokens and expert choices are not near-ties, so that any float32
implementation reproduces them. Afterwards `python3 -m golden.transformers_oracle --write` (needs torch and
transformers) completes expected.safetensors.
"""

import copy
import json
import pathlib
import tempfile

import numpy as np

from golden.writer import Bf16, quantise_int4, write_safetensors
from reference.target import Moe, Target, text_config

VARIANTS = pathlib.Path(__file__).resolve().parents[2] / "tests/golden/variants"
GREEDY_TOKENS = 16
SMALL = 0.03  # scale of what a norm follows directly, so that a wrong epsilon shows

BASE = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "vocab_size": 256,
    "hidden_size": 32,
    "intermediate_size": 64,
    "moe_intermediate_size": 16,
    "num_hidden_layers": 2,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 16,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "rope_scaling": None,
    "max_position_embeddings": 960,
    "attention_bias": False,
    "hidden_act": "silu",
    "num_nextn_predict_layers": 0,
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "torch_dtype": "bfloat16",
}


def yarn(factor, beta_fast, mscale):
    return {
        "type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": 24,
        "beta_fast": beta_fast,
        "beta_slow": 1.0,
        "mscale": mscale,
        "mscale_all_dim": mscale,
    }


def config(**changes):
    """BASE with changes; a field that is changed to ... is left out."""
    return {key: value for key, value in {**copy.deepcopy(BASE), **changes}.items() if value is not ...}


INT4 = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "quantization_status": "compressed",
    "kv_cache_scheme": None,
    "ignore": ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", "re:.*mlp\\.(gate|up|gate_up|down)_proj.*"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "input_activations": None,
            "output_activations": None,
            "weights": {
                "num_bits": 4,
                "type": "int",
                "symmetric": True,
                "strategy": "group",
                "group_size": 32,
                "actorder": None,
                "block_structure": None,
                "dynamic": False,
                "observer": "minmax",
                "observer_kwargs": {},
            },
        }
    },
}

KIMI_K26_TEXT = config(
    model_type="kimi_k2",
    vocab_size=128,
    hidden_size=64,
    intermediate_size=64,
    moe_intermediate_size=32,
    num_experts_per_tok=2,
    qk_rope_head_dim=32,
    v_head_dim=32,
    routed_scaling_factor=2.827,
    rms_norm_eps=1e-5,
    rope_theta=50000.0,
    rope_scaling=yarn(64.0, 32.0, 1.0),
    max_position_embeddings=1536,
    quantization_config=INT4,
)

# name -> configuration, and how the tensors are stored
SPECS = {
    "deepseek-v2-lite": (
        config(
            architectures=["DeepseekV2ForCausalLM"],
            model_type="deepseek_v2",
            vocab_size=144,
            q_lora_rank=None,
            qk_nope_head_dim=16,
            v_head_dim=32,
            n_shared_experts=2,
            topk_method="greedy",
            scoring_func="softmax",
            norm_topk_prob=False,
            routed_scaling_factor=1.0,
            rope_scaling=yarn(40.0, 32.0, 0.707),
        ),
        {},
    ),
    "moonlight": (
        config(
            vocab_size=190,
            q_lora_rank=None,
            n_shared_experts=2,
            routed_scaling_factor=2.446,
            rms_norm_eps=1e-5,
            rope_theta=50000.0,
        ),
        {"prompt": 24},
    ),
    # The correction bias is mostly negative: a masked group must lose even against scores below zero.
    "deepseek-v3-groups": (
        config(
            vocab_size=192,
            n_routed_experts=16,
            num_experts_per_tok=4,
            n_group=4,
            topk_group=2,
            rope_scaling=yarn(40.0, 32.0, 1.0),
            num_nextn_predict_layers=1,
        ),
        {"bias_mean": -0.9},
    ),
    "kimi-k2.6": (
        {
            "architectures": ["KimiK25ForConditionalGeneration"],
            "model_type": "kimi_k25",
            "dtype": "bfloat16",
            "bos_token_id": 0,
            "eos_token_id": 2,
            "pad_token_id": 3,
            "ignore_index": -100,
            "media_placeholder_token_id": 4,
            "tie_word_embeddings": False,
            "text_config": KIMI_K26_TEXT,
            "vision_config": {"patch_size": 14, "vt_num_hidden_layers": 1, "vt_hidden_size": 8},
        },
        {"prefix": "language_model.", "int4": True, "shards": 2, "taps": True},
    ),
    "fused-experts": (
        config(
            vocab_size=128,
            first_k_dense_replace=0,
            n_routed_experts=6,
            rope_scaling=...,
            rope_theta=...,
            rope_parameters={
                "rope_type": "yarn",
                "rope_theta": 50000.0,
                "factor": 40.0,
                "original_max_position_embeddings": 24,
                "beta_fast": 1.0,
                "beta_slow": 1.0,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
            },
        ),
        {"fused": True},
    ),
    "dense-layers": (
        config(
            vocab_size=128,
            num_hidden_layers=4,
            first_k_dense_replace=2,
            moe_layer_freq=2,
            intermediate_size=48,
            q_lora_rank=None,
            qk_nope_head_dim=16,
            n_routed_experts=4,
            num_experts_per_tok=2,
            torch_dtype="float16",
        ),
        {"half": True, "prompt": 16},
    ),
}


class Builder:
    """Random tensors of one checkpoint, under their Hugging Face names."""

    def __init__(self, config, seed, store, bias_mean=0.0, int4=False, fused=False):
        self.c, self.rng, self.store, self.bias_mean, self.int4, self.fused = (
            config,
            np.random.default_rng(seed),
            store,
            bias_mean,
            int4,
            fused,
        )
        self.tensors = {}

    def normal(self, *shape, gain=1.0):
        return (self.rng.standard_normal(shape) * gain / np.sqrt(shape[-1])).astype(np.float32)

    def linear(self, name, out, width, gain=1.0):
        self.tensors[name + ".weight"] = self.store(self.normal(out, width, gain=gain))

    def norm(self, name, width):
        self.tensors[name + ".weight"] = self.store((1 + 0.1 * self.rng.standard_normal(width)).astype(np.float32))

    def attention(self, p):
        c, heads, nope = self.c, self.c["num_attention_heads"], self.c["qk_nope_head_dim"]
        hidden, rope, rank = c["hidden_size"], c["qk_rope_head_dim"], c["kv_lora_rank"]
        if c["q_lora_rank"]:
            self.linear(p + "q_a_proj", c["q_lora_rank"], hidden, gain=SMALL)
            self.norm(p + "q_a_layernorm", c["q_lora_rank"])
            self.linear(p + "q_b_proj", heads * (nope + rope), c["q_lora_rank"], gain=1.5)
        else:
            self.linear(p + "q_proj", heads * (nope + rope), hidden, gain=1.5)
        latent, key_rope = self.normal(rank, hidden, gain=SMALL), self.normal(rope, hidden, gain=1.5)
        self.tensors[p + "kv_a_proj_with_mqa.weight"] = self.store(np.concatenate([latent, key_rope]))
        self.norm(p + "kv_a_layernorm", rank)
        self.linear(p + "kv_b_proj", heads * (nope + c["v_head_dim"]), rank)
        self.linear(p + "o_proj", hidden, heads * c["v_head_dim"], gain=2.0)

    def mlp(self, p, inner):
        self.linear(p + "gate_proj", inner, self.c["hidden_size"], gain=1.5)
        self.linear(p + "up_proj", inner, self.c["hidden_size"], gain=1.5)
        self.linear(p + "down_proj", self.c["hidden_size"], inner)

    def int4_mlp(self, p, inner):
        hidden = self.c["hidden_size"]
        for name, out, width in (
            ("gate_proj", inner, hidden),
            ("up_proj", inner, hidden),
            ("down_proj", hidden, inner),
        ):
            packed, scale = quantise_int4(self.normal(out, width, gain=1.5))
            self.tensors[p + name + ".weight_packed"] = packed
            self.tensors[p + name + ".weight_scale"] = Bf16(scale)
            self.tensors[p + name + ".weight_shape"] = np.array([out, width], np.int32)

    def moe(self, p):
        c, count, inner, hidden = (
            self.c,
            self.c["n_routed_experts"],
            self.c["moe_intermediate_size"],
            self.c["hidden_size"],
        )
        self.linear(p + "gate", count, hidden, gain=2.0)
        if c["topk_method"] == "noaux_tc":
            bias = (self.bias_mean + 0.2 * self.rng.standard_normal(count)).astype(np.float32)
            self.tensors[p + "gate.e_score_correction_bias"] = self.store(bias) if self.fused else bias
        if self.fused:
            self.tensors[p + "experts.gate_up_proj"] = self.store(self.normal(count, 2 * inner, hidden, gain=1.5))
            self.tensors[p + "experts.down_proj"] = self.store(self.normal(count, hidden, inner))
        else:
            for e in range(count):
                (self.int4_mlp if self.int4 else self.mlp)(f"{p}experts.{e}.", inner)
        self.mlp(p + "shared_experts.", inner * c["n_shared_experts"])

    def build(self):
        c, hidden = self.c, self.c["hidden_size"]
        self.tensors["model.embed_tokens.weight"] = self.store(self.normal(c["vocab_size"], hidden))
        for i in range(c["num_hidden_layers"]):
            p = f"model.layers.{i}."
            self.norm(p + "input_layernorm", hidden)
            self.attention(p + "self_attn.")
            self.norm(p + "post_attention_layernorm", hidden)
            sparse = i >= c["first_k_dense_replace"] and i % c["moe_layer_freq"] == 0
            self.moe(p + "mlp.") if sparse else self.mlp(p + "mlp.", c["intermediate_size"])
        self.norm("model.norm", hidden)
        self.linear("lm_head", c["vocab_size"], hidden, gain=2.0)
        if c["num_nextn_predict_layers"]:  # a multi-token-prediction layer, to be skipped
            p = f"model.layers.{c['num_hidden_layers']}."
            self.norm(p + "enorm", hidden)
            self.norm(p + "hnorm", hidden)
            self.linear(p + "eh_proj", hidden, 2 * hidden)
        return self.tensors


def write_checkpoint(directory, full_config, options, seed):
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(full_config, indent=1) + "\n")
    store = (lambda x: x.astype(np.float16)) if options.get("half") else Bf16
    builder = Builder(
        text_config(full_config), seed, store, options.get("bias_mean", 0.0), options.get("int4"), options.get("fused")
    )
    tensors = {options.get("prefix", "") + name: value for name, value in builder.build().items()}
    if options.get("prefix"):
        tensors["vision_tower.patch_embed.proj.weight"] = Bf16(np.ones((8, 3, 2, 2), np.float32))
        tensors["mm_projector.pre_norm.weight"] = Bf16(np.ones(8, np.float32))
    shards = options.get("shards", 1)
    if shards == 1:
        write_safetensors(directory / "model.safetensors", tensors)
        return
    names, weight_map, total = list(tensors), {}, 0
    for s in range(shards):
        file = f"model-{s + 1:05}-of-{shards:06}.safetensors"
        part = {name: tensors[name] for name in names[s * len(names) // shards : (s + 1) * len(names) // shards]}
        write_safetensors(directory / file, part)
        weight_map.update(dict.fromkeys(part, file))
        total += sum(v.bits.nbytes if isinstance(v, Bf16) else v.nbytes for v in part.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index, separators=(",", ":")) + "\n")


def is_stable(directory, prompt):
    """No near-tie: greedy margins above 0.02, and no expert choice that noise of 1e-4 would change."""
    target, rng = Target(directory), np.random.default_rng(0)
    flips = 0

    def watched(router):
        def route(x):
            nonlocal flips
            chosen, weights = router(x)
            noisy = router(x + np.float32(1e-4) * rng.standard_normal(x.shape).astype(np.float32))[0]
            flips += not np.array_equal(np.sort(chosen), np.sort(noisy))
            return chosen, weights

        return route

    for *_, mlp in target.layers:
        if isinstance(mlp, Moe):
            mlp.router = watched(mlp.router)
    cache, tokens = target.new_cache(), prompt
    for _ in range(GREEDY_TOKENS):
        logits = target.forward(tokens, cache)[0][-1]
        best, second = np.argsort(-logits)[:2]
        if logits[best] - logits[second] < 0.02 or flips:
            return False
        tokens = [best]
    return True


def main():
    for name, (full_config, options) in SPECS.items():
        vocabulary = text_config(full_config)["vocab_size"]
        for seed in range(1000):
            prompt = np.random.default_rng(10_000 + seed).integers(0, vocabulary, options.get("prompt", 32), np.int32)
            with tempfile.TemporaryDirectory() as trial:
                write_checkpoint(pathlib.Path(trial), full_config, options, seed)
                if not is_stable(trial, prompt):
                    continue
            write_checkpoint(VARIANTS / name, full_config, options, seed)
            write_safetensors(VARIANTS / name / "expected.safetensors", {"prompt": prompt})
            print(f"{name}: seed {seed}")
            break
        else:
            raise SystemExit(f"{name}: no stable seed")


if __name__ == "__main__":
    main()
