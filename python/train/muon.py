"""Muon: momentum whose matrix is made (nearly) orthogonal before it is applied."""

import torch


def orthogonalise(matrix, steps=5):
    """Newton-Schulz towards U V^T of matrix = U S V^T, batched over leading dimensions."""
    x = matrix.bfloat16() if matrix.is_cuda else matrix
    wide = x.shape[-2] <= x.shape[-1]
    x = x if wide else x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x if wide else x.mT


class Muon(torch.optim.Optimizer):
    """Each step has the root mean square 0.2, as an Adam step has, so that learning rates carry over (Moonlight)."""

    def __init__(self, params, lr, weight_decay=0.1, momentum=0.95):
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                buffer = self.state[p].setdefault("momentum", torch.zeros_like(p))
                buffer.lerp_(p.grad, 1 - group["momentum"])
                update = orthogonalise(p.grad.lerp(buffer, group["momentum"]))
                scale = 0.2 * max(p.shape[-2:]) ** 0.5
                p.mul_(1 - group["lr"] * group["weight_decay"]).add_(update.to(p.dtype), alpha=-group["lr"] * scale)


class Optimizers:
    """Muon and Adam side by side under one relative schedule."""

    def __init__(self, *optimizers):
        self.optimizers = optimizers
        self.peaks = [[group["lr"] for group in o.param_groups] for o in optimizers]

    def step(self, relative_lr):
        for optimizer, peaks in zip(self.optimizers, self.peaks):
            for group, peak in zip(optimizer.param_groups, peaks):
                group["lr"] = peak * relative_lr
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
