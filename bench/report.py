"""Writes docs/benchmarks.md from bench/results/<machine>/*.json. No figure in it has another source.

usage: python3 bench/report.py
"""

import json
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench/results"

HEAD = """# Benchmarks

Made by `python3 bench/report.py` from [bench/results](../bench/results); don't edit. Every figure names its machine and the command that gives it again.
A ratio of 1.00 is the floor: the larger of the time to read the bytes that must be read and of the time to do the arithmetic that must be done, at
the speeds which the same run measured for reading and for multiply-adds alone. GPU kernels have tables of their own: [experts](kernels/experts.md),
[the whole MoE layer](kernels/moe.md), [attention](kernels/attention.md), [dense products and the head](kernels/dense.md), [trees](kernels/trees.md).
"""


def table(columns, rows):
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


def decode_section(result):
    floor = result["plain_floor"]
    text = f"### Decoding the demo pair\n\n`{result['command']}`, {result['backend']}, {result['threads']} threads, {result['prompt_ids']} prompt tokens, "
    text += f"{result['tokens']} generated, medians of {result['rounds']} interleaved runs. Commit {result['machine']['commit']}.\n\n"
    text += table(["mode", "tokens/s", "10–90 %", "tokens a pass", "against plain", "first token", "load"],
                  [[m["mode"], f"{m['tokens_per_second']:.0f}", f"{m['p10']:.0f}–{m['p90']:.0f}", f"{m['accepted_length']:.2f}",
                    f"{m['tokens_per_second'] / result['modes'][0]['tokens_per_second']:.2f}×", f"{m['first_token_ms']:.1f} ms",
                    f"{m['load_ms']:.0f} ms"] for m in result["modes"]])
    text += f"\nPlain decoding takes {floor['ms']:.3f} ms a token. It reads {floor['weight_bytes'] / 1e6:.1f} MB of weights: {floor['memory_ms']:.3f} ms; "
    text += f"its arithmetic takes {floor['compute_ms']:.3f} ms: **{floor['over_floor']:.2f}× the floor**.\n\n"
    phases = [p for p in result["modes"][0]["phase_ms_per_pass"] if any(m["phase_ms_per_pass"][p] >= 0.0005 for m in result["modes"])]
    text += "Milliseconds a pass, by phase (prefill's share included):\n\n"
    return text + table(["mode", *phases], [[m["mode"], *(f"{m['phase_ms_per_pass'][p]:.3f}" for p in phases)] for m in result["modes"]])


def ops_section(result):
    text = f"### Verbs\n\n`build/bin/op_bench --json`, {result['backend']}, {result['threads']} threads. Reading: {result['cached_read_gbps']:.1f} GB/s from a working "
    text += f"set of the demo's size, {result['memory_read_gbps']:.1f} GB/s from memory; multiply-adds: {result['fma_gflops']:.0f} GFLOP/s.\n\n"
    return text + table(["verb", "shape", "rows", "µs", "GB/s", "of reading", "GFLOP/s", "of peak", "over floor"],
                        [[p["verb"], p["shape"], str(p["rows"]), f"{p['median_us']:.1f}", f"{p['gbps']:.1f}", f"{100 * p['of_read']:.0f} %",
                          f"{p['gflops']:.1f}", f"{100 * p['of_peak']:.0f} %", f"{p['over_floor']:.2f}"] for p in result["points"]])


SECTIONS = {"decode.json": decode_section, "ops.json": ops_section}


def main():
    text = HEAD
    for machine in sorted(p for p in RESULTS.iterdir() if p.is_dir()):
        known = [name for name in SECTIONS if (machine / name).exists()]
        if not known:
            continue
        about = json.loads((machine / "machine.json").read_text())
        text += f"\n## {about['name']}\n\n{about['description']}\n"
        for name in known:
            text += "\n" + SECTIONS[name](json.loads((machine / name).read_text()) | {"machine": about})
    (ROOT / "docs/benchmarks.md").write_text(text)


if __name__ == "__main__":
    main()
