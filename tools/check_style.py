#!/usr/bin/env python3
"""Checks what clang-format cannot: line caps, function length, conditional compilation, leftover marks, white space.

usage: check_style.py [ROOT]     prints FILE:LINE: finding, exits 1 if there is one.
"""
import re
import sys
from pathlib import Path

FOLDERS = ("src", "tests", "bench", "tools", "python", "docs", "models", ".ci")
TOP_FILES = ("dev", "CMakeLists.txt", "README.md", "CONTRIBUTING.md", "SECURITY.md")
SUFFIXES = {".h", ".cc", ".cu", ".cuh", ".py", ".txt", ".cmake", ".md", ".sh", ""}
LINE_CAPS = {".h": 200, ".cc": 600, ".cu": 900, ".cuh": 900}
FUNCTION_CAP = 80
FORWARD_CAP = 250  # the forward pass of a model is one straight list of verbs: src/model/ only
MARKS = re.compile(r"\b(" + "|".join(("TO" "DO", "FIX" "ME", "XX" "X", "HA" "CK")) + r")\b")

# Files that may compile conditionally, and why. A variant for an instruction set or a GPU is a file of its own instead.
CONDITIONAL_FILES = {
    "src/backend/cuda/wgmma.cuh": "a file is compiled for several GPUs, and only sm_90a has these instructions",
}

LITERAL = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"(?P<tag>[^\s()\\]{0,16})\(.*?\)(?P=tag)"|"(?:\\.|[^"\\\n])*"'
    r"|(?<![0-9A-Fa-f])'(?:\\.|[^'\\\n])*'", re.S)
DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.M)
SCOPE = re.compile(r'^(?:(?:static|inline|constexpr|typedef|export)\s+)*'
                   r'(?:(?:namespace|class|struct|union|enum)\b|extern\s*""\s*$)')


def blank(text):
    """Same number of lines, nothing on them."""
    return "\n" * text.count("\n")


def strip_code(text):
    """C++ without comments, string contents and preprocessor lines, on the same line numbers."""
    text = LITERAL.sub(lambda m: ('""' if '"' in m[0] and m[0][0] != "/" else "") + blank(m[0]), text)
    return DIRECTIVE.sub(lambda m: blank(m[0]), text)


def drop_template(header):
    """`template <…>` names types with `class`, which must not look like a class definition."""
    while match := re.match(r"\s*template\s*<", header):
        depth, end = 1, match.end()
        while depth and end < len(header):
            depth += {"<": 1, ">": -1}.get(header[end], 0)
            end += 1
        header = header[end:]
    return header.strip()


def functions(text):
    """Yields (header, first line, last line) of each outermost function body, found by counting braces."""
    code = strip_code(text)
    header, header_line, line, depth = "", 0, 1, 0  # depth counts braces inside the current body only
    body_is_function = False
    for i, c in enumerate(code):
        if c == "\n":
            line += 1
        if depth == 0:
            if c == "{":
                head = drop_template(header)
                if SCOPE.match(head):
                    header = ""
                else:
                    depth, body_is_function = 1, "(" in head and not head.endswith(("=", ","))
            elif c in ";}" or (c == ":" and re.match(r"\s*(public|private|protected)$", header)):
                header = ""
            else:
                if not header.strip():
                    header_line = line
                header += c
        elif c == "{":
            depth += 1
        elif c == "}":
            depth -= 1
            if depth == 0:
                following = code[i + 1:].lstrip()[:1]
                if following in (",", "{", ")"):  # a braced initialiser: `Foo() : a_{1}, b_{2} {`
                    continue
                if body_is_function:
                    yield drop_template(header), header_line, line
                header = ""


def check_cpp(path, text, lines):
    cap = LINE_CAPS[Path(path).suffix]
    if len(lines) > cap:
        yield cap + 1, f"{len(lines)} lines, the cap of a {Path(path).suffix} file is {cap}"
    if path.endswith((".h", ".cuh")):
        code = [s for s in LITERAL.sub(lambda m: blank(m[0]), text).split("\n") if s.strip()]
        if not code or code[0].strip() != "#pragma once":
            yield 1, "a header begins with #pragma once"
    if path not in CONDITIONAL_FILES:
        for number, content in enumerate(lines, 1):
            if re.match(r"\s*#\s*(if|ifdef|ifndef|elif)\b", content):
                yield number, "conditional compilation: make the variant a file of its own"
    for head, first, last in functions(text):
        forward = path.startswith("src/model/") and re.search(r"forward\w*\s*\(", head)
        cap = FORWARD_CAP if forward else FUNCTION_CAP
        if last - first + 1 > cap:
            yield first, f"function of {last - first + 1} lines, the cap is {cap}: {' '.join(head.split())[:60]}"


def check_file(path, text):
    lines = text.removesuffix("\n").split("\n")
    for number, content in enumerate(lines, 1):
        if content != content.rstrip():
            yield number, "trailing white space"
        if not path.endswith(".md") and (mark := MARKS.search(content)):
            yield number, f"{mark[0]}: finish it, or say in a sentence what is not supported"
    if text and not text.endswith("\n"):
        yield len(lines), "no newline at the end of the file"
    if Path(path).suffix in LINE_CAPS:
        yield from check_cpp(path, text, lines)


def source_files(root):
    for name in TOP_FILES:
        if (root / name).is_file():
            yield root / name
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            skipped = {"corpus", "__pycache__"} & set(path.relative_to(root).parts)
            if path.is_file() and path.suffix in SUFFIXES and not skipped:
                yield path


def check(root):
    root = Path(root)
    for path in source_files(root):
        name = path.relative_to(root).as_posix()
        for number, finding in check_file(name, path.read_text(encoding="utf-8")):
            yield f"{name}:{number}: {finding}"


if __name__ == "__main__":
    findings = list(check(sys.argv[1] if len(sys.argv) > 1 else "."))
    print("\n".join(findings), end="\n" if findings else "")
    sys.exit(bool(findings))
