"""Writes tests/text/fixtures: what other people's tokenizers answer to many strings.

    python3 -m golden.make_tokenizer_fixtures              (from python/; Python 3.11, pip install tiktoken==0.14.0 regex)
    python3 -m golden.make_tokenizer_fixtures --o200k FILE (also cuts the small vocabulary out of o200k_base again)

Oracles: PyPI tiktoken for ids, PyPI regex for pieces, Python's own decoder for broken UTF-8. The long-text cut of Kimi's
tokenizer is restated below. Characters come from Unicode 14.0, the version of Python 3.11, where later versions agree:
newer characters may be classified differently by each library.

o200k_base is OpenAI's (MIT licence); the wheel of litellm carries it as litellm_core_utils/tokenizers/fb374d41….

cases.bin      count, then cases. Case: parts (count, then repeat + string each), a hash per vocabulary. The string is the
               parts, each repeated; the hash is over encode's ids, -1, encode_with_special's ids. In the first
               LISTED_CASES, each hash is followed by both lists of ids.
codepoints.bin count, then ranges: first code point, length, hash over the piece ends of the probe of each code point.
utf8.bin       count, then pairs: bytes, and what Python's errors="replace" makes of them; then the hash over the results for
               all strings of 1 to 4 bytes from UTF8_BYTES.
Numbers are LEB128 varints, strings have their length before them, hashes are 8 bytes (FNV-1a over little-endian int32).
"""
import argparse
import hashlib
import itertools
import json
import pathlib
import random
import struct
import unicodedata

import regex
import tiktoken
from tiktoken.load import load_tiktoken_bpe

from golden import tokenizer_strings as strings

ROOT = pathlib.Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "tests/text/fixtures"
DEMO = ROOT / "models/demo/target"
SMALL = FIXTURES / "o200k-16k"
O200K_SHA256 = "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"
SMALL_RANKS = 16000
RESERVED = 256

SEED = 20260
RANDOM_CASES = 10000
LISTED_CASES = 300
UTF8_CASES = 1500
UTF8_BYTES = bytes.fromhex("00417f808f909fa0bfc0c1c2dfe0e1edeff0f1f4f5ff")

UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
SUFFIX = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
PATTERN = "|".join([r"[\p{Han}]+", rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{SUFFIX}",
                    rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{SUFFIX}", r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n]*",
                    r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])

# Names as Kimi places them after its ranks, the gaps too; those of thinking and tools are not special.
KIMI_NAMES = {
    0: "[BOS]", 1: "[EOS]", 2: "<|im_end|>", 3: "<|im_user|>", 4: "<|im_assistant|>", 6: "<|start_header_id|>",
    7: "<|end_header_id|>", 9: "[EOT]", 10: "<|im_system|>", 11: "<|tool_calls_section_begin|>",
    12: "<|tool_calls_section_end|>", 13: "<|tool_call_begin|>", 14: "<|tool_call_argument_begin|>",
    15: "<|tool_call_end|>", 17: "<|im_middle|>", 18: "<|media_begin|>", 19: "<|media_content|>", 20: "<|media_end|>",
    21: "<|media_pad|>", 22: "<think>", 23: "</think>", 254: "[UNK]", 255: "[PAD]"}
NOT_SPECIAL = {11, 12, 13, 14, 15, 22, 23}


def varint(n):
    out = bytearray()
    while n >= 128:
        out.append(n & 127 | 128)
        n >>= 7
    return bytes(out + bytes([n]))


def with_length(data):
    return varint(len(data)) + data


def fnv(values):
    h = 0xcbf29ce484222325
    for byte in struct.pack(f"<{len(values)}i", *values):
        h = (h ^ byte) * 0x100000001b3 & 0xffffffffffffffff
    return struct.pack("<Q", h)


def write_small_vocabulary(path):
    """The first ranks of o200k_base: a real merge order, and bytes in GPT-2's order, as in Kimi's vocabulary."""
    data = pathlib.Path(path).read_bytes()
    if hashlib.sha256(data).hexdigest() != O200K_SHA256:
        raise SystemExit(f"{path} is not o200k_base")
    SMALL.mkdir(parents=True, exist_ok=True)
    (SMALL / "tiktoken.model").write_bytes(b"\n".join(data.split(b"\n")[:SMALL_RANKS]) + b"\n")
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    config = {"added_tokens_decoder": {str(SMALL_RANKS + i): {"content": name, **flags, "special": i not in NOT_SPECIAL}
                                       for i, name in KIMI_NAMES.items()},
              "bos_token": "[BOS]", "eos_token": {"content": "[EOS]", **flags, "special": True},
              "tokenizer_class": "TikTokenTokenizer"}
    (SMALL / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")
    (SMALL / "config.json").write_text(json.dumps({"text_config": {"vocab_size": SMALL_RANKS + RESERVED}}) + "\n")


def reference(directory):
    """tiktoken as Kimi's tokenizer sets it up: unnamed ids of the reserved range get a name."""
    ranks = load_tiktoken_bpe(str(directory / "tiktoken.model"))
    added = json.loads((directory / "tokenizer_config.json").read_text())["added_tokens_decoder"]
    config = json.loads((directory / "config.json").read_text())
    last = config.get("text_config", config)["vocab_size"]
    names = {added.get(str(i), {}).get("content", f"<|reserved_token_{i}|>"): i for i in range(len(ranks), last)}
    return tiktoken.Encoding(directory.name, pat_str=PATTERN, mergeable_ranks=ranks, special_tokens=names)


def cut(text, chunk=400_000, run=25_000):
    """Every `chunk` characters, and inside it before each character that makes a run of one kind longer than `run`."""
    for start in range(0, len(text), chunk):
        part, begin = text[start:start + chunk], 0
        for _, group in itertools.groupby(enumerate(part), lambda item: item[1].isspace()):
            positions = [i for i, _ in group]
            for i in positions[run::run]:
                yield part[begin:i]
                begin = i
        yield part[begin:]


def encode(encoding, text):
    plain, special = [], []
    for piece in cut(text):
        plain += encoding.encode(piece, disallowed_special=())
        special += encoding.encode(piece, allowed_special="all")
    return plain, special


def write_cases(encodings, rng):
    names = sorted(set().union(*(e.special_tokens_set for e in encodings)))
    cases = [[(1, text)] for text in strings.EDGES]
    cases += [[(1, strings.random_string(rng, names))] for _ in range(RANDOM_CASES)]
    cases += strings.long_texts()
    out = bytearray(varint(len(cases)))
    for index, parts in enumerate(cases):
        out += varint(len(parts))
        for repeat, text in parts:
            out += varint(repeat) + with_length(text.encode())
        for encoding in encodings:
            plain, special = encode(encoding, "".join(text * repeat for repeat, text in parts))
            out += fnv(plain + [-1] + special)
            if index < LISTED_CASES:
                for ids in (plain, special):
                    out += varint(len(ids)) + b"".join(map(varint, ids))
    (FIXTURES / "cases.bin").write_bytes(out)


def probe(c):
    return f"x{c}{c}B1{c} {c}'s\n{c} {c}中{c}"


def write_codepoints():
    pattern = regex.compile(PATTERN, regex.V1)
    points = sorted(map(ord, strings.STABLE))
    ranges = []
    for point in points:
        if ranges and ranges[-1][-1] == point - 1 and len(ranges[-1]) < 256:
            ranges[-1].append(point)
        else:
            ranges.append([point])
    out = bytearray(varint(len(ranges)))
    for points in ranges:
        ends = [len(probe(chr(p))[:m.end()].encode()) for p in points for m in pattern.finditer(probe(chr(p)))]
        out += varint(points[0]) + varint(len(points)) + fnv(ends)
    (FIXTURES / "codepoints.bin").write_bytes(out)


def write_utf8(rng):
    out = bytearray(varint(UTF8_CASES))
    for _ in range(UTF8_CASES):
        data = bytearray("".join(rng.choice("aé中🎉\u0301") for _ in range(rng.randint(0, 5))).encode())
        for _ in range(rng.randint(0, 4)):
            at = rng.randint(0, len(data))
            data[at:at + rng.randint(0, 2)] = bytes(rng.choices(UTF8_BYTES, k=rng.randint(0, 2)))
        out += with_length(bytes(data)) + with_length(bytes(data).decode(errors="replace").encode())
    results = []
    for length in range(1, 5):
        for data in itertools.product(UTF8_BYTES, repeat=length):
            results.append([*bytes(data).decode(errors="replace").encode(), -1])
    (FIXTURES / "utf8.bin").write_bytes(bytes(out) + fnv(list(itertools.chain(*results))))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--o200k", help="o200k_base.tiktoken, to write the small vocabulary again")
    arguments = parser.parse_args()
    if unicodedata.unidata_version != "14.0.0":
        raise SystemExit(f"needs the characters of Unicode 14.0 (Python 3.11), not {unicodedata.unidata_version}")
    FIXTURES.mkdir(parents=True, exist_ok=True)
    if arguments.o200k:
        write_small_vocabulary(arguments.o200k)
    rng = random.Random(SEED)
    write_utf8(rng)
    write_codepoints()
    write_cases([reference(DEMO), reference(SMALL)], rng)


if __name__ == "__main__":
    main()
