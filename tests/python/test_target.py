import numpy as np
import pytest
from reference import loop
from reference.checkpoint import Safetensors
from reference.target import Target

# Float32 sums of up to a few hundred terms in another order; the smallest mistake that a variant shows moves 3e-3.
TOLERANCE = 1e-4

VARIANTS = ["deepseek-v2-lite", "moonlight", "deepseek-v3-groups", "kimi-k2.6", "fused-experts", "dense-layers"]


@pytest.mark.parametrize("index", range(12))
def test_demo_logits_and_greedy_tokens(target, golden, index):
    cache = target.new_cache()
    prompt, greedy = golden[f"p{index}.prompt"], golden[f"p{index}.greedy"]
    first, _ = target.forward(prompt, cache)
    rest, _ = target.forward(greedy[:-1], cache)
    assert np.abs(first[-1] - golden[f"p{index}.prompt_logits"]).max() <= TOLERANCE
    logits = np.concatenate([first[-1:], rest])
    assert np.array_equal(logits.argmax(axis=-1), greedy)
    best = -np.sort(-logits, axis=-1)[:, :2]
    # Each of the two logits may be off by the tolerance.
    assert np.abs(best[:, 0] - best[:, 1] - golden[f"p{index}.margin"]).max() <= 2 * TOLERANCE


@pytest.mark.parametrize("name", VARIANTS)
def test_variants_equal_transformers(variants, name):
    expected, target = Safetensors(variants / name / "expected.safetensors"), Target(variants / name)
    layers = range(len(target.layers)) if "taps" in expected.entries else []
    logits, taps = target.forward(expected["prompt"], target.new_cache(), taps=layers)
    assert np.abs(logits - expected["logits"]).max() <= TOLERANCE
    assert loop.plain(target, expected["prompt"], len(expected["greedy"])) == expected["greedy"].tolist()
    if layers:
        assert np.abs(taps.reshape(expected["taps"].shape) - expected["taps"]).max() <= TOLERANCE


def test_every_variant_is_tested(variants):
    assert sorted(VARIANTS) == sorted(path.name for path in variants.iterdir() if path.is_dir())


def test_lora_norm_eps_can_be_overridden(variants):
    expected = Safetensors(variants / "moonlight/expected.safetensors")
    target = Target(variants / "moonlight", lora_norm_eps=1e-6)
    logits, _ = target.forward(expected["prompt"], target.new_cache())
    assert np.abs(logits - expected["logits"]).max() > 1e-2


def test_chunked_prefill_equals_whole(variants):
    expected, target = Safetensors(variants / "kimi-k2.6/expected.safetensors"), Target(variants / "kimi-k2.6")
    cache = target.new_cache()
    parts = np.split(expected["prompt"], [1, 9, 10])
    logits = np.concatenate([target.forward(part, cache)[0] for part in parts])
    assert np.abs(logits - expected["logits"]).max() <= TOLERANCE


def test_tree_rows_equal_their_paths(variants):
    """A tree's rows, and the cache after keeping one path, equal plain decoding of the paths."""
    expected, target = (
        Safetensors(variants / "deepseek-v3-groups/expected.safetensors"),
        Target(variants / "deepseek-v3-groups"),
    )
    prompt = expected["prompt"]
    tokens, parents = [5, 9, 7, 5, 100, 3], [-1, 0, 0, 2, 1, 3]
    paths = [[0], [0, 1], [0, 2], [0, 2, 3], [0, 1, 4], [0, 2, 3, 5]]
    visible = np.array([[j in path for j in range(6)] for path in paths])
    assert all(paths[i][:-1] == (paths[p] if p >= 0 else []) for i, p in enumerate(parents))

    def plain(path, then=()):
        cache = target.new_cache()
        return target.forward([*prompt, *(tokens[i] for i in path), *then], cache)[0][-1]

    cache = target.new_cache()
    target.forward(prompt, cache)
    positions = len(prompt) + np.array([len(path) - 1 for path in paths])
    logits, _ = target.forward(tokens, cache, positions, visible)
    for row, path in zip(logits, paths):
        assert np.abs(row - plain(path)).max() <= TOLERANCE
    cache.keep(len(prompt), [0, 2, 3])
    after, _ = target.forward([42], cache)
    assert len(cache) == len(prompt) + 4
    assert np.abs(after[-1] - plain([0, 2, 3], then=[42])).max() <= TOLERANCE
