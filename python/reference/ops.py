"""Small pieces that target and drafter share. Everything is float32 unless said."""

import math

import numpy as np


def rms_norm(x, weight, eps):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(eps)) * weight


def sigmoid(x):
    # tanh does not overflow where exp(-x) would.
    return 0.5 * (1 + np.tanh(0.5 * x))


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def logsumexp(x):
    top = x.max(axis=-1)
    return top + np.log(np.exp(x - top[..., None]).sum(axis=-1))


def swiglu(x, gate, up, down):
    h = x @ gate.T
    return (h * sigmoid(h) * (x @ up.T)) @ down.T


def attend(query, key, value, visible, scale):
    """query [n, heads, d], key [t, heads or 1, d], value [t, heads or 1, dv], visible bool [n, t] -> [n, heads, dv]"""
    scores = np.matmul(query.transpose(1, 0, 2), key.transpose(1, 2, 0)) * np.float32(scale)
    scores = np.where(visible, scores, np.float32(-np.inf))
    return np.matmul(softmax(scores), value.transpose(1, 0, 2)).transpose(1, 0, 2)


def top_k(logits, k):
    """Ids and values of the k largest logits of each row, descending; among equal logits the lowest id first."""
    ids = np.argsort(-logits, axis=-1, kind="stable")[..., :k]
    return ids, np.take_along_axis(logits, ids, axis=-1)


def yarn_mscale(factor, mscale):
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


class Rope:
    """Rotary position embedding of `dim` values, plain or YaRN.

    rope_scaling (old files) and rope_parameters (new ones) are both read; rope_theta may lie inside or beside them.
    amplitude "ratio" multiplies cos and sin by mscale(s, mscale) / mscale(s, mscale_all_dim) or the configured
    attention_factor, as transformers does; "legacy" always by mscale(s, 1), which some drafters were trained with.
    """

    def __init__(self, config, dim, amplitude="ratio"):
        scaling = config.get("rope_scaling") or config.get("rope_parameters") or {}
        theta = scaling.get("rope_theta", config.get("rope_theta", 10000.0))
        kind = scaling.get("rope_type", scaling.get("type", "default"))
        inverse = float(theta) ** (-np.arange(0, dim, 2) / dim)
        self.amplitude, self.score_factor = 1.0, 1.0
        if kind == "yarn":
            factor, all_dim = float(scaling["factor"]), scaling.get("mscale_all_dim", 0)
            inverse = self._yarn_frequencies(inverse, scaling, theta, dim, factor)
            self.amplitude = yarn_mscale(factor, 1)
            if amplitude == "ratio" and scaling.get("attention_factor"):
                self.amplitude = scaling["attention_factor"]
            elif amplitude == "ratio" and scaling.get("mscale") and all_dim:
                self.amplitude = yarn_mscale(factor, scaling["mscale"]) / yarn_mscale(factor, all_dim)
            # DeepSeek models also sharpen the softmax: scale = dim^-0.5 * mscale(s, mscale_all_dim)^2.
            self.score_factor = yarn_mscale(factor, all_dim) ** 2 if all_dim else 1.0
        elif kind != "default":
            raise ValueError(f"rope type {kind} is not supported")
        self.inverse = inverse

    @staticmethod
    def _yarn_frequencies(inverse, scaling, theta, dim, factor):
        """Fast dimensions keep their frequency, slow ones are divided by `factor`, a linear ramp lies between."""

        def dimension_of(rotations):
            window = scaling["original_max_position_embeddings"]
            return dim * math.log(window / (rotations * 2 * math.pi)) / (2 * math.log(theta))

        low = max(math.floor(dimension_of(scaling.get("beta_fast", 32))), 0)
        high = min(math.ceil(dimension_of(scaling.get("beta_slow", 1))), dim - 1)
        ramp = np.clip((np.arange(dim // 2) - low) / max(high - low, 0.001), 0, 1)
        return inverse / factor * ramp + inverse * (1 - ramp)

    def tables(self, positions):
        """cos and sin [n, dim / 2]. The angle is a float32 product, as in the models' training and serving code: a more
        exact one differs by 3e-5 rad at position 900, which a drafter turns into 3e-4 of a logit."""
        angles = (np.asarray(positions, np.float32)[:, None] * self.inverse.astype(np.float32)).astype(np.float64)
        return (np.cos(angles) * self.amplitude).astype(np.float32), (np.sin(angles) * self.amplitude).astype(
            np.float32
        )


def rotate_pairs(x, cos, sin):
    """DeepSeek layout: (x0, x1), (x2, x3), ... are the rotated pairs. x [n, heads, dim]"""
    cos, sin = cos[:, None], sin[:, None]
    a, b = x[..., 0::2], x[..., 1::2]
    return np.stack([a * cos - b * sin, b * cos + a * sin], axis=-1).reshape(x.shape)


def rotate_halves(x, cos, sin):
    """Llama/Qwen layout: x[i] and x[i + dim/2] are a pair. x [n, heads, dim]"""
    cos, sin = cos[:, None], sin[:, None]
    a, b = np.split(x, 2, axis=-1)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)
