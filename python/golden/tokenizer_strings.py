"""The strings that make_tokenizer_fixtures.py asks other tokenizers about: hand-picked edges, random ones, long ones."""
import sys
import unicodedata

import regex


def _script_han(c):
    return regex.match(r"\p{Script=Han}", c) is not None


def _is_stable(c):
    """Assigned in Unicode 14 (this Python), with the same category in the newer version that the regex module knows."""
    category = unicodedata.category(c)
    return category not in ("Cn", "Cs", "Co") and regex.match(rf"\p{{{category}}}", c) is not None


STABLE = [chr(p) for p in range(sys.maxunicode + 1) if _is_stable(chr(p))]
HAN = [c for c in STABLE if _script_han(c)]
_BY_CATEGORY = {}
for _c in STABLE:
    _BY_CATEGORY.setdefault(unicodedata.category(_c), []).append(_c)


def _block(first, last):
    return [c for c in STABLE if first <= ord(c) <= last]


SPACES = list(" \t\n\r\v\f\u0085\u00a0\u1680\u2000\u2003\u200a\u2028\u2029\u202f\u205f\u3000")
ALMOST_SPACES = list("\x1c\x1d\x1e\x1f\ufeff\u200b\u2060\u180e")
HAN_NUMBERS = list("〇〡〢〣〤〥〦〧〨〩〸〹〺")
POOLS = [
    _block(0x20, 0x7e), _block(0x61, 0x7a), _block(0x41, 0x5a), list("0123456789"), SPACES, ALMOST_SPACES, [" "], ["\n"],
    HAN, [c for c in HAN if ord(c) > 0xffff], [c for c in HAN if not unicodedata.category(c).startswith("Lo")], HAN_NUMBERS,
    _block(0x3040, 0x30ff), _block(0xac00, 0xd7a3), _block(0x1100, 0x11ff), _block(0x900, 0x97f), _block(0xe00, 0xe7f),
    _block(0x600, 0x6ff), _block(0x590, 0x5ff), _block(0x370, 0x3ff), _block(0x400, 0x4ff), _block(0x300, 0x36f),
    _block(0x1f300, 0x1f64f), _block(0x2000, 0x206f), _block(0x3000, 0x303f), _block(0xff00, 0xffef), STABLE,
    *_BY_CATEGORY.values()]
WORDS = """hello world HTTPServer iPhone15Pro foo_bar camelCase snake_case __init__ x0 éléphant ÉCOLE Straße İstanbul naïve
cole\u0301 Ωmega привет ПРИВЕТ дом नमस्ते दुनिया مرحبا שלום 안녕하세요 ภาษาไทย こんにちは カタカナー 世界 中文 日本語 𠮷野家 三國志 々 ヶ
ǅungla ʰa ﬁn ſ K 〇 ⅷ ٣٤٥ １２３ ½ x² 你好，世界。 ・ 「」""".split()
SYMBOLS = """; ( ) { } }\n///\x20 }\n\n /// // /* */ #include << >> -> => :: != == && || += ... … — – " ' ` \\ \\n /a/b .py 。\n\n ？\n
！ ，。 」\r\n \u3000\u3000 \r\n \n\n\t <| |> <|im_ im_end|> [BOS [ ] <think </ 中. 中\n""".split(" ") + ["   ", "\n    ", "\t\t"]
SUFFIXES = ["'s", "'S", "'t", "'T", "'re", "'RE", "'Re", "'ve", "'VE", "'m", "'M", "'ll", "'LL", "'lL", "'d", "'D", "'ſ", "’s", "'x",
            "'", "''s", "'st", "'ſt", "'dd", "'l", "'r"]
EMOJI = ["👩\u200d👩\u200d👧\u200d👦", "🏳\ufe0f\u200d🌈", "👍🏽", "🇩🇪🇯🇵", "1\ufe0f\u20e3", "❤\ufe0f", "🤷🏻\u200d♂\ufe0f", "😀"]

EDGES = [
    "", " ", "a", "hello世界 world", "Hello, World! it's HTTPServer's iPhone15Pro", "12345678 ٣٤٥ ⅷ〇一二三 3.14",
    "日本語のテキスト々ヶ・カタカナー", "नमस्ते दुनिया", "e\u0301cole café", "I'LL can't WE'RE ſ'ſ", "(你好)「世界」，。",
    "AbcDEF ǅungla ʰa", "foo_bar(baz);\n\n\treturn x;", "  leading\n\n  two\tTabs \r\n end  ", "<|im_end|>", "<|im_end|><|im_end|>",
    "a<|im_user|>b<|im_middle|>", "[BOS]def f():[EOS]", "<think>a</think>", "<|im_end", "<<|im_end|>|>", "<|reserved_token_16005|>",
    "<|reserved_token_4100|>", "<|reserved_token_16256|>", "}\n/// text", "中文's", "123〇4", "中'sa", "a中's", "中S's",
    "滾滾長江東逝水\u3000浪花淘盡英雄。\n\n\u3000\u3000話說天下大勢，分久必合，合久必分。\n\n周末七國分爭，并入于秦。", "an \nexample", "a \n b", "a\n b",
    "a  \nb", "a \n\n b", "a\r\n\r\nb", "a \r\n b", "𠮷𠮷a𠮷", "𪜀1〇〡十", "\x1c\x1d a\x1eb", "a\u0085b\u00a0c\u3000d", "\ufeffa \ufeff b",
    "\u0301a", " \u0301a", "中\u0301", "\u200b\u200b ", "\x00", "a\x00b", "\U0010ffff", "�", *WORDS, *SYMBOLS, *EMOJI]


def _run(rng):
    pool = rng.choice(POOLS)
    return "".join(rng.choice(pool) for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 5))))


def _atom(rng, names):
    kind = rng.random()
    if kind < 0.5:
        return _run(rng)
    if kind < 0.7:
        return rng.choice(WORDS)
    if kind < 0.82:
        return rng.choice(SYMBOLS)
    if kind < 0.92:
        return rng.choice(SUFFIXES)
    if kind < 0.97:
        return rng.choice(EMOJI)
    name = rng.choice(names)
    return name if rng.random() < 0.7 else name[:rng.randint(1, len(name))]


def random_string(rng, names):
    glue = rng.choice(("", "", "", " ", "\n"))
    return glue.join(_atom(rng, names) for _ in range(rng.randint(1, 12)))


def long_texts():
    """As (repeat, string) parts: runs around the 25,000 of the reference, and the cut at 400,000 characters."""
    units = ["a", "A", "é", "中", "〇", "7", "!", "\u0301", "😀", " ", "\n", "\u3000", "\x1c", "ʰ", "Ab", "x\u0301", "\r\n", "'s"]
    texts = [[(1, "start "), (count // len(unit), unit), (1, tail)] for unit in units for count, tail in
             ((24998, " end"), (25000, "Z"), (25001, "\n"), (50004, " 中"))]
    texts += [[(8, "the  quick brown\n"), (12500, "! "), (1, "\n"), (30000, "ab"), (5000, "      \x1c")]]
    for lead in (399_990, 399_995, 400_000):
        texts += [[(lead // 5, "word "), (1, "  <|im_end|>  중<|im_end|>")]]
    texts += [[(25_000, "ab"), (60_000, "中文 𠮷"), (1, "."), (50_000, "!\x1c")]]
    return texts
