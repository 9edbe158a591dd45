"""Trains the drafter on a frozen, quantised target.

python3 -m train.train_drafter CONFIG.json TARGET.pt CORPUS OUT.pt
"""

import argparse
import json
import time

import torch
import torch.nn.functional as F

from train.data import Corpus
from train.drafter import Drafter
from train.muon import Muon, Optimizers
from train.target import Target


@torch.no_grad()
def generate(target, prompts, length):
    """Continues prompts [B, P] to [B, length], every row at a temperature of its own between 0 and 1."""
    temperature = torch.rand(len(prompts), 1, device=prompts.device)
    tokens, rows, past = prompts, prompts, None
    while tokens.shape[1] < length:
        hidden, _, past = target(rows, past=past)
        logits = target.lm_head(hidden[:, -1]).float()
        drawn = torch.multinomial(torch.softmax(logits / temperature.clamp(min=0.05), -1), 1)
        rows = torch.where(temperature < 0.05, logits.argmax(-1, keepdim=True), drawn)
        tokens = torch.cat([tokens, rows], 1)
    return tokens


def loss_of(drafter, target, tokens, anchors_per_row):
    """Cross entropy of slots 1.. at their own positions, weights exp(-(k - 1) / 7) -> loss, mean accepted length"""
    rows, length = tokens.shape
    with torch.no_grad():
        _, taps, _ = target(tokens, taps=drafter.taps)
    anchors = torch.randint(1, length - 1, (rows, anchors_per_row), device=tokens.device)
    logits = drafter(target, tokens, taps, anchors).float()
    slots = torch.arange(1, drafter.block, device=tokens.device)
    places = anchors[..., None] + slots
    inside = places < length
    labels = tokens.gather(1, places.clamp(max=length - 1).flatten(1)).view_as(places)
    weights = torch.exp(-(slots - 1) / 7) * inside
    losses = F.cross_entropy(logits.flatten(0, 2), labels.flatten(), reduction="none").view_as(places)
    right = (logits.argmax(-1) == labels) & inside
    return (losses * weights).sum() / weights.sum(), 1 + right.float().cumprod(-1).sum(-1).mean()


def train(drafter, target, corpus, args):
    device = next(drafter.parameters()).device
    autocast = torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")
    target.requires_grad_(False).quantise(True)
    matrices = [p for p in drafter.parameters() if p.ndim > 1]
    adam = torch.optim.Adam([p for p in drafter.parameters() if p.ndim == 1], lr=2e-3, betas=(0.9, 0.95))
    optimizer, began = Optimizers(Muon(matrices, lr=3e-3), adam), time.time()
    generated = []
    with autocast:
        for _ in range(args.generations):
            prompt = int(torch.randint(args.prompt[0], args.prompt[1] + 1, ()))
            generated.append(generate(target, corpus.windows(args.generation_rows, prompt), args.generated_length))
    generated = torch.cat(generated)
    print(f"generated {generated.numel()} tokens, {time.time() - began:.0f} s", flush=True)
    for step in range(args.steps):
        if step % 2:
            tokens = corpus.windows(max(args.tokens // args.window, 1), args.window)
        else:
            count = max(args.tokens // args.generated_length, 1)
            tokens = generated[torch.randint(len(generated), (count,), device=device)]
        with autocast:
            loss, accepted = loss_of(drafter, target, tokens, args.anchors)
        loss.backward()
        optimizer.step(1 - step / args.steps)
        if step % args.log_every == 0 or step == args.steps - 1:
            print(f"step {step} loss {loss.item():.4f} accepted {accepted.item():.2f} {time.time() - began:.0f} s")


def parser():
    p = argparse.ArgumentParser()
    p.add_argument("config"), p.add_argument("target"), p.add_argument("corpus"), p.add_argument("out")
    p.add_argument("--steps", type=int, default=1500)
    p.add_argument("--tokens", type=int, default=32768, help="per step")
    p.add_argument("--anchors", type=int, default=64, help="blocks per sequence")
    p.add_argument("--window", type=int, default=4096, help="length of a corpus sequence")
    p.add_argument("--generated-length", type=int, default=768)
    p.add_argument("--generations", type=int, default=16, help="batches generated before training")
    p.add_argument("--generation-rows", type=int, default=256)
    p.add_argument("--prompt", type=int, nargs=2, default=(16, 420), help="shortest and longest prompt")
    p.add_argument("--log-every", type=int, default=50)
    p.add_argument("--device", default="cuda")
    return p


def main():
    args = parser().parse_args()
    torch.manual_seed(0)
    saved = torch.load(args.target, map_location=args.device)
    target = Target(saved["config"]).to(args.device)
    target.load_state_dict(saved["state"])
    with open(args.config) as file:
        drafter = Drafter(json.load(file)).to(args.device)
    train(drafter, target, Corpus(args.corpus, args.device), args)
    torch.save({"config": drafter.config, "state": drafter.state_dict()}, args.out)


if __name__ == "__main__":
    main()
