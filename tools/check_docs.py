#!/usr/bin/env python3
"""Checks that relative links in the documents resolve, and that no file names a path of the machine it was written on.

usage: check_docs.py [ROOT]     prints FILE:LINE: finding, exits 1 if there is one.
"""
import re
import sys
from pathlib import Path

LINK = re.compile(r"\]\(([^)\s]+)(?:\s+\"[^\"]*\")?\)")
CODE_SPAN = re.compile(r"`[^`]*`")
TEXT = {".md", ".h", ".cc", ".cu", ".cuh", ".py", ".txt", ".cmake", ".sh", ""}
SKIPPED = {"corpus", "__pycache__"}
SHARED_FOLDERS = {"/", "/tmp", "/opt", "/usr", "/usr/src", "/home", "/srv", "/var", "/mnt"}  # say nothing of one machine


def machine_paths(root):
    """Anything below the checkout, below the folder that it stands in, or in somebody's home."""
    places = {str(p) for p in (root, root.parent) if str(p) not in SHARED_FOLDERS}
    return re.compile(r"(?<![\w./])/(?:" + "|".join([re.escape(p[1:]) for p in sorted(places)] + [r"home/\w+", "root"]) + r")/\w[\w./]*")


def files(root):
    for path in sorted(root.rglob("*")):
        parts = path.relative_to(root).parts
        if path.is_file() and path.suffix in TEXT and parts[0] not in (".git", "build") and not SKIPPED & set(parts):
            yield path, path.relative_to(root).as_posix()


def link_findings(root, path, line):
    for target in LINK.findall(CODE_SPAN.sub("", line)):
        file = target.split("#")[0]
        if re.match(r"[a-z]+:", target) or not file:
            continue
        place = (path.parent / file).resolve()
        if not place.is_relative_to(root):
            yield f"link out of the project: {target}"
        elif not place.exists():
            yield f"link to a missing file: {target}"


def check(root):
    root = Path(root).resolve()
    machine = machine_paths(root)
    for path, name in files(root):
        fenced = False
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").split("\n"), 1):
            fenced ^= line.lstrip().startswith("```")
            if found := machine.search(line):
                yield f"{name}:{number}: a path of one machine: {found[0]}"
            if name.endswith(".md") and not fenced:
                for finding in link_findings(root, path, line):
                    yield f"{name}:{number}: {finding}"


if __name__ == "__main__":
    findings = list(check(sys.argv[1] if len(sys.argv) > 1 else "."))
    print("\n".join(findings), end="\n" if findings else "")
    sys.exit(bool(findings))
