"""Greedy decoding: plain, with a draft chain, with a draft tree. All three emit the same tokens."""

import dataclasses

import numpy as np

from . import tree as trees
from .ops import logsumexp, top_k


def plain(target, prompt, count):
    """The `count` tokens after the prompt."""
    cache = target.new_cache()
    rows, tokens = prompt, []
    for _ in range(count):
        tokens.append(int(target.forward(rows, cache)[0][-1].argmax()))
        rows = tokens[-1:]
    return tokens


@dataclasses.dataclass
class Round:
    """One target pass: its root, the drafter's candidates, the tree, the accepted nodes and the next root."""

    start: int
    top_ids: np.ndarray
    top_values: np.ndarray
    lse: np.ndarray
    tree: trees.Tree
    accepted: list
    bonus: int


def rounds(target, drafter, prompt, budget, width=None):
    """Yields rounds without end. budget: nodes without the root; width: candidates per slot (None: budget)."""
    cache, taps = target.new_cache(), drafter.taps
    drafter.forget()
    logits, features = target.forward(prompt, cache, taps=taps)
    root = int(logits[-1].argmax())
    while True:
        start = len(cache)
        drafter.observe(features)
        draft = drafter.propose(root)
        ids, values = top_k(draft, budget if width is None else width)
        lse = logsumexp(draft)
        tree = trees.build(root, ids, values - lse[:, None], budget)
        positions = start + np.array(tree.depths)
        logits, features = target.forward(tree.tokens, cache, positions, tree.visible(), taps)
        accepted, bonus = trees.walk(tree, logits.argmax(axis=-1))
        yield Round(start, ids, values, lse, tree, accepted, bonus)
        cache.keep(start, accepted)
        features = features[accepted]
        root = bonus


def chain_rounds(target, drafter, prompt):
    """A chain is the tree whose slots have one candidate each."""
    return rounds(target, drafter, prompt, budget=drafter.block_size - 1, width=1)


def speculate(round_stream, count):
    """-> the first `count` tokens after the prompt, the number of tokens that each pass committed"""
    tokens, committed = [], []
    for r in round_stream:
        if not tokens:
            tokens.append(r.tree.tokens[0])
        tokens += [r.tree.tokens[node] for node in r.accepted[1:]] + [r.bonus]
        committed.append(len(r.accepted))
        if len(tokens) >= count:
            return tokens[:count], committed
    return tokens, committed
