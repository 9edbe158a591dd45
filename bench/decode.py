"""Times decoding of the demo pair on the CPU and compares plain decoding with its floors.

usage: python3 bench/decode.py BUILD_DIR OUTPUT_DIR

The modes take turns, so that what else the machine does hits all of them; medians and the spread (10th to 90th percentile) are kept. The
floors are those of the roofs that op_bench measured just before: the bytes of weights that a token's pass reads at the speed of reading
a working set of that size, and its multiply-adds at the speed of doing them from registers.
"""

import json
import pathlib
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
PROMPT = "4076,343,66,1291,977,101,113,1919,1950,355,307,455,3009,71"  # golden prompt 3
TOKENS = 256
ROUNDS = 7
MODES = {"off": ["--spec", "off"], "chain:15": ["--spec", "chain", "--budget", "15"]}
MODES |= {f"tree:{b}": ["--spec", "tree", "--budget", str(b)] for b in (8, 16, 64)}
MODES |= {"auto:16": ["--spec", "auto", "--budget", "16"]}


def run(program, flags):
    command = [program, "run", "models/demo", "--ids", PROMPT, "--ignore-eos", "--max-tokens", str(TOKENS), "--json", *flags]
    return json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout)


def multiply_adds(config, context):
    """Of one token's pass at a context of so many tokens."""
    hidden, heads, layers = config["hidden_size"], config["num_attention_heads"], config["num_hidden_layers"]
    nope, rope, v, rank = (config[k] for k in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "kv_lora_rank"))
    attention = hidden * (config["q_lora_rank"] + rank + rope) + config["q_lora_rank"] * heads * (nope + rope)
    attention += heads * (nope + v) * rank + heads * v * hidden + heads * context * (2 * rank + rope)
    dense = config["first_k_dense_replace"]
    experts = config["num_experts_per_tok"] + config["n_shared_experts"]
    moe = hidden * config["n_routed_experts"] + 3 * experts * hidden * config["moe_intermediate_size"]
    return layers * attention + dense * 3 * hidden * config["intermediate_size"] + (layers - dense) * moe + hidden * config["vocab_size"]


def percentile(values, share):
    return sorted(values)[round(share * (len(values) - 1))]


def main(build, output):
    program = str(ROOT / build / "bin/ddtree")
    ops = json.loads((pathlib.Path(output) / "ops.json").read_text())
    config = json.loads((ROOT / "models/demo/target/config.json").read_text())
    runs = {mode: [] for mode in MODES}
    for _ in range(ROUNDS):
        for mode, flags in MODES.items():
            runs[mode].append(run(program, flags))
    rows = []
    for mode, results in runs.items():
        speeds = [r["stats"]["tokens_per_second"] for r in results]
        stats = results[0]["stats"]
        rows.append({
            "mode": mode, "tokens_per_second": statistics.median(speeds), "p10": percentile(speeds, 0.1), "p90": percentile(speeds, 0.9),
            "accepted_length": stats["accepted_length"],
            "first_token_ms": 1e3 * statistics.median(r["stats"]["first_token_seconds"] for r in results),
            "load_ms": 1e3 * statistics.median(r["stats"]["load_seconds"] for r in results),
            "phase_ms_per_pass": {phase: statistics.median(r["stats"]["phase_ms"][phase] for r in results) / max(1, stats["steps"])
                                  for phase in stats["phase_ms"]},
        })
    plain = runs["off"][0]
    passes = len(plain["ids"])  # prefill's pass reads about what another does
    bytes_per_token = plain["stats"]["weight_bytes"] / passes
    context = len(plain["prompt_ids"]) + TOKENS // 2
    memory_ms = bytes_per_token / ops["cached_read_gbps"] / 1e6
    compute_ms = 2 * multiply_adds(config, context) / ops["fma_gflops"] / 1e6
    result = {
        "command": "./dev bench", "prompt_ids": len(plain["prompt_ids"]), "tokens": TOKENS, "rounds": ROUNDS, "threads": ops["threads"],
        "backend": ops["backend"], "modes": rows,
        "plain_floor": {"weight_bytes": bytes_per_token, "memory_ms": memory_ms, "compute_ms": compute_ms,
                        "ms": 1e3 / rows[0]["tokens_per_second"],
                        "over_floor": 1e3 / rows[0]["tokens_per_second"] / max(memory_ms, compute_ms)},
    }
    (pathlib.Path(output) / "decode.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
