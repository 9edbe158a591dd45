"""The draft tree: best-first construction (DDTree) and the greedy walk."""

import dataclasses
import heapq

import numpy as np


@dataclasses.dataclass
class Tree:
    """Node 0 is the root: the last emitted token, which is not part of the budget. parents[i] < i."""

    tokens: list
    parents: list
    depths: list

    def visible(self):
        """bool [n, n]: a node attends to its ancestors and itself."""
        seen = np.eye(len(self.tokens), dtype=bool)
        for node in range(1, len(self.tokens)):
            seen[node] |= seen[self.parents[node]]
        return seen


def build(root, token_ids, log_probs, budget):
    """The `budget` most probable prefixes of a product of per-slot distributions, in descending probability.

    token_ids, log_probs [slots, k]: candidates per slot, best first; log_probs float32, summed here in double. A node
    is named by its ranks along the path; of two equal sums the lexicographically smaller path comes first. Popping a
    node offers its next sibling and its first child, so the heap never holds more than budget + 1 entries.
    """
    tree = Tree([root], [-1], [0])
    slots, k = np.shape(token_ids)
    log_probs = np.asarray(log_probs, np.float64).tolist()
    heap = [(-log_probs[0][0], (0,), 0)] if slots and k and budget > 0 else []
    while heap and len(tree.tokens) <= budget:
        negative, path, parent = heapq.heappop(heap)
        node, depth, rank, total = len(tree.tokens), len(path), path[-1], -negative
        tree.tokens.append(int(token_ids[depth - 1][rank]))
        tree.parents.append(parent)
        tree.depths.append(depth)
        if rank + 1 < k:
            # Subtract, then add: this order of rounding is part of the algorithm's definition.
            sibling = (total - log_probs[depth - 1][rank]) + log_probs[depth - 1][rank + 1]
            heapq.heappush(heap, (-sibling, path[:-1] + (rank + 1,), parent))
        if depth < slots:
            heapq.heappush(heap, (-(total + log_probs[depth][0]), path + (0,), node))
    return tree


def walk(tree, choices):
    """choices[i]: the target's token after node i. -> the nodes of the matching path (root first), the next root"""
    child = {(parent, token): node for node, (parent, token) in enumerate(zip(tree.parents, tree.tokens)) if node}
    accepted = [0]
    while (accepted[-1], int(choices[accepted[-1]])) in child:
        accepted.append(child[accepted[-1], int(choices[accepted[-1]])])
    return accepted, int(choices[accepted[-1]])
