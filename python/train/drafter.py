"""The DFlash drafter in PyTorch, for training: many blocks of one sequence in one pass."""

import torch
import torch.nn.functional as F
from torch import nn

from reference.ops import Rope
from train.target import Mlp, linear, norm


def rotate_halves(x, cos, sin):
    """x [B, T, heads, d], cos and sin [B, T, d / 2]"""
    a, b = x.float().chunk(2, -1)
    cos, sin = cos[:, :, None], sin[:, :, None]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        hidden, self.d = c["hidden_size"], c["head_dim"]
        heads, kv_heads = c["num_attention_heads"], c["num_key_value_heads"]
        self.groups = heads // kv_heads
        self.q_proj, self.o_proj = linear(hidden, heads * self.d), linear(heads * self.d, hidden)
        self.k_proj, self.v_proj = linear(hidden, kv_heads * self.d), linear(hidden, kv_heads * self.d)
        self.q_norm, self.k_norm = norm(self.d, c), norm(self.d, c)

    def forward(self, x, context, rotation, context_rotation, mask):
        q = rotate_halves(self.q_norm(self.q_proj(x).unflatten(-1, (-1, self.d))), *rotation)
        keys, values = [], []
        for rows, angles in ((context, context_rotation), (x, rotation)):
            keys.append(rotate_halves(self.k_norm(self.k_proj(rows).unflatten(-1, (-1, self.d))), *angles))
            values.append(self.v_proj(rows).unflatten(-1, (-1, self.d)))
        k, v = (torch.cat(a, 1).repeat_interleave(self.groups, 2) for a in (keys, values))
        q, k, v = (a.transpose(1, 2).to(v.dtype) for a in (q, k, v))
        return self.o_proj(F.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2).flatten(-2))


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = norm(c["hidden_size"], c), norm(c["hidden_size"], c)
        self.self_attn, self.mlp = Attention(c), Mlp(c["hidden_size"], c["intermediate_size"])

    def forward(self, x, *attention_inputs):
        x = x + self.self_attn(self.input_layernorm(x), *attention_inputs)
        return x + self.mlp(self.post_attention_layernorm(x))


class Drafter(nn.Module):
    """Full-attention layers only; embedding and head stay in the frozen target."""

    def __init__(self, config):
        super().__init__()
        c = self.config = config
        self.taps, self.mask_token = c["dflash_config"]["target_layer_ids"], c["dflash_config"]["mask_token_id"]
        self.block, hidden = c["block_size"], c["hidden_size"]
        self.fc = linear(len(self.taps) * hidden, hidden)
        self.hidden_norm, self.norm = norm(hidden, c), norm(hidden, c)
        self.layers = nn.ModuleList(Layer(c) for _ in range(c["num_hidden_layers"]))
        inverse = torch.tensor(Rope(c, c["head_dim"]).inverse, dtype=torch.float32)
        self.register_buffer("inverse", inverse, persistent=False)

    def rotation(self, positions):
        angles = positions[..., None].float() * self.inverse
        return angles.cos(), angles.sin()

    def forward(self, target, tokens, taps, anchors):
        """tokens [B, T], taps [B, T, n * H], anchors [B, A] (positions) -> logits [B, A, block - 1, vocabulary]

        Block a sees the context strictly before its anchor, and itself in both directions.
        """
        (rows, length), count = tokens.shape, anchors.shape[1]
        positions = anchors[..., None] + torch.arange(self.block, device=tokens.device)
        block_tokens = torch.full_like(positions, self.mask_token)
        block_tokens[..., 0] = tokens.gather(1, anchors)
        positions, block_tokens = positions.flatten(1), block_tokens.flatten(1)
        owner = torch.arange(count, device=tokens.device).repeat_interleave(self.block)
        past = torch.arange(length, device=tokens.device) < anchors.repeat_interleave(self.block, 1)[..., None]
        own = (owner[:, None] == owner[None, :]).expand(rows, -1, -1)
        mask = torch.cat([past, own], -1)[:, None]
        context = self.hidden_norm(self.fc(taps))
        context_rotation = self.rotation(torch.arange(length, device=tokens.device).expand(rows, -1))
        x = target.embed_tokens(block_tokens)
        for layer in self.layers:
            x = layer(x, context, self.rotation(positions), context_rotation, mask)
        return target.lm_head(self.norm(x).unflatten(1, (count, self.block))[:, :, 1:])
