import numpy as np
import pytest
from reference.ops import Rope, attend, logsumexp, rotate_halves, rotate_pairs, sigmoid, softmax, top_k


def yarn(factor, beta_fast, mscale=1.0):
    return {
        "type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": 4096,
        "beta_fast": beta_fast,
        "beta_slow": 1.0,
        "mscale": mscale,
        "mscale_all_dim": mscale,
    }


# Published configurations, 64 rotary dimensions; frequencies and softmax scales computed independently in double.
KIMI_K26 = {"rope_theta": 50000.0, "rope_scaling": yarn(64.0, 32.0)}
KIMI_K2_THINKING = {"rope_theta": 50000.0, "rope_scaling": yarn(64.0, 1.0)}
KIMI_K2 = {"rope_theta": 50000.0, "rope_scaling": yarn(32.0, 1.0)}
DEEPSEEK_V3 = {"rope_theta": 10000.0, "rope_scaling": yarn(40.0, 32.0)}
DEEPSEEK_V2_LITE = {"rope_theta": 10000.0, "rope_scaling": yarn(40.0, 32.0, 0.707)}
MOONLIGHT = {"rope_theta": 50000.0, "rope_scaling": None}


@pytest.mark.parametrize(
    "config, frequencies",
    [
        (KIMI_K26, {0: 1, 1: 0.71311108, 9: 0.043776656, 14: 0.0044658487, 19: 1.5837499e-4, 20: 1.8070234e-5}),
        (KIMI_K2_THINKING, {9: 0.047688612, 14: 0.0087942868, 19: 1.6217599e-3, 20: 1.8070234e-5, 31: 4.3822065e-7}),
        (KIMI_K2, {14: 0.0087942868, 20: 3.6140468e-5, 31: 8.7644129e-7}),
        (DEEPSEEK_V3, {1: 0.74989421, 14: 0.012447956, 19: 1.3705136e-3, 20: 7.9056942e-4, 31: 3.3338036e-6}),
        (MOONLIGHT, {0: 1, 8: 0.06687403}),
    ],
)
def test_frequencies(config, frequencies):
    inverse = Rope(config, 64).inverse
    for i, value in frequencies.items():
        assert inverse[i] == pytest.approx(value, rel=1e-7)


@pytest.mark.parametrize(
    "config, scale",
    [
        (KIMI_K26, 0.14467963),
        (KIMI_K2_THINKING, 0.14467963),
        (KIMI_K2, 0.13086080),
        (DEEPSEEK_V3, 0.13523378),
        (DEEPSEEK_V2_LITE, 0.11472139),
        (MOONLIGHT, 0.07216878),
    ],
)
def test_softmax_scale(config, scale):
    assert 192**-0.5 * Rope(config, 64).score_factor == pytest.approx(scale, rel=1e-6)


def test_amplitude():
    assert Rope(KIMI_K26, 64).amplitude == 1.0
    assert Rope(KIMI_K26, 64, "legacy").amplitude == pytest.approx(1.41588831, rel=1e-8)
    cos, _ = Rope(KIMI_K26, 64, "legacy").tables([0])
    assert cos[0, 0] == pytest.approx(1.41588831, rel=1e-6)


def test_both_spellings_agree():
    old = Rope(KIMI_K26, 64)
    new = Rope({"rope_parameters": {**yarn(64.0, 32.0), "rope_type": "yarn", "rope_theta": 50000.0}}, 64)
    assert np.array_equal(old.inverse, new.inverse) and old.score_factor == new.score_factor


def test_unknown_rope_is_refused():
    with pytest.raises(ValueError, match="longrope"):
        Rope({"rope_scaling": {"type": "longrope"}}, 64)


def test_rotations_are_complex_products():
    x = np.random.default_rng(0).standard_normal((3, 2, 8)).astype(np.float32)
    cos, sin = Rope(MOONLIGHT, 8).tables([0, 5, 1000])
    turn = (cos + 1j * sin)[:, None]
    pairs = (x[..., 0::2] + 1j * x[..., 1::2]) * turn
    halves = (x[..., :4] + 1j * x[..., 4:]) * turn
    assert np.allclose(rotate_pairs(x, cos, sin), np.stack([pairs.real, pairs.imag], -1).reshape(x.shape), atol=1e-6)
    assert np.allclose(rotate_halves(x, cos, sin), np.concatenate([halves.real, halves.imag], -1), atol=1e-6)


def test_attend_ignores_what_is_not_visible():
    rng = np.random.default_rng(0)
    query, key, value = (rng.standard_normal((4, 2, 3)).astype(np.float32) for _ in range(3))
    visible = np.array([[1, 0, 1, 0]] * 4, bool)
    kept = attend(query, key[[0, 2]], value[[0, 2]], np.ones((4, 2), bool), 0.5)
    assert np.allclose(attend(query, key, value, visible, 0.5), kept, atol=1e-6)


def test_extreme_values_stay_finite():
    x = np.array([-1e4, 0, 1e4], np.float32)
    assert sigmoid(x).tolist() == [0, 0.5, 1] and softmax(x).tolist() == [0, 0, 1] and logsumexp(x) == 1e4


def test_top_k_breaks_ties_by_id():
    ids, values = top_k(np.array([[1, 3, 3, 2, 3]], np.float32), 4)
    assert ids.tolist() == [[1, 2, 4, 3]] and values.tolist() == [[3, 3, 3, 2]]
