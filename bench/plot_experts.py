#!/usr/bin/env python3
"""Draws docs/kernels/experts.svg and prints the tables of docs/kernels/experts.md from bench/results/h200.

usage: plot_experts.py
"""
import json
import math
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench/results/h200"
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 460, 70, 20, 30, 50
ROWS, MICROSECONDS = (1, 1100), (4, 6000)
SERIES = (  # file, column, label, colour, dash
    ("experts-kimi-k2.6.json", "burst_us", "one GPU", "#1f6fb4", ""),
    ("marlin-experts-kimi-k2.6.json", "burst_us", "one GPU, Marlin", "#c0392b", ""),
    ("experts-kimi-k2.6-tp8.json", "burst_us", "one rank of 8", "#2e8b57", ""),
)


def load(name):
    result = json.loads((RESULTS / name).read_text())
    for verb in result.get("verbs", []):  # a run of several verbs
        if verb["verb"] == "experts":
            return result | verb
    return result


def scale(value, bounds, low, high):
    return low + (math.log(value) - math.log(bounds[0])) / (math.log(bounds[1]) - math.log(bounds[0])) * (high - low)


def x_of(rows):
    return scale(rows, ROWS, LEFT, WIDTH - RIGHT)


def y_of(us):
    return scale(us, MICROSECONDS, HEIGHT - BOTTOM, TOP)


def line(points, colour, dash, width):
    path = " ".join(f"{x_of(r):.1f},{y_of(us):.1f}" for r, us in points)
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width}" stroke-dasharray="{dash}"/>'


def text(x, y, content, anchor="middle", colour="#333"):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{content}</text>'


def expert_bytes(result):
    return 3 * result["hidden"] * result["inter"] * 9 / 16


def floor_us(result, point):
    return point["active_experts"] * expert_bytes(result) / result["read_ceiling_gbps"] / 1e3


def draw():
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
           f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>']
    for rows in (1, 2, 4, 9, 17, 33, 64, 128, 256, 512, 1024):
        out += [line([(rows, MICROSECONDS[0]), (rows, MICROSECONDS[1])], "#eee", "", 1),
                text(x_of(rows), HEIGHT - BOTTOM + 18, str(rows))]
    for us in (5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000):
        out += [line([(ROWS[0], us), (ROWS[1], us)], "#eee", "", 1), text(LEFT - 8, y_of(us) + 4, str(us), "end")]
    out += [text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, "rows of the step"),
            text(LEFT, TOP - 12, "µs a layer, burst; dashed: bytes of the active experts at the read ceiling", "start")]
    for name, column, label, colour, dash in SERIES:
        result = load(name)
        points = [(p["rows"], p[column]) for p in result["points"]]
        out += [line(points, colour, dash, 2), text(x_of(points[2][0]) + 6, y_of(points[2][1]) - 8, label, "end", colour)]
        if "Marlin" not in label:
            out.append(line([(p["rows"], floor_us(result, p)) for p in result["points"]], colour, "3 3", 1))
    out.append("</svg>")
    (ROOT / "docs/kernels/experts.svg").write_text("\n".join(out) + "\n")


def print_table(name, peer):
    result = load(name)
    other = {p["rows"]: p for p in load(peer)["points"]} if peer else {}
    rate = lambda p, column: p["active_experts"] * expert_bytes(result) / p[column] / 1e3
    print("| M | active | mode | floor µs | burst µs | GB/s | % | sustained µs | % | TFLOP/s |"
          + (" Marlin GB/s | ours ÷ Marlin |" if peer else ""))
    print("|" + "--:|" * (12 if peer else 10))
    for p in result["points"]:
        row = [p["rows"], f"{p['active_experts']:.1f}", p["mode"], f"{floor_us(result, p):.1f}", f"{p['burst_us']:.1f}",
               f"{p['burst_gbps']:.0f}", f"{100 * p['burst_of_ceiling']:.1f}", f"{p['sustained_us']:.1f}",
               f"{100 * p['sustained_of_ceiling']:.1f}", f"{p['tflops']:.0f}"]
        if peer:
            q = other.get(p["rows"])
            row += [f"{rate(q, 'burst_us'):.0f}", f"{rate(p, 'burst_us') / rate(q, 'burst_us'):.2f}"] if q else ["", ""]
        print("| " + " | ".join(map(str, row)) + " |")


if __name__ == "__main__":
    draw()
    print_table("experts-kimi-k2.6.json", "marlin-experts-kimi-k2.6.json")
    print()
    print_table("experts-kimi-k2.6-tp8.json", None)
