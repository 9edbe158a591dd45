"""The target in PyTorch, for training: Kimi-K2's architecture, plain (not absorbed) MLA, fake-quantised experts."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from reference.ops import Rope  # frequencies and softmax scale, so that training and inference share them


def fake_int4(weight, group=32):
    """What export stores (scale = absmax / 7.5 in bfloat16, codes -8..7), with the gradient of the identity."""
    grouped = weight.unflatten(-1, (-1, group))
    scale = (grouped.detach().abs().amax(-1, keepdim=True) / 7.5).bfloat16().float()
    rounded = (torch.clamp(torch.round(grouped / scale), -8, 7) * scale).flatten(-2)
    return weight + (rounded - weight).detach()


def linear(width, out):
    layer = nn.Linear(width, out, bias=False)
    nn.init.normal_(layer.weight, std=width**-0.5)
    return layer


def norm(width, config):
    return nn.RMSNorm(width, eps=config["rms_norm_eps"])


def rotate_pairs(x, cos, sin):
    """x [B, T, heads, rope], cos and sin [B, T, rope / 2]"""
    a, b = x[..., 0::2].float(), x[..., 1::2].float()
    cos, sin = cos[:, :, None], sin[:, :, None]
    return torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2).to(x.dtype)


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.heads, self.nope, self.rope_dim = c["num_attention_heads"], c["qk_nope_head_dim"], c["qk_rope_head_dim"]
        self.rank, self.v_dim, hidden = c["kv_lora_rank"], c["v_head_dim"], c["hidden_size"]
        self.q_a_proj, self.q_a_layernorm = linear(hidden, c["q_lora_rank"]), norm(c["q_lora_rank"], c)
        self.q_b_proj = linear(c["q_lora_rank"], self.heads * (self.nope + self.rope_dim))
        self.kv_a_proj_with_mqa = linear(hidden, self.rank + self.rope_dim)
        self.kv_a_layernorm = norm(self.rank, c)
        self.kv_b_proj = linear(self.rank, self.heads * (self.nope + self.v_dim))
        self.o_proj = linear(self.heads * self.v_dim, hidden)
        self.scale = (self.nope + self.rope_dim) ** -0.5 * Rope(c, self.rope_dim).score_factor

    def forward(self, x, cos, sin, mask, past):
        """mask [B, 1, T, T] or None (causal); past [B, t, rank + rope] or None -> output, past with the new rows"""
        q = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x))).unflatten(-1, (self.heads, -1))
        q = torch.cat([q[..., : self.nope], rotate_pairs(q[..., self.nope :], cos, sin)], -1)
        latent, key_rope = self.kv_a_proj_with_mqa(x).split([self.rank, self.rope_dim], -1)
        key_rope = rotate_pairs(key_rope[:, :, None], cos, sin)[:, :, 0]
        rows = torch.cat([self.kv_a_layernorm(latent), key_rope], -1)
        rows = rows if past is None else torch.cat([past, rows], 1)
        kv = self.kv_b_proj(rows[..., : self.rank]).unflatten(-1, (self.heads, -1))
        k_nope, v = kv.split([self.nope, self.v_dim], -1)
        k = torch.cat([k_nope, rows[:, :, None, self.rank :].expand(-1, -1, self.heads, -1)], -1)
        causal = mask is None and q.shape[1] > 1  # a single new row sees everything
        q, k, v = (a.transpose(1, 2).to(v.dtype) for a in (q, k, v))
        out = F.scaled_dot_product_attention(q, k, v, mask, is_causal=causal, scale=self.scale)
        return self.o_proj(out.transpose(1, 2).flatten(-2)), rows


class Mlp(nn.Module):
    def __init__(self, hidden, inner):
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = (
            linear(hidden, inner),
            linear(hidden, inner),
            linear(inner, hidden),
        )

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Moe(nn.Module):
    def __init__(self, c):
        super().__init__()
        experts, hidden, inner = c["n_routed_experts"], c["hidden_size"], c["moe_intermediate_size"]
        self.k, self.factor, self.quantise = c["num_experts_per_tok"], c["routed_scaling_factor"], False
        self.gate = linear(hidden, experts)
        self.register_buffer("bias", torch.zeros(experts))
        self.register_buffer("load", torch.zeros(experts), persistent=False)
        self.gate_proj = nn.Parameter(torch.randn(experts, inner, hidden) * hidden**-0.5)
        self.up_proj = nn.Parameter(torch.randn(experts, inner, hidden) * hidden**-0.5)
        self.down_proj = nn.Parameter(torch.randn(experts, hidden, inner) * inner**-0.5)
        self.shared_experts = Mlp(hidden, inner * c["n_shared_experts"])

    def forward(self, x):
        shape, x = x.shape, x.flatten(0, -2)
        with torch.autocast(x.device.type, enabled=False):  # the router works in float32
            scores = torch.sigmoid(F.linear(x.float(), self.gate.weight))
        chosen = (scores.detach() + self.bias).topk(self.k, -1).indices
        weights = scores.gather(-1, chosen)
        weights = weights / weights.sum(-1, keepdim=True) * self.factor
        order = chosen.flatten().argsort()
        rows = order // self.k
        counts = torch.bincount(chosen.flatten(), minlength=len(self.bias))
        self.load += counts
        experts = [self.gate_proj, self.up_proj, self.down_proj]
        gate, up, down = (fake_int4(w) for w in experts) if self.quantise else experts
        parts = [
            F.linear(F.silu(F.linear(part, gate[e])) * F.linear(part, up[e]), down[e])
            for e, part in enumerate(x[rows].split(counts.tolist()))
        ]
        routed = torch.cat(parts) * weights.flatten()[order, None]
        out = torch.zeros_like(x, dtype=torch.float32).index_add(0, rows, routed.float())
        return (out + self.shared_experts(x)).view(shape)

    @torch.no_grad()
    def balance(self, speed):
        """Load balancing without a loss: the selection bias of an overloaded expert falls, of an idle one rises."""
        self.bias += speed * torch.sign(self.load.mean() - self.load)
        self.load.zero_()


class Layer(nn.Module):
    def __init__(self, c, sparse):
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = norm(c["hidden_size"], c), norm(c["hidden_size"], c)
        self.self_attn = Attention(c)
        self.mlp = Moe(c) if sparse else Mlp(c["hidden_size"], c["intermediate_size"])

    def forward(self, x, cos, sin, mask, past):
        mixed, rows = self.self_attn(self.input_layernorm(x), cos, sin, mask, past)
        x = x + mixed
        return x + self.mlp(self.post_attention_layernorm(x)), rows


class Target(nn.Module):
    def __init__(self, config):
        super().__init__()
        c = self.config = config
        self.embed_tokens = nn.Embedding(c["vocab_size"], c["hidden_size"])
        nn.init.normal_(self.embed_tokens.weight, std=1 / math.sqrt(c["hidden_size"]))
        self.layers = nn.ModuleList(Layer(c, i >= c["first_k_dense_replace"]) for i in range(c["num_hidden_layers"]))
        self.norm, self.lm_head = norm(c["hidden_size"], c), linear(c["hidden_size"], c["vocab_size"])
        inverse = torch.tensor(Rope(c, c["qk_rope_head_dim"]).inverse, dtype=torch.float32)
        self.register_buffer("inverse", inverse, persistent=False)

    def moe_layers(self):
        return [layer.mlp for layer in self.layers if isinstance(layer.mlp, Moe)]

    def quantise(self, on):
        for moe in self.moe_layers():
            moe.quantise = on

    def forward(self, tokens, positions=None, mask=None, past=None, taps=()):
        """tokens [B, T] -> final hidden states [B, T, H], taps [B, T, len(taps) * H] or None, past"""
        if positions is None:
            start = 0 if past is None else past[0].shape[1]
            positions = torch.arange(start, start + tokens.shape[1], device=tokens.device).expand_as(tokens)
        angles = positions[..., None].float() * self.inverse
        cos, sin = angles.cos(), angles.sin()
        x, rows, tapped = self.embed_tokens(tokens), [], []
        for i, layer in enumerate(self.layers):
            x, row = layer(x, cos, sin, mask, None if past is None else past[i])
            rows.append(row)
            tapped += [x] if i in taps else []
        return self.norm(x), torch.cat(tapped, -1) if tapped else None, rows
