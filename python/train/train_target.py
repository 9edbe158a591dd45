"""Trains the target.

python3 -m train.train_target CONFIG.json CORPUS OUT.pt     (CORPUS: the prefix that train.data wrote)
"""

import argparse
import json
import time

import torch
import torch.nn.functional as F

from train.data import Corpus
from train.muon import Muon, Optimizers
from train.target import Target


def optimizers(model):
    """Muon for every matrix inside the layers except the router, Adam for the rest."""
    routers = [moe.gate.weight for moe in model.moe_layers()]
    special = {id(p) for p in (model.embed_tokens.weight, model.lm_head.weight, *routers)}
    inner = [p for p in model.parameters() if id(p) not in special]
    vectors = [p for p in inner if p.ndim == 1]
    adam = torch.optim.Adam(
        [
            {"params": [model.embed_tokens.weight], "lr": 3e-3},
            {"params": [model.lm_head.weight, *vectors], "lr": 2e-3},
            {"params": routers, "lr": 3e-4},
        ],
        betas=(0.9, 0.95),
    )
    return Optimizers(Muon([p for p in inner if p.ndim > 1], lr=3.5e-3), adam)


def relative_lr(step, steps, warm_up):
    """Linear warm-up, constant, linear decay over the second half."""
    return min(1.0, (step + 1) / warm_up, 2 * (steps - step) / steps)


def loss_of(model, tokens, positions, pieces):
    """Next token inside each piece; rows attend inside their piece only."""
    length = tokens.shape[1]
    causal = torch.ones(length, length, dtype=torch.bool, device=tokens.device).tril()
    mask = (pieces[:, :, None] == pieces[:, None, :]) & causal
    hidden, _, _ = model(tokens, positions, mask[:, None])
    labels = torch.where(pieces[:, 1:] == pieces[:, :-1], tokens[:, 1:], -100)
    return F.cross_entropy(model.lm_head(hidden[:, :-1]).float().flatten(0, 1), labels.flatten())


def train(model, corpus, args):
    device = next(model.parameters()).device
    optimizer, began = optimizers(model), time.time()
    for step in range(args.steps):
        progress = step / args.steps
        model.quantise(progress >= 1 - args.quantised_part)
        length = args.long if progress >= 1 - args.long_part else args.short
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            loss = loss_of(model, *corpus.packed(max(args.tokens // length, 1), length))
        loss.backward()
        optimizer.step(relative_lr(step, args.steps, args.warm_up))
        for moe in model.moe_layers():
            moe.balance(3e-3 * (1 - progress))
        if step % args.log_every == 0 or step == args.steps - 1:
            print(f"step {step} loss {loss.item():.4f} {time.time() - began:.0f} s", flush=True)


def parser():
    p = argparse.ArgumentParser()
    p.add_argument("config"), p.add_argument("corpus"), p.add_argument("out")
    p.add_argument("--steps", type=int, default=4980)
    p.add_argument("--tokens", type=int, default=65536, help="per step")
    p.add_argument("--warm-up", type=int, default=200)
    p.add_argument("--short", type=int, default=1024, help="row length at first")
    p.add_argument("--long", type=int, default=8192, help="row length at the end")
    p.add_argument("--long-part", type=float, default=0.1)
    p.add_argument("--quantised-part", type=float, default=0.2)
    p.add_argument("--log-every", type=int, default=50)
    p.add_argument("--device", default="cuda")
    return p


def main():
    args = parser().parse_args()
    torch.manual_seed(0)
    with open(args.config) as file:
        model = Target(json.load(file)).to(args.device)
    train(model, Corpus(args.corpus, args.device), args)
    torch.save({"config": model.config, "state": model.state_dict()}, args.out)


if __name__ == "__main__":
    main()
