"""Describes this machine and prints the name of its folder below bench/results, writing machine.json there.

usage: python3 bench/machine.py
"""

import json
import os
import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[1]


def field(name):
    match = re.search(rf"^{name}\s*: (.*)$", pathlib.Path("/proc/cpuinfo").read_text(), re.M)
    return match[1] if match else "unknown"


def main():
    cores = len(os.sched_getaffinity(0))
    cpu = field("model name")
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    changed = subprocess.run(["git", "status", "--porcelain", "-uno", "src"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    name = f"{cpu}, {cores} cores"
    description = f"Family {field('cpu family')} model {field('model')}, {field('cpu MHz')} MHz as the kernel says, {field('cache size')} of L2."
    folder = ROOT / "bench/results" / re.sub(r"[^a-z0-9]+", "-", f"cpu {cpu} {cores}".lower()).strip("-")
    folder.mkdir(parents=True, exist_ok=True)
    about = {"name": name, "description": description, "commit": commit + (" with changes" if changed else "")}
    (folder / "machine.json").write_text(json.dumps(about, indent=1) + "\n")
    print(folder)


if __name__ == "__main__":
    main()
