"""Writes tests/text/fixtures/chat.json: what the published chat templates make of many conversations.

    python3 -m golden.make_chat_fixtures TEMPLATES     (from python/; pip install jinja2==3.1.6 tiktoken==0.14.0)

TEMPLATES is a folder with the files of SOURCES, which are other people's and not kept here. Oracles: Jinja, set up as
transformers does, for the text; PyPI tiktoken for the ids, over the small vocabulary of make_tokenizer_fixtures.py.

Text of clients must stay text. So before a template sees it, each control token in it becomes a private character; the
rendering is cut at the control tokens that are left, which are the template's own; and what lies between is encoded as
ordinary text, with the characters turned back.
"""
import argparse
import hashlib
import importlib.util
import json
import logging
import pathlib
import random

import tiktoken
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tiktoken.load import load_tiktoken_bpe

from golden import chat_conversations as conversations
from golden import chat_schemas as schemas
from golden import make_tokenizer_fixtures as vocabulary

OUTPUT = vocabulary.FIXTURES / "chat.json"
SEED = 7
DECLARATIONS = 150

LLAMA, SMG = "llama.cpp, models/templates", "lightseekorg/smg, crates/tokenizer/tests/fixtures"
MILES = "radixark/miles, miles/utils/chat_template_utils/templates"
TINKER = "thinking-machines-lab/tinker-cookbook, tinker_cookbook/renderers"
# File: the beginning of its SHA-256, and where such a file is found.
SOURCES = {
    "kimi-k2.jinja": ("1d396d5b128cdb9b", f"ikawrakow/ik_{LLAMA}/Kimi-K2-Instruct.jinja"),
    "kimi-k2-thinking.jinja": ("833d0c375531149a", f"ggml-org/{LLAMA}/moonshotai-Kimi-K2-Thinking.jinja"),
    "kimi-k2.5.jinja": ("82dc16c314f46cef", f"{SMG}/kimi_k25/chat_template.jinja"),
    "kimi-k2.6.jinja": ("b4b2cd69d0c6611d", f"{MILES}/kimi_k25_fixed.jinja"),
    "deepseek-v3.jinja": ("86c9eb894f13402f", "the metadata of DeepSeek-V3-0324 as GGUF"),
    "qwen3.jinja": ("87a2728cb8dc9fe4", f"ggml-org/{LLAMA}/Qwen-Qwen3-0.6B.jinja"),
    "tool_declaration_ts.py": ("03d1677d2cb111e5", f"{TINKER}/kimi_k2_5_tool_declaration_ts.py, from Kimi-K2.5"),
}
CHATML = ("{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] }}"
          "{{ '<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")

# Where the copies above are not the latest of their publisher: Kimi declares tools as compact JSON, K2's copy makes
# ids up and leaves a line break after the default system message.
COMPACT = "tojson(separators=(',', ':'))"
EDITS = {
    "kimi-k2.jinja": [("{{ tools | tojson }}", "{{ tools | " + COMPACT + " }}"),
                      ("  {% endif %}\n\n", "  {%- endif -%}\n\n"),
                      ("'functions.' + tool_call['function']['name'] + ':' + (tool_call_counter.value | string)",
                       "tool_call['id']"), ("{%- set _ = tool_response_queue.ids.append(formatted_id) -%}", ""),
                      ("{%- if tool_response_queue.ids -%}", "{%- if true -%}"),
                      ("tool_response_queue.ids.pop(0)", "message.tool_call_id")],
    "kimi-k2-thinking.jinja": [("{{ tools | tojson() }}", "{{ tools | " + COMPACT + " }}")],
}

KIMI = ("kimi-k2", "kimi-k2-thinking", "kimi-k2.5")
DEEPSEEK_MARKERS = ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>", "<｜tool▁sep｜>"] + [
    f"<｜tool▁{part}▁{end}｜>" for part in ("calls", "call", "outputs", "output") for end in ("begin", "end")]
QWEN_MARKERS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<tool_response>",
                "</tool_response>", "<think>", "</think>"]
KIMI_MARKERS = list(vocabulary.KIMI_NAMES.values())
MARKERS = {**dict.fromkeys(KIMI, KIMI_MARKERS), "deepseek-v3": DEEPSEEK_MARKERS, "qwen3": QWEN_MARKERS,
           "chatml": QWEN_MARKERS[:3]}
HIDDEN = {marker: chr(0xe000 + i) for i, marker in enumerate(dict.fromkeys(sum(MARKERS.values(), [])))}


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def environment():
    result = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    result.filters["tojson"] = tojson
    return result


def replaced(text, pairs):
    for old, new in pairs:
        text = text.replace(old, new)
    return text


def hide(value):
    """Private characters for the control tokens of a client's text, in strings at any depth."""
    if isinstance(value, str):
        return replaced(value, sorted(HIDDEN.items(), key=lambda item: -len(item[0])))
    if isinstance(value, list):
        return [hide(item) for item in value]
    return {key: hide(item) for key, item in value.items()} if isinstance(value, dict) else value


def show(text):
    return replaced(text, [(character, marker) for marker, character in HIDDEN.items()])


class Templates:
    def __init__(self, folder):
        self.templates = {"chatml": environment().from_string(CHATML)}
        for file, (digest, where) in SOURCES.items():
            text = (folder / file).read_text()
            found = hashlib.sha256(text.encode()).hexdigest()
            if not found.startswith(digest):
                raise SystemExit(f"{file} has SHA-256 {found}, not {digest}…; it is from {where}")
            if not file.endswith(".jinja"):
                continue
            for old, new in EDITS.get(file, []):
                if text.count(old) < 1:
                    raise SystemExit(f"{file} has no {old!r}")
                text = text.replace(old, new)
            if file == "qwen3.jinja":  # it looks for these in text of clients
                for words in ("startswith('{}')", "endswith('{}')", "'{}' in", "split('{}')"):
                    for marker in QWEN_MARKERS:
                        text = text.replace(words.format(marker), words.format(HIDDEN[marker]))
            self.templates[file.removesuffix(".jinja")] = environment().from_string(text)
        spec = importlib.util.spec_from_file_location("tool_declaration_ts", folder / "tool_declaration_ts.py")
        self.typescript = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self.typescript)

    def declaration(self, tools):
        try:
            return self.typescript.encode_tools_to_typescript_style(tools)
        except Exception:  # of any kind: Kimi's tokenizer then leaves the tools to its template
            return None

    def render(self, family, messages, tools, options):
        variables = {key: value for key, value in options.items() if key in ("thinking", "preserve_thinking")}
        if family == "qwen3" and "thinking" in variables:
            variables = {"enable_thinking": variables["thinking"]}
        if family in KIMI and tools:  # Kimi's tokenizer does this before its template
            tools = deep_sorted(tools)
            if family == "kimi-k2.5":
                variables["tools_ts_str"] = self.declaration(tools)
        variables |= {"messages": messages, "tools": tools or None, "bos_token": "<｜begin▁of▁sentence｜>",
                      "add_generation_prompt": options.get("add_generation_prompt", True)}
        if family != "kimi-k2.5":
            return self.templates[family].render(**variables)
        text = self.templates["kimi-k2.6"].render(**variables)
        if "preserve_thinking" not in options and text != self.templates["kimi-k2.5"].render(**variables):
            raise SystemExit("the templates of K2.5 and K2.6 disagree")
        return text


def deep_sorted(value):
    if isinstance(value, dict):
        return {key: deep_sorted(value[key]) for key in sorted(value)}
    return [deep_sorted(item) for item in value] if isinstance(value, list) else value


def native_ids(calls):
    """What Kimi would have called the calls that have other ids: a counter over the conversation."""
    def native(id):
        name, _, counter = id.removeprefix("functions.").rpartition(":")
        return id.startswith("functions.") and name and counter.isdigit()

    taken = {c["id"] for c in calls if native(c["id"])}
    ids, floor = [], 0
    for place, c in enumerate(calls):
        id = c["id"]
        if not native(id):
            floor = max(floor, place)
            while (id := f"functions.{c['function']['name']}:{floor}") in taken:
                floor += 1
            floor += 1
        ids.append(id)
    return ids


def one_layer(arguments):
    if isinstance(arguments, str) and not arguments.strip():
        return "{}"
    if isinstance(arguments, str) and isinstance(json.loads(arguments), str):
        return json.loads(arguments)
    return arguments


def prepared(family, messages):
    """Messages as the templates expect them, from messages as clients send them."""
    messages = json.loads(json.dumps(messages))
    calls = [c for message in messages for c in message.get("tool_calls", [])]
    ids = native_ids(calls) if family in KIMI else [c["id"] for c in calls]
    latest, number = {}, 0
    for message in messages:
        if message["role"] == "developer":
            message["role"] = "system"
        if "reasoning" in message:
            message["reasoning_content"] = message.pop("reasoning")
        if message["content"] is None:
            message["content"] = ""
        if family not in KIMI and isinstance(message["content"], list):
            message["content"] = "\n".join(part["text"] for part in message["content"])
        for c in message.get("tool_calls", []):
            latest[c["id"]] = c["id"] = ids[number]
            number += 1
            arguments = one_layer(c["function"]["arguments"])
            c["function"]["arguments"] = tojson(arguments) if isinstance(arguments, dict) else arguments
        if message["role"] == "tool":
            message["tool_call_id"] = latest[message["tool_call_id"]]
    return messages


def encoding(family):
    ranks = load_tiktoken_bpe(str(vocabulary.SMALL / "tiktoken.model"))
    if family in KIMI:
        return vocabulary.reference(vocabulary.SMALL)
    names = {name: len(ranks) + i for i, name in enumerate(MARKERS[family])}
    return tiktoken.Encoding(family, pat_str=vocabulary.PATTERN, mergeable_ranks=ranks, special_tokens=names)


def encode(tokens, text):
    """Cuts at the template's control tokens; what is between is ordinary text."""
    ids, run = [], ""
    while text:
        marker = next((m for m in tokens.special_tokens_set if text.startswith(m)), None)
        if marker:
            ids += tokens.encode_ordinary(show(run)) + [tokens.encode_single_token(marker)]
            run, text = "", text[len(marker):]
        else:
            run, text = run + text[0], text[1:]
    return ids + tokens.encode_ordinary(show(run))


END = {**dict.fromkeys(KIMI, "<|im_end|>"), "deepseek-v3": "<｜end▁of▁sentence｜>", "qwen3": "<|im_end|>\n",
       "chatml": "<|im_end|>\n"}


def case(templates, tokens, family, name, messages, tools=None, **options):
    visible = dict(options)
    if options.get("continue_final_message"):
        visible["add_generation_prompt"] = options["add_generation_prompt"] = False
    text = templates.render(family, hide(prepared(family, messages)), hide(tools), options)
    if options.get("continue_final_message"):
        text = text.removesuffix(END[family])
    return {"family": family, "name": name, "options": visible, "messages": messages, "tools": tools,
            "text": show(text), "ids": encode(tokens[family], text)}


def cases(templates):
    tokens = {family: encoding(family) for family in MARKERS}
    for family in MARKERS:
        texts = dict(conversations.text_conversations())
        for name, messages in texts.items():
            yield case(templates, tokens, family, name, messages)
        yield case(templates, tokens, family, "turns", texts["turns"], add_generation_prompt=False)
        for name in ("ends with assistant", "reasoning"):
            yield case(templates, tokens, family, name, texts[name], continue_final_message=True)
        if family == "chatml":
            continue
        calls = list(conversations.call_conversations())
        for name, messages, tools in calls:
            yield case(templates, tokens, family, name, messages, tools if family != "deepseek-v3" else None)
        if family == "deepseek-v3":
            continue
        for name, messages, tools in conversations.tool_conversations():
            yield case(templates, tokens, family, name, messages, tools)
        if family not in ("kimi-k2.5", "qwen3"):
            continue
        yield case(templates, tokens, family, "user", texts["user"], thinking=False)
        yield case(templates, tokens, family, "answered", *calls[1][1:], thinking=False)
        yield case(templates, tokens, family, "answered", *calls[1][1:], thinking=True)
        if family == "kimi-k2.5":
            yield case(templates, tokens, family, "answered", *calls[1][1:], preserve_thinking=True)
            yield case(templates, tokens, family, "reasoning", texts["reasoning"], preserve_thinking=True)


def declarations(templates, count):
    """Random tools, and their declaration in TypeScript; null where upstream declares them as JSON."""
    rng = random.Random(SEED)
    for _ in range(count):
        tools = schemas.random_tools(rng)
        yield {"tools": tools, "text": templates.declaration(deep_sorted(tools))}


def lines(values):
    return ",\n".join(json.dumps(value, ensure_ascii=False, separators=(",", ":")) for value in values)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("templates", type=pathlib.Path)
    parser.add_argument("--declarations", type=int, default=DECLARATIONS)
    parser.add_argument("--output", type=pathlib.Path, default=OUTPUT)
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    templates = Templates(arguments.templates)
    names = json.dumps({f: m for f, m in MARKERS.items() if f not in KIMI}, ensure_ascii=False)
    declared = list(declarations(templates, arguments.declarations))
    arguments.output.write_text(f'{{"added_tokens": {names},\n"cases": [\n{lines(cases(templates))}\n],\n'
                                f'"declarations": [\n{lines(declared)}\n]}}\n')
    print(sum(d["text"] is None for d in declared), "of", len(declared), "declarations are JSON")


if __name__ == "__main__":
    main()
