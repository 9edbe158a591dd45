#!/usr/bin/env python3
"""Draft trees as Python servers build them, timed: candidates from the GPU to the host, one heapq search a stream,
links and visibility compiled, arrays back to the GPU.

usage: trees_heapq.py [--json FILE]              measures (needs PyTorch and a GPU)
       trees_heapq.py --table OURS.json [FILE]   prints the table of docs/kernels/trees.md from results of op_bench
                                                 and of this script
"""
import argparse
import heapq
import json
import statistics
import time

STREAMS = (1, 4, 10, 16)
BUDGETS = (8, 16, 32, 64, 128, 255)
SLOTS = (7, 15)
RANKS = 64


def build(log_prob, ids, root, budget):
    """Best-first search over rank paths; log_prob and ids are lists [slots][k]."""
    slots, k = len(log_prob), min(budget, len(log_prob[0]))
    tokens, parents, depths, children = [root], [-1], [0], [{}]
    first = log_prob[0][0]
    heap = [(-first, (0,), 0, 1, 0, first)]
    while heap and len(tokens) <= budget:
        _, ranks, parent, depth, rank, score = heapq.heappop(heap)
        node = len(tokens)
        token = ids[depth - 1][rank]
        tokens.append(token)
        parents.append(parent)
        depths.append(depth)
        children.append({})
        children[parent][token] = node
        if rank + 1 < k:
            score_next = score - log_prob[depth - 1][rank] + log_prob[depth - 1][rank + 1]
            heapq.heappush(heap, (-score_next, ranks[:-1] + (rank + 1,), parent, depth, rank + 1, score_next))
        if depth < slots:
            score_next = score + log_prob[depth][0]
            heapq.heappush(heap, (-score_next, ranks + (0,), node, depth + 1, 0, score_next))
    return tokens, parents, depths, children


def compile_links(parents, children, rows, numpy):
    """First child and next sibling of every row, and who sees whom, padded to a fixed number of rows."""
    first_child = numpy.full(rows, -1, numpy.int64)
    next_sibling = numpy.full(rows, -1, numpy.int64)
    visible = numpy.zeros((rows, rows), bool)
    for node, mapped in enumerate(children):
        previous = -1
        for child in sorted(mapped.values()):
            if previous < 0:
                first_child[node] = child
            else:
                next_sibling[previous] = child
            previous = child
    visible[0, 0] = True
    for node in range(1, len(parents)):
        visible[node] = visible[parents[node]]
        visible[node, node] = True
    return first_child, next_sibling, visible


def candidates(torch, streams, slots, seed):
    """Log-probabilities like those of op_bench: sure at first, less so with every slot."""
    generator = torch.Generator().manual_seed(seed)
    rank = torch.arange(1, RANKS).double()
    top = 0.95 * 0.93 ** torch.arange(slots).double() * (0.6 + 0.6 * torch.rand(streams, slots, generator=generator))
    top = top.clamp(max=0.97)
    noise = 0.5 + torch.rand(streams, slots, RANKS - 1, generator=generator).double()
    rest = (1 - top)[..., None] * 0.5 * noise / rank**1.3
    p = torch.cat([top[..., None], rest], -1).sort(-1, descending=True).values
    ids = torch.arange(RANKS).expand(streams, slots, RANKS) * 2000
    return p.log().float().cuda(), ids.contiguous().cuda()


def step(torch, numpy, log_prob, ids, budget):
    """One step's trees for all streams; returns what the device got."""
    scores, tokens = log_prob.cpu().tolist(), ids.cpu().tolist()
    rows = budget + 1
    out = []
    for stream_scores, stream_ids in zip(scores, tokens):
        nodes, parents, depths, children = build(stream_scores, stream_ids, 7, budget)
        first_child, next_sibling, visible = compile_links(parents, children, rows, numpy)
        padding = [0] * (rows - len(nodes))
        out.append((nodes + padding, depths + padding, first_child, next_sibling, visible))
    arrays = [numpy.asarray([stream[i] for stream in out]) for i in range(5)]
    return [torch.from_numpy(array).to(log_prob.device) for array in arrays]


def measure():
    import numpy
    import torch

    points = []
    for slots in SLOTS:
        for streams in STREAMS:
            inputs = [candidates(torch, streams, slots, seed) for seed in range(4)]
            for budget in BUDGETS:
                times = []
                for round_ in range(12):
                    log_prob, ids = inputs[round_ % len(inputs)]
                    torch.cuda.synchronize()
                    begin = time.perf_counter()
                    step(torch, numpy, log_prob, ids, budget)
                    torch.cuda.synchronize()
                    times.append((time.perf_counter() - begin) * 1e6)
                points.append({"slots": slots, "streams": streams, "budget": budget,
                               "heapq_us": statistics.median(times[2:])})
                print(slots, streams, budget, round(points[-1]["heapq_us"], 1), flush=True)
    return {"device": torch.cuda.get_device_name(), "points": points}


def table(ours, heapq_file):
    with open(ours, encoding="utf-8") as file:
        verbs = json.load(file)["verbs"]
    points = next(verb["points"] for verb in verbs if verb["verb"] == "trees")
    python = {}
    if heapq_file:
        with open(heapq_file, encoding="utf-8") as file:
            python = {(p["slots"], p["streams"], p["budget"]): p["heapq_us"] for p in json.load(file)["points"]}
    print("| slots | streams | budget | build µs | lay out µs | walk µs | copy KV µs | host µs | round trip µs "
          "| Python µs | Python ÷ GPU |")
    print("|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|")
    for p in points:
        other = python.get((p["slots"], p["streams"], p["budget"]))
        last = f"{other:.0f} | {other / (p['build_us'] + p['lay_out_us']):.0f}" if other else " | "
        print(f"| {p['slots']} | {p['streams']} | {p['budget']} | {p['build_us']:.1f} | {p['lay_out_us']:.1f} "
              f"| {p['walk_us']:.1f} | {p['copy_rows_us']:.1f} | {p['host_us']:.0f} | {p['host_round_trip_us']:.0f} "
              f"| {last} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="file for the measurements")
    parser.add_argument("--table", nargs="+", metavar="FILE")
    options = parser.parse_args()
    if options.table:
        table(options.table[0], options.table[1] if len(options.table) > 1 else None)
        return
    results = measure()
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(results, file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    main()
