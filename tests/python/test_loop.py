import itertools

import numpy as np
import pytest
from reference import loop

# Taps differ by about 1e-5 between implementations; the drafter's norms turn that into up to 2e-4 of a logit.
DRAFT_TOLERANCE = 2e-4


def smallest_gap(r, budget):
    """Between scores of consecutive pops: only a tree whose gaps exceed the noise is defined by its probabilities."""
    log_probs = (r.top_values - r.lse[:, None]).astype(np.float64)
    scores = [0.0]
    for token, parent, depth in zip(r.tree.tokens[1:], r.tree.parents[1:], r.tree.depths[1:]):
        rank = r.top_ids[depth - 1].tolist().index(token)
        scores.append(scores[parent] + log_probs[depth - 1][rank])
    return min(-np.diff(scores[1:])) if budget > 1 else np.inf


@pytest.mark.parametrize("budget", [16, 64])
def test_golden_rounds(target, drafter, golden, golden_prompt, budget):
    """Round by round against the stored candidates, trees, paths and bonus tokens; then the whole continuation."""
    p = f"p{golden_prompt}.b{budget}."
    names = ("start", "root", "top_val", "lse", "node_token", "node_parent", "path", "bonus")
    stored = {name: golden[p + name] for name in names}
    stream = loop.rounds(target, drafter, golden[f"p{golden_prompt}.prompt"], budget)
    seen, exact = [], 0
    for i, r in enumerate(itertools.islice(stream, len(stored["start"]))):
        seen.append(r)
        assert (r.start, r.tree.tokens[0]) == (stored["start"][i], stored["root"][i])
        assert np.abs(r.top_values - stored["top_val"][i][:, :budget]).max() <= DRAFT_TOLERANCE
        assert np.abs(r.lse - stored["lse"][i]).max() <= DRAFT_TOLERANCE
        nodes = stored["node_token"][i], stored["node_parent"][i]
        same = r.tree.tokens[1:] == nodes[0].tolist() and r.tree.parents[1:] == nodes[1].tolist()
        exact += same
        assert same or smallest_gap(r, budget) <= 2 * DRAFT_TOLERANCE
        path = stored["path"][i][stored["path"][i] >= 0]
        assert [r.tree.tokens[a] for a in r.accepted[1:]] == nodes[0][path[1:] - 1].tolist()
        assert r.bonus == stored["bonus"][i]
    assert exact >= len(seen) - 1
    greedy = golden[f"p{golden_prompt}.greedy"].tolist()
    tokens, _ = loop.speculate(itertools.chain(seen, stream), len(greedy))
    assert tokens == greedy


def test_chain_emits_the_same(target, drafter, golden, golden_prompt):
    prompt, greedy = golden[f"p{golden_prompt}.prompt"], golden[f"p{golden_prompt}.greedy"].tolist()
    assert loop.speculate(loop.chain_rounds(target, drafter, prompt), len(greedy))[0] == greedy


def test_plain_emits_the_same(target, golden):
    assert loop.plain(target, golden["p2.prompt"], 48) == golden["p2.greedy"].tolist()[:48]


def test_budget_zero_is_plain(target, drafter, golden):
    tokens, committed = loop.speculate(loop.rounds(target, drafter, golden["p2.prompt"], 0, width=1), 24)
    assert tokens == golden["p2.greedy"].tolist()[:24] and set(committed) == {1}


@pytest.mark.parametrize("mode", ["chain", "8", "16", "32", "64"])
def test_accepted_lengths(target, drafter, evaluation, evaluation_prompt, mode):
    """Tokens per pass equal an independent PyTorch run until it has committed the evaluation's 192 tokens."""
    prompt = evaluation["prompts"][evaluation_prompt]
    stream = (
        loop.chain_rounds(target, drafter, prompt["ids"])
        if mode == "chain"
        else loop.rounds(target, drafter, prompt["ids"], int(mode))
    )
    accepted = prompt["accepted"][mode]
    assert [len(r.accepted) for r in itertools.islice(stream, len(accepted))] == accepted
