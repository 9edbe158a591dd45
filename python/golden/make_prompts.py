"""Writes tests/golden/prompts.jsonl: the golden prompts, in order, as a prompt file for `ddtree verify`."""

import json
import pathlib

from reference.checkpoint import Safetensors

GOLDEN = pathlib.Path(__file__).resolve().parents[2] / "tests/golden"


def main():
    golden = Safetensors(GOLDEN / "golden.safetensors")
    count = len(json.loads((GOLDEN / "golden.json").read_text())["prompts"])
    lines = [{"genre": "code", "ids": golden[f"p{i}.prompt"].tolist()} for i in range(count)]
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    (GOLDEN / "prompts.jsonl").write_text(text)


if __name__ == "__main__":
    main()
