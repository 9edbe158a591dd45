import json

import numpy as np
import pytest
from reference.checkpoint import Safetensors
from reference.drafter import Drafter
from reference.ops import logsumexp, top_k
from reference.target import Target


def replay(drafter, expected, setting):
    start = 0
    for r, count in enumerate(expected["observed"]):
        drafter.observe(expected["taps"][start : start + count])
        start += count
        logits = drafter.propose(expected["tokens"][start])
        ids, values = top_k(logits, expected[setting + ".top_id"].shape[-1])
        assert np.array_equal(ids, expected[setting + ".top_id"][r])
        assert np.abs(values - expected[setting + ".top_val"][r]).max() <= 1e-4
        assert np.abs(logsumexp(logits) - expected[setting + ".lse"][r]).max() <= 1e-4


@pytest.mark.parametrize("setting", ["ratio", "legacy", "bidirectional"])
def test_variant(variants, tmp_path, setting):
    directory = variants / "deepseek-v3-groups/drafter"
    expected, target = Safetensors(directory / "expected.safetensors"), Target(variants / "deepseek-v3-groups")
    if setting == "bidirectional":
        config = json.loads((directory / "config.json").read_text())
        (tmp_path / "config.json").write_text(json.dumps({**config, "is_causal": False}))
        (tmp_path / "model.safetensors").write_bytes((directory / "model.safetensors").read_bytes())
        directory = tmp_path
    replay(Drafter(directory, target, "legacy" if setting == "legacy" else "ratio"), expected, setting)


def test_visibility():
    def rows(**kw):
        return ["".join(".x"[int(v)] for v in row) for row in Drafter._visible(np.arange(4, 7), **kw)]

    assert rows(window=None, causal=False) == ["xxxxxxx"] * 3
    assert rows(window=3, causal=True) == ["..xxx..", "...xxx.", "....xxx"]
    assert rows(window=3, causal=False) == ["..xxxxx", "...xxxx", "....xxx"]


def test_observing_in_pieces_changes_nothing(variants):
    directory = variants / "deepseek-v3-groups/drafter"
    expected = Safetensors(directory / "expected.safetensors")
    drafter = Drafter(directory, Target(variants / "deepseek-v3-groups"))
    drafter.observe(expected["taps"])
    whole = drafter.propose(expected["tokens"][-1])
    drafter.forget()
    for row in expected["taps"]:
        drafter.observe(row[None])
    assert np.abs(drafter.propose(expected["tokens"][-1]) - whole).max() <= 1e-4
