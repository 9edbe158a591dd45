#!/usr/bin/env python3
"""Checks that includes follow the dependency order and that third-party headers stay in their own files.

usage: check_includes.py [ROOT]     prints FILE:LINE: finding, exits 1 if there is one.
"""
import re
import sys
from fnmatch import fnmatch
from pathlib import Path

# What each folder of src/ may include besides itself. The link lines of src/CMakeLists.txt say the same to the linker.
MAY_INCLUDE = {
    "base": set(),
    "tensor": {"base"},
    "spec": {"base", "tensor"},
    "checkpoint": {"base", "tensor", "spec"},
    "text": {"base"},
    "backend": {"base", "tensor", "spec", "checkpoint"},
    "model": {"base", "tensor", "spec", "checkpoint", "backend"},
    "engine": {"base", "tensor", "spec", "checkpoint", "backend", "model"},
    "server": {"base", "tensor", "spec", "checkpoint", "backend", "model", "engine", "text"},
    "cli": {"base", "tensor", "spec", "checkpoint", "backend", "model", "engine", "text", "server"},
}

# backend/<leaf>/ is known to nobody but the registry, which names its factory, and to the tests and benches.
LEAVES = ("ref", "cpu", "cuda")
REGISTRY = "src/backend/registry.cc"

# Header prefix -> the only files that may include it. The first matching prefix decides.
THIRD_PARTY = [
    ("boost/json", ["src/base/json.h", "src/base/json.cc"]),
    ("boost/beast", ["src/server/http*"]),
    ("boost/asio", ["src/server/http*"]),
    ("boost/math/", ["tests/*"]),
    ("boost/", []),
    ("oniguruma", ["src/text/splitter.cc"]),
    ("CLI/", ["src/cli/*", "bench/*"]),
    ("fmt/", ["*.cc"]),
    ("cuda", ["src/backend/cuda/*", "tests/gpu/*", "bench/*"]),
    ("nccl", ["src/backend/cuda/*"]),
    ("gtest/", ["tests/*"]),
    ("gmock/", ["tests/*"]),
    ("rapidcheck", ["tests/*"]),
    ("benchmark/", ["bench/*"]),
]

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


def leaf_of(path):
    """'backend/cpu/x.h' -> 'cpu'; None for a path outside the backend leaves."""
    parts = path.split("/")
    return parts[1] if len(parts) > 2 and parts[0] == "backend" and parts[1] in LEAVES else None


def check_project_include(root, path, target):
    """path: the including file, from the root; target: what stands between the quotes."""
    top, own = path.split("/")[:2]
    places = ["src"] if top == "src" else ["src", "tests", "bench", str(Path(path).parent)]
    if not any((root / place / target).is_file() for place in places):
        return f'"{target}" is not a file of src/ (a project include is "folder/file.h")'
    if top != "src":
        return None
    folder, leaf = target.split("/")[0], leaf_of(target)
    if folder != own and folder not in MAY_INCLUDE.get(own, set()):
        return f"{own} may not depend on {folder}"
    if leaf and leaf != leaf_of(path.removeprefix("src/")) and path != REGISTRY:
        return f"backend/{leaf} is a leaf: only {REGISTRY} may name it"
    return None


def check_system_include(path, target):
    for prefix, allowed in THIRD_PARTY:
        if target.startswith(prefix):
            if not any(fnmatch(path, pattern) for pattern in allowed):
                return f"<{target}> belongs in {' or '.join(allowed) if allowed else 'no file of this project'}"
            return None
    return None


def check(root):
    root = Path(root)
    for folder in sorted(p.name for p in (root / "src").glob("*/") if p.is_dir()):
        if folder not in MAY_INCLUDE:
            yield f"src/{folder}: a folder without a place in the dependency order of tools/check_includes.py"
    for top in ("src", "tests", "bench"):
        for file in sorted((root / top).rglob("*")):
            if file.suffix not in (".h", ".cc", ".cu", ".cuh"):
                continue
            path = file.relative_to(root).as_posix()
            for number, line in enumerate(file.read_text(encoding="utf-8").split("\n"), 1):
                if not (match := INCLUDE.match(line)):
                    continue
                quoted = match[1] == '"'
                finding = check_project_include(root, path, match[2]) if quoted else check_system_include(path, match[2])
                if finding:
                    yield f"{path}:{number}: {finding}"


if __name__ == "__main__":
    findings = list(check(sys.argv[1] if len(sys.argv) > 1 else "."))
    print("\n".join(findings), end="\n" if findings else "")
    sys.exit(bool(findings))
