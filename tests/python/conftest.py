"""Tests of the NumPy reference: `python3 -m pytest tests/python` (NumPy and pytest only).

--all-goldens compares every prompt, round and evaluation run (about 15 minutes on one core) instead of a sample.
"""

import json
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))

from reference.checkpoint import Safetensors
from reference.drafter import Drafter
from reference.target import Target


def pytest_addoption(parser):
    parser.addoption("--all-goldens", action="store_true", help="compare every golden run, not a sample")


def pytest_generate_tests(metafunc):
    """Golden prompts 2, 3 and 7 and one evaluation prompt stand for all, unless --all-goldens is given."""
    everything = metafunc.config.getoption("all_goldens")
    if "golden_prompt" in metafunc.fixturenames:
        metafunc.parametrize("golden_prompt", range(12) if everything else (2, 3, 7))
    if "evaluation_prompt" in metafunc.fixturenames:
        metafunc.parametrize("evaluation_prompt", range(32) if everything else (4,))


@pytest.fixture(scope="session")
def golden():
    return Safetensors(ROOT / "tests/golden/golden.safetensors")


@pytest.fixture(scope="session")
def evaluation():
    return json.loads((ROOT / "tests/golden/eval.json").read_text())


@pytest.fixture(scope="session")
def target():
    return Target(ROOT / "models/demo/target")


@pytest.fixture(scope="session")
def drafter(target):
    return Drafter(ROOT / "models/demo/drafter", target)


@pytest.fixture(scope="session")
def variants():
    return ROOT / "tests/golden/variants"
