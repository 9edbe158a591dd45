"""Conversations, as clients send them, that make_chat_fixtures.py renders."""

MARKERS = "<|im_end|><|im_user|>user<|im_middle|><|im_start|>system\n<think></think><tool_call></tool_response><｜User｜>"

WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "The weather of a place.\n\nIn °C, as a number.",
    "parameters": {"type": "object", "required": ["city"], "properties": {
        "unit": {"type": "string", "enum": ["celsius", "kelvin", "°F"], "default": "celsius"},
        "city": {"type": "string", "description": "Name, e.g. München or 北京", "minLength": 1, "maxLength": 80},
        "days": {"type": "integer", "minimum": 1, "maximum": 14, "default": 3}}}}}
SEARCH = {"type": "function", "function": {
    "parameters": {"$schema": "x", "type": "object", "additionalProperties": False, "properties": {
        "query": {"type": "array", "description": "All must match", "minItems": 1, "items": {
            "type": "string", "description": "one word", "pattern": "^\\w+$"}},
        "where": {"type": "object", "properties": {"path": {"type": ["string", "null"]}, "depth": {"type": "number"}},
                  "required": ["path"], "additionalProperties": {"type": "boolean"}},
        "node": {"$ref": "#/$defs/Node", "description": "Where to begin"},
        "either": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "integer"}}, {"type": "null"}]},
        "anything": {}, "always": True, "never": False, "list": {"type": "array"}},
        "$defs": {"Node": {"type": "object", "description": "A node", "properties": {
            "next": {"$ref": "#/$defs/Node"}, "Value": {"type": "number", "default": 1.0}}},
            "Colour": {"enum": ["red", 1, 2.5, None, True]}}, "required": ["query"]},
    "strict": True, "description": "Searches \"files\"\\ and\tfolders </tools>", "name": "search.files-v2"}}
TREE = {"type": "function", "function": {"name": "tree", "parameters": {"type": "object", "properties": {
    "children": {"type": "array", "items": {"$ref": "#"}}, "label": {"type": "string"}}, "required": ["label"]}}}
NOTHING = {"type": "function", "function": {"name": "ping"}}
UNWRITABLE = {"type": "function", "function": {
    "name": "odd", "description": None, "parameters": {"type": "object", "properties": {
        "x": {"title": "no type", "examples": [1e100, 1e-7, 0.1, -0.0, 12345678901234567890, 1e16, 123456.75]},
        "\u007f": {"type": "string", "description": "\u0001\u001f\b\f\u2028é"}}}}}


def call(name, arguments, id):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def user(content, **more):
    return {"role": "user", "content": content, **more}


def system(content):
    return {"role": "system", "content": content}


def assistant(content, *calls, **more):
    return {"role": "assistant", "content": content, **({"tool_calls": list(calls)} if calls else {}), **more}


def result(id, content, **more):
    return {"role": "tool", "tool_call_id": id, "content": content, **more}


def text_conversations():
    """Every family has words for these."""
    yield "user", [user("Hello, world!")]
    yield "system", [system("Be brief."), user("What is 2 + 2?")]
    yield "developer", [{"role": "developer", "content": "Be brief."}, user("Hi")]
    yield "turns", [user("Hi"), assistant("Hello! How can I help?"), user("Count to three."), assistant("1, 2, 3"),
                    user("Thanks")]
    yield "empty content", [system(""), user(""), assistant(""), user("")]
    yield "null content", [user("Hi"), assistant(None), user("?")]
    yield "white space", [user("  \n\n x \t\n"), assistant("\n\n y \n"), user("\n")]
    yield "unicode", [system("用中文回答。"), user("¿Qué tal? 🎉 e\u0301 中文 नमस्ते\u200d \U0001f468\u200d\U0001f469"),
                      assistant("好的，日本語も。")]
    yield "parts", [user([{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]),
                    assistant([{"type": "text", "text": ""}]), user([])]
    yield "markers in text", [system(f"a{MARKERS}b"), user(MARKERS), assistant(f"{MARKERS} c"), user(f"x {MARKERS}")]
    yield "two systems", [system("One."), user("Hi"), system("Two."), user("Bye")]
    yield "two users", [user("Hi"), user("Are you there?")]
    yield "assistant first", [assistant("Welcome."), user("Thanks")]
    yield "ends with assistant", [user("Hi"), assistant("Hello")]
    yield "names", [user("Hi", name="Alice Łuk"), assistant("Hello", name="helper<|im_middle|>")]
    yield "reasoning", [user("6 * 7?"), assistant("42", reasoning_content="six sevens\n"), user("Sure?"),
                        assistant("Yes.", reasoning="\n\nI checked </think> it"), user("Really?"),
                        assistant("Really.", reasoning_content="")]
    yield "reasoning in content", [user("6 * 7?"), assistant("<think>\nsix sevens\n\n</think>\n\n42"), user("Sure?"),
                                   assistant("a<think>b</think>c<think>d</think>\ne")]
    yield "words of results", [user("Hi"), assistant("1", reasoning_content="r"),
                               user("<tool_response>\nx\n</tool_response>"), assistant("2", reasoning_content="s")]


def call_conversations():
    """For families that have words for calls; the last part is the tools that go with them."""
    weather = call("get_weather", '{"city": "München", "days": 2}', "functions.get_weather:0")
    yield "one call", [user("Weather in München?"), assistant("Let me look.", weather),
                       result("functions.get_weather:0", '{"t": 21.5}')], [WEATHER]
    yield "answered", [user("Weather?"), assistant(None, weather, reasoning_content="old"),
                       result("functions.get_weather:0", "21 °C"), assistant("21 °C", reasoning_content="older"),
                       user("And tomorrow?"),
                       assistant("", call("get_weather", '{"city":"München"}', "functions.get_weather:1"),
                                 reasoning_content="look again"), result("functions.get_weather:1", "18 °C")], [WEATHER]
    yield "parallel, foreign ids", [
        system("Use tools."), user("Compare"),
        assistant("", call("get_weather", '{"city": "北京"}', "call_a"), call("search.files-v2", "{}", "call_b"),
                  reasoning_content="two at once"),
        result("call_b", "nothing", name="search.files-v2"), result("call_a", [{"type": "text", "text": "冷"}]),
        assistant("", call("ping", "", "call_a"), reasoning_content="and again"), result("call_a", ""),
        user("So?")], [WEATHER, SEARCH, NOTHING]
    yield "own and foreign ids", [
        user("x"), assistant("", call("ping", "{}", "functions.ping:1"), call("ping", "{}", "functions.ping:")),
        result("functions.ping:1", "a"), result("functions.ping:", "b"), assistant("", call("ping", "{ }", "x:2")),
        result("x:2", "c")], [NOTHING]
    yield "arguments", [
        user("x"),
        assistant("", call("tree", {"label": "é", "n": [1, 2.0, None, True], "o": {"b": 1}}, "functions.tree:0"),
                  call("tree", '"{\\"label\\": \\"twice\\"}"', "functions.tree:1"),
                  call("tree", '{"label":\n  "as it is"}\n', "functions.tree:2"))], [TREE]
    yield "markers in calls", [
        user("x"),
        assistant("c", call("ping", '{"a": "<|tool_call_end|><｜tool▁call▁end｜></tool_call>"}', "<|im_end|>")),
        result("<|im_end|>", f"<|im_end|>{MARKERS}<|tool_calls_section_begin|><｜tool▁output▁end｜>")], [NOTHING]


def tool_conversations():
    """For families that declare tools."""
    for name, tools in (("two tools", [WEATHER, SEARCH]), ("recursive tool", [TREE, NOTHING]),
                        ("unwritable tool", [NOTHING, UNWRITABLE])):
        yield name, [user("Hi")], tools
    yield "tools and system", [system("Be brief."), user("Hi")], [NOTHING]
