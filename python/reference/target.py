"""The target: DeepSeek-V2/V3, Moonlight and Kimi-K2 decoders (multi-head latent attention, mixture of experts)."""

import numpy as np

from .checkpoint import Checkpoint
from .ops import Rope, attend, rms_norm, rotate_pairs, sigmoid, softmax, swiglu


def text_config(config):
    """Kimi-K2.5 and later nest the language model's configuration."""
    return config.get("text_config", config)


class Attention:
    """Absorbed MLA: the cache keeps one latent and one rotated key per token, shared by all heads.

    kv_b_proj holds per head W_UK (latent to key) and W_UV (latent to value). Instead of expanding every cached latent,
    W_UK moves to the query (q_nope W_UK . c = q_nope . W_UK c) and W_UV behind the weighted sum of latents.
    """

    def __init__(self, weights, prefix, config, lora_norm_eps):
        self.heads, self.nope = config["num_attention_heads"], config["qk_nope_head_dim"]
        self.rank, self.eps = config["kv_lora_rank"], lora_norm_eps
        if config.get("q_lora_rank"):
            self.q_a = weights.linear(prefix + "q_a_proj")
            self.q_a_norm = weights[prefix + "q_a_layernorm.weight"]
            self.q_b = weights.linear(prefix + "q_b_proj")
        else:
            self.q_a, self.q_b = None, weights.linear(prefix + "q_proj")
        self.kv_a = weights.linear(prefix + "kv_a_proj_with_mqa")
        self.kv_a_norm = weights[prefix + "kv_a_layernorm.weight"]
        kv_b = weights.linear(prefix + "kv_b_proj").reshape(self.heads, -1, self.rank)
        self.to_key, self.to_value = kv_b[:, : self.nope], kv_b[:, self.nope :]
        self.o = weights.linear(prefix + "o_proj")
        self.rope = Rope(config, config["qk_rope_head_dim"])
        self.scale = (self.nope + config["qk_rope_head_dim"]) ** -0.5 * self.rope.score_factor

    def __call__(self, x, positions, past, visible):
        """past [t, rank + rope] -> output [n, hidden], past with the n new rows"""
        cos, sin = self.rope.tables(positions)
        low = x if self.q_a is None else rms_norm(x @ self.q_a.T, self.q_a_norm, self.eps)
        q = (low @ self.q_b.T).reshape(len(x), self.heads, -1)
        q_latent = np.einsum("nhd,hdr->nhr", q[..., : self.nope], self.to_key)
        query = np.concatenate([q_latent, rotate_pairs(q[..., self.nope :], cos, sin)], axis=-1)

        compressed = x @ self.kv_a.T
        latent = rms_norm(compressed[:, : self.rank], self.kv_a_norm, self.eps)
        key_rope = rotate_pairs(compressed[:, None, self.rank :], cos, sin)[:, 0]
        past = np.concatenate([past, np.concatenate([latent, key_rope], axis=-1)])

        mixed = attend(query, past[:, None], past[:, None, : self.rank], visible, self.scale)
        out = np.einsum("nhr,hdr->nhd", mixed, self.to_value)
        return out.reshape(len(x), -1) @ self.o.T, past


class Mlp:
    def __init__(self, weights, prefix):
        self.weights = [weights.linear(prefix + name) for name in ("gate_proj", "up_proj", "down_proj")]

    def __call__(self, x):
        return swiglu(x, *self.weights)


class Router:
    """Which experts a row goes to, and with which weights."""

    def __init__(self, weights, prefix, config):
        self.gate = weights[prefix + "weight"]
        self.sigmoid = config.get("scoring_func", "softmax") == "sigmoid"
        self.method = config.get("topk_method", "greedy")
        bias = prefix + "e_score_correction_bias"
        self.bias = weights[bias] if self.method == "noaux_tc" else np.float32(0)
        self.groups = config.get("n_group") or 1
        self.kept_groups = config.get("topk_group") or 1
        self.k = config["num_experts_per_tok"]
        self.renormalise = config["norm_topk_prob"]
        self.factor = np.float32(config.get("routed_scaling_factor", 1.0))

    def __call__(self, x):
        """-> expert ids [n, k], weights [n, k]"""
        logits = x @ self.gate.T
        scores = sigmoid(logits) if self.sigmoid else softmax(logits)
        choice = scores + self.bias  # the bias chooses, it never weighs
        if self.method != "greedy" and self.groups > 1:
            choice = self._mask_groups(choice)
        chosen = np.argsort(-choice, axis=-1, kind="stable")[:, : self.k]
        weights = np.take_along_axis(scores, chosen, axis=-1)
        if self.renormalise:
            weights = weights / (weights.sum(axis=-1, keepdims=True) + np.float32(1e-20))
        return chosen, weights * self.factor

    def _mask_groups(self, choice):
        """Keeps the best groups; noaux_tc ranks them by their two best experts, group_limited_greedy by the best."""
        grouped = np.sort(choice.reshape(len(choice), self.groups, -1), axis=-1)
        rank = grouped[..., -2:].sum(axis=-1) if self.method == "noaux_tc" else grouped[..., -1]
        kept = np.zeros(rank.shape, bool)
        np.put_along_axis(kept, np.argsort(-rank, axis=-1, kind="stable")[:, : self.kept_groups], True, axis=-1)
        return np.where(np.repeat(kept, choice.shape[1] // self.groups, axis=1), choice, np.float32(-np.inf))


class Moe:
    def __init__(self, weights, prefix, config):
        self.router = Router(weights, prefix + "gate.", config)
        count = config["n_routed_experts"]
        if prefix + "experts.gate_up_proj" in weights:  # fused layout: gate rows, then up rows
            fused, down = weights[prefix + "experts.gate_up_proj"], weights[prefix + "experts.down_proj"]
            self.experts = [(*np.split(fused[e], 2), down[e]) for e in range(count)]
        else:
            self.experts = [Mlp(weights, f"{prefix}experts.{e}.").weights for e in range(count)]
        self.shared = Mlp(weights, prefix + "shared_experts.") if config.get("n_shared_experts") else None

    def __call__(self, x):
        chosen, weights = self.router(x)
        out = np.zeros_like(x)
        for e in np.unique(chosen):
            rows, slots = np.nonzero(chosen == e)
            out[rows] += weights[rows, slots, None] * swiglu(x[rows], *self.experts[e])
        return out if self.shared is None else out + self.shared(x)


class Cache:
    """Per layer the rows of all tokens seen so far."""

    def __init__(self, layers, width):
        self.rows = [np.zeros((0, width), np.float32) for _ in range(layers)]

    def __len__(self):
        return len(self.rows[0])

    def keep(self, length, accepted=()):
        """Drops every row from `length` on, except length + a for the accepted nodes a of the last tree."""
        index = [*range(length), *(length + a for a in accepted)]
        self.rows = [rows[index] for rows in self.rows]


class Target:
    """lora_norm_eps overrides the epsilon of the two norms inside MLA; transformers always uses 1e-6 there."""

    def __init__(self, directory, lora_norm_eps=None):
        weights = Checkpoint(directory, prefix="language_model.")
        config = self.config = text_config(weights.config)
        self.eps = config["rms_norm_eps"]
        self.embedding = weights["model.embed_tokens.weight"]
        self.norm = weights["model.norm.weight"]
        self.head = self.embedding if config.get("tie_word_embeddings") else weights["lm_head.weight"]
        self.layers = []
        for i in range(config["num_hidden_layers"]):
            prefix = f"model.layers.{i}."
            sparse = i >= config["first_k_dense_replace"] and i % config.get("moe_layer_freq", 1) == 0
            self.layers.append(
                (
                    weights[prefix + "input_layernorm.weight"],
                    Attention(weights, prefix + "self_attn.", config, lora_norm_eps or self.eps),
                    weights[prefix + "post_attention_layernorm.weight"],
                    Moe(weights, prefix + "mlp.", config) if sparse else Mlp(weights, prefix + "mlp."),
                )
            )

    def new_cache(self):
        return Cache(len(self.layers), self.config["kv_lora_rank"] + self.config["qk_rope_head_dim"])

    def forward(self, tokens, cache, positions=None, visible=None, taps=()):
        """Runs n rows behind the cache's t rows and appends them to it.

        visible [n, n] says which rows of this call a row attends to (default: causal); every row sees all t cached
        rows. taps lists layers whose outputs are wanted. -> logits [n, vocabulary], taps [n, len(taps) * hidden]
        """
        n, t = len(tokens), len(cache)
        positions = np.arange(t, t + n) if positions is None else positions
        visible = np.tri(n, dtype=bool) if visible is None else visible
        visible = np.concatenate([np.ones((n, t), bool), visible], axis=1)
        x = self.embedding[np.asarray(tokens)]
        tapped = {}
        for i, (attention_norm, attention, mlp_norm, mlp) in enumerate(self.layers):
            mixed, cache.rows[i] = attention(rms_norm(x, attention_norm, self.eps), positions, cache.rows[i], visible)
            x = x + mixed
            x = x + mlp(rms_norm(x, mlp_norm, self.eps))
            tapped[i] = x
        rows = np.concatenate([tapped[i] for i in taps], axis=-1) if len(taps) else np.zeros((n, 0), np.float32)
        return rms_norm(x, self.norm, self.eps) @ self.head.T, rows
