"""transformers' own classes as the oracle of tests/golden/variants (float32, CPU, eager attention and experts).

    python3 -m golden.transformers_oracle          compare the NumPy reference and the committed values with it
    python3 -m golden.transformers_oracle --write  write expected.safetensors from transformers

Needs torch, transformers and safetensors. Tensors are read and INT4 is unpacked with torch code, not with reference/.
Made with transformers 5.24.0 and torch 2.15.0. Older versions are no oracle for two of the variants: their DeepseekV3
router gave experts of masked groups the score 0 instead of -inf, their DeepseekV2 left mscale out of the softmax scale.
"""

import json
import pathlib
import sys
import tempfile

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3MLP

from golden.make_variants import GREEDY_TOKENS, VARIANTS
from golden.writer import write_safetensors
from reference.checkpoint import Safetensors
from reference.target import Target


def unpack(tensors, module):
    """Unrounded float32 q * scale. Arithmetic shifts are harmless: the mask drops the sign bits."""
    packed, scale = tensors[module + ".weight_packed"], tensors[module + ".weight_scale"].float()
    codes = torch.stack([(packed >> (4 * i)) & 15 for i in range(8)], dim=-1).flatten(1) - 8
    return (codes.float().unflatten(1, (scale.shape[1], -1)) * scale[..., None]).flatten(1)


def plain_copy(directory, scratch):
    """A copy that transformers loads as DeepseekV3: text part only, no prefix, experts dequantised to float32."""
    config = json.loads((directory / "config.json").read_text())["text_config"]
    del config["quantization_config"]
    config["model_type"] = "deepseek_v3"
    (scratch / "config.json").write_text(json.dumps(config))
    tensors = {}
    for file in sorted(directory.glob("model-*.safetensors")):
        tensors.update(load_file(file))
    plain = {}
    for name, value in tensors.items():
        if not name.startswith("language_model."):
            continue
        name = name.removeprefix("language_model.")
        if name.endswith(".weight_packed"):
            module = name.removesuffix(".weight_packed")
            plain[module + ".weight"] = unpack(tensors, "language_model." + module)
        elif not name.endswith((".weight_scale", ".weight_shape")):
            plain[name] = value.float()
    save_file(plain, scratch / "model.safetensors", metadata={"format": "pt"})
    return scratch


def load(directory):
    with tempfile.TemporaryDirectory() as scratch:
        config = json.loads((directory / "config.json").read_text())
        if "text_config" in config:
            directory, config = plain_copy(directory, pathlib.Path(scratch)), config["text_config"]
        kind = getattr(transformers, config["architectures"][0])
        model, info = kind.from_pretrained(
            directory,
            dtype=torch.float32,
            attn_implementation="eager",
            experts_implementation="eager",
            output_loading_info=True,
        )
        problems = [key for key in info["missing_keys"] if ".mlp." not in key] + list(info["mismatched_keys"])
        assert not problems, problems
        for i, layer in enumerate(model.model.layers[: config["num_hidden_layers"]]):
            # transformers fixes these two at 1e-6; serving engines use the configured value.
            for norm in (layer.self_attn.q_a_layernorm, layer.self_attn.kv_a_layernorm):
                if norm is not None:
                    norm.variance_epsilon = config["rms_norm_eps"]
            # transformers has no moe_layer_freq: put its own dense MLP where the rule asks for one.
            if i >= config["first_k_dense_replace"] and i % config["moe_layer_freq"]:
                layer.mlp = DeepseekV3MLP(model.config)
                weights = load_file(directory / "model.safetensors")
                layer.mlp.load_state_dict(
                    {
                        name + ".weight": weights[f"model.layers.{i}.mlp.{name}.weight"].float()
                        for name in ("gate_proj", "up_proj", "down_proj")
                    }
                )
    return model.eval(), config


@torch.no_grad()
def run(directory, prompt):
    model, config = load(directory)
    taps = []
    for layer in model.model.layers[: config["num_hidden_layers"]]:
        layer.register_forward_hook(lambda _m, _i, out: taps.append(out[0] if isinstance(out, tuple) else out))
    tokens = torch.tensor(prompt, dtype=torch.long)[None]
    logits = model(tokens, use_cache=False).logits[0]
    result = {"prompt": prompt, "logits": logits.numpy()}
    if "vision_config" in json.loads((directory / "config.json").read_text()):
        result["taps"] = torch.stack([tap[0] for tap in taps], dim=1).numpy()
    greedy, margins = [], []
    for _ in range(GREEDY_TOKENS):
        top = model(tokens, use_cache=False).logits[0, -1].topk(2)
        greedy.append(int(top.indices[0]))
        margins.append(float(top.values[0] - top.values[1]))
        tokens = torch.cat([tokens, top.indices[None, :1]], dim=1)
    return {**result, "greedy": np.array(greedy, np.int32), "margin": np.array(margins, np.float32)}


def main():
    worst = 0.0
    for directory in sorted(path for path in VARIANTS.iterdir() if path.is_dir()):
        stored = Safetensors(directory / "expected.safetensors")
        oracle = run(directory, stored["prompt"])
        if "--write" in sys.argv:
            write_safetensors(directory / "expected.safetensors", oracle)
            stored = Safetensors(directory / "expected.safetensors")
        target = Target(directory)
        logits, _ = target.forward(stored["prompt"], target.new_cache())
        numpy_delta = np.abs(logits - oracle["logits"]).max()
        stored_delta = np.abs(stored["logits"] - oracle["logits"]).max()
        same = np.array_equal(stored["greedy"], oracle["greedy"])
        worst = max(worst, numpy_delta, stored_delta, 0.0 if same else 1.0)
        print(
            f"{directory.name:20} max |dlogit| numpy {numpy_delta:.1e}, stored {stored_delta:.1e}, greedy same {same}, "
            f"logit std {oracle['logits'].std():.2f}, smallest margin {oracle['margin'].min():.3f}"
        )
    print(f"worst {worst:.1e} with transformers {transformers.__version__}, torch {torch.__version__}")
    raise SystemExit(worst > 1e-4)


if __name__ == "__main__":
    main()
