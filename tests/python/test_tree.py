import itertools

import numpy as np
import pytest
from reference import tree as trees


def random_log_probs(rng, slots, k):
    """The k best of k + 3 tokens, so that even a single candidate has a probability below one."""
    logits = 2 * rng.standard_normal((slots, k + 3))
    log_probs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return -np.sort(-log_probs, axis=1)[:, :k].astype(np.float32)


def rank_paths(tree, ids):
    """The path of every node, as ranks."""
    paths = [()]
    for token, parent, depth in zip(tree.tokens[1:], tree.parents[1:], tree.depths[1:]):
        paths.append((*paths[parent], ids[depth - 1].tolist().index(token)))
    return paths[1:]


@pytest.mark.parametrize("budget", [16, 64])
def test_golden_trees(golden, budget):
    """All 480, from the stored candidates; order, parents and depths included."""
    count = 0
    for index in range(12):
        p = f"p{index}.b{budget}."
        stored = {
            name: golden[p + name]
            for name in ("root", "top_id", "top_val", "lse", "node_token", "node_parent", "node_depth", "path", "bonus")
        }
        for r, root in enumerate(stored["root"]):
            log_probs = stored["top_val"][r] - stored["lse"][r][:, None]
            tree = trees.build(root, stored["top_id"][r][:, :budget], log_probs[:, :budget], budget)
            n = len(tree.tokens) - 1
            assert tree.tokens[1:] == stored["node_token"][r][:n].tolist() and (stored["node_token"][r][n:] == -1).all()
            assert tree.parents[1:] == stored["node_parent"][r][:n].tolist()
            assert tree.depths[1:] == stored["node_depth"][r][:n].tolist()
            check_walk(tree, stored["path"][r], stored["bonus"][r])
            count += 1
    assert count == 240


def check_walk(tree, path, bonus):
    """Choices that follow the stored path and then emit the stored bonus must be walked back to it."""
    path = path[path >= 0].tolist()
    choices = np.full(len(tree.tokens), -2)
    for node, child in itertools.pairwise(path):
        choices[node] = tree.tokens[child]
    choices[path[-1]] = bonus
    assert trees.walk(tree, choices) == (path, bonus)


@pytest.mark.parametrize("slots, k", [(1, 1), (1, 5), (2, 4), (3, 3), (4, 2), (7, 1)])
def test_is_the_most_probable_prefixes(slots, k):
    """Brute force: all prefixes sorted by probability, then by rank path."""
    rng = np.random.default_rng(slots * 10 + k)
    ids = np.argsort(rng.random((slots, 50)), axis=1)[:, :k]
    log_probs = random_log_probs(rng, slots, k)
    scored = []
    for depth in range(1, slots + 1):
        for path in itertools.product(range(k), repeat=depth):
            scored.append((-sum(float(log_probs[d][r]) for d, r in enumerate(path)), path))
    order = [path for _, path in sorted(scored)]
    for budget in (0, 1, 2, 5, len(order), len(order) + 3):
        tree = trees.build(99, ids, log_probs, budget)
        assert rank_paths(tree, ids) == order[:budget]
        assert tree.tokens[0] == 99 and tree.parents[0] == -1 and tree.depths[0] == 0


def test_ties_go_to_the_smaller_path():
    """Probability one at slot 0 ties with its child; equal candidates tie with each other."""
    ids = np.array([[1, 2], [3, 4]])
    tree = trees.build(0, ids, np.array([[0, -1], [-1, -1]], np.float32), 6)
    assert rank_paths(tree, ids) == [(0,), (0, 0), (0, 1), (1,), (1, 0), (1, 1)]


def test_smaller_budgets_are_prefixes():
    rng = np.random.default_rng(3)
    ids, log_probs = np.argsort(rng.random((7, 40)), axis=1), random_log_probs(rng, 7, 40)
    whole = trees.build(0, ids, log_probs, 255)
    for budget in (1, 31, 32, 33, 63, 64, 65):
        part = trees.build(0, ids, log_probs, budget)
        n = len(part.tokens)
        assert (part.tokens, part.parents, part.depths) == (whole.tokens[:n], whole.parents[:n], whole.depths[:n])


def test_nothing_to_build():
    empty = trees.build(7, np.zeros((0, 4), int), np.zeros((0, 4), np.float32), 8)
    assert (empty.tokens, empty.parents, empty.depths) == ([7], [-1], [0])


def test_visible_is_ancestors_and_self():
    tree = trees.Tree([0] * 5, [-1, 0, 0, 1, 3], [0, 1, 1, 2, 3])
    assert tree.visible().astype(int).tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 0, 1, 0, 0],
        [1, 1, 0, 1, 0],
        [1, 1, 0, 1, 1],
    ]


def test_walk_stops_where_no_child_matches():
    tree = trees.Tree([9, 5, 6, 5], [-1, 0, 0, 2], [0, 1, 1, 2])
    assert trees.walk(tree, [4, 0, 0, 0]) == ([0], 4)
    assert trees.walk(tree, [6, 0, 5, 8]) == ([0, 2, 3], 8)
