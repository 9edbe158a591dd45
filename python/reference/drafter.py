"""The DFlash v1 drafter: a few Qwen3-style layers that fill a whole block of masks in one pass."""

import numpy as np

from .checkpoint import Checkpoint
from .ops import Rope, attend, rms_norm, rotate_halves, swiglu


class Layer:
    def __init__(self, weights, prefix, config):
        names = ["input_layernorm", "post_attention_layernorm", "self_attn.q_norm", "self_attn.k_norm"]
        names += ["self_attn." + n for n in ("q_proj", "k_proj", "v_proj", "o_proj")]
        names += ["mlp." + n for n in ("gate_proj", "up_proj", "down_proj")]
        self.w = {name.split(".")[-1]: weights[f"{prefix}{name}.weight"] for name in names}
        self.eps, self.head_dim = config["rms_norm_eps"], config["head_dim"]
        self.groups = config["num_attention_heads"] // config["num_key_value_heads"]

    def key_value(self, x, cos, sin):
        """-> [n, kv heads, head dim] each. Context rows come here straight from the fused taps, not through a norm."""
        key = (x @ self.w["k_proj"].T).reshape(len(x), -1, self.head_dim)
        value = (x @ self.w["v_proj"].T).reshape(len(x), -1, self.head_dim)
        return rotate_halves(rms_norm(key, self.w["k_norm"], self.eps), cos, sin), value

    def __call__(self, x, context_key, context_value, cos, sin, visible):
        h = rms_norm(x, self.w["input_layernorm"], self.eps)
        query = (h @ self.w["q_proj"].T).reshape(len(x), -1, self.head_dim)
        query = rotate_halves(rms_norm(query, self.w["q_norm"], self.eps), cos, sin)
        key, value = self.key_value(h, cos, sin)
        key = np.repeat(np.concatenate([context_key, key]), self.groups, axis=1)
        value = np.repeat(np.concatenate([context_value, value]), self.groups, axis=1)
        out = attend(query, key, value, visible, self.head_dim**-0.5)
        x = x + out.reshape(len(x), -1) @ self.w["o_proj"].T
        h = rms_norm(x, self.w["post_attention_layernorm"], self.eps)
        return x + swiglu(h, self.w["gate_proj"], self.w["up_proj"], self.w["down_proj"])


class Drafter:
    """Embedding and output head are the target's. `amplitude` is the YaRN switch of ops.Rope."""

    def __init__(self, directory, target, amplitude="ratio"):
        weights = Checkpoint(directory, prefix="model.")
        config, dflash = weights.config, weights.config["dflash_config"]
        self.embedding, self.head = target.embedding, target.head
        self.mask_token, self.taps = dflash["mask_token_id"], dflash["target_layer_ids"]
        self.block_size = dflash.get("block_size", config.get("block_size"))
        self.eps = config["rms_norm_eps"]
        self.fc, self.hidden_norm, self.norm = (weights[n + ".weight"] for n in ("fc", "hidden_norm", "norm"))
        self.rope = Rope(config, config["head_dim"], amplitude)
        self.layers = [Layer(weights, f"layers.{i}.", config) for i in range(config["num_hidden_layers"])]
        sliding = [kind == "sliding_attention" for kind in config["layer_types"]]
        self.windows = [config["sliding_window"] if s else None for s in sliding]
        # Unless the configuration decides, sliding layers are causal inside the block and full ones are not.
        self.causal = [config.get("is_causal", s) for s in sliding]
        self.empty = np.zeros((0, config["num_key_value_heads"], config["head_dim"]), np.float32)
        self.forget()

    def forget(self):
        self.context = [(self.empty, self.empty) for _ in self.layers]

    def observe(self, taps):
        """Appends committed tokens by their tap rows [n, taps * hidden]; each layer keeps their keys and values."""
        start = len(self.context[0][0])
        cos, sin = self.rope.tables(np.arange(start, start + len(taps)))
        features = rms_norm(taps @ self.fc.T, self.hidden_norm, self.eps)
        for i, layer in enumerate(self.layers):
            new = layer.key_value(features, cos, sin)
            self.context[i] = tuple(np.concatenate(pair) for pair in zip(self.context[i], new))

    def propose(self, anchor):
        """The anchor is the last emitted token, not yet observed. -> logits [block_size - 1, vocabulary]

        Slot j holds position start + j: the anchor in slot 0, masks behind it; slot j >= 1 predicts its own position.
        """
        start = len(self.context[0][0])
        positions = np.arange(start, start + self.block_size)
        cos, sin = self.rope.tables(positions)
        x = self.embedding[[anchor] + [self.mask_token] * (self.block_size - 1)]
        for layer, (key, value), window, causal in zip(self.layers, self.context, self.windows, self.causal):
            x = layer(x, key, value, cos, sin, self._visible(positions, window, causal))
        return rms_norm(x[1:], self.norm, self.eps) @ self.head.T

    @staticmethod
    def _visible(positions, window, causal):
        """bool [block, context + block]; a window of W reaches W - 1 positions back (and ahead, if not causal)."""
        distance = positions[:, None] - np.arange(positions[-1] + 1)
        visible = distance >= 0 if causal else np.ones(distance.shape, bool)
        return visible if window is None else visible & (np.abs(distance) < window)
