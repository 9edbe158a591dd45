"""Tools with random schemas, right and wrong ones, for the declaration of tools in TypeScript."""

NAMES = ["a", "b", "Name", "name", "_x", "é", "with space", "zone"]
WORDS = ["", "One line.", "Two\nlines", "\n\nspaced\n", "中文 🎉", "quote \" and \\"]
NUMBERS = [0, -1, 3, 10**15, 1.0, 2.5, -0.0, 1e16, 1e-5, 123456789.125]
TYPES = ["string", "null", "object", "array", "integer", "number"]
ODD = [None, True, False, 0, "", "x", [], {}, [1], {"a": 1}]


def maybe(rng, chance):
    return rng.random() < chance


def words(rng):
    return rng.choice(WORDS) if maybe(rng, 0.97) else rng.choice([value for value in ODD if not value])


def default(rng):
    return rng.choice(NUMBERS + [True, False, None, "text", "é\n", [1, "b", None], {"k": [1.5, True]}])


def described(rng, schema):
    if maybe(rng, 0.3):
        schema["description"] = words(rng)
    if maybe(rng, 0.2):
        schema["default"] = default(rng)
    if maybe(rng, 0.1):
        schema["title"] = "T"
    return schema


def scalar(rng):
    schema = {"type": rng.choice(["string", "number", "integer", "boolean", "null", "custom"])}
    for key in ("minLength", "maxLength", "minimum", "maximum", "minItems"):
        if maybe(rng, 0.15):
            schema[key] = rng.choice(NUMBERS)
    if maybe(rng, 0.1):
        schema["pattern"] = rng.choice(["^a+$", "", "[é]"])
    return schema


def enum(rng):
    values = rng.sample([*NUMBERS, "red", "", "é\"", True, False, None], rng.randint(0, 4))
    schema = {"enum": values}
    if maybe(rng, 0.06):
        schema["type"] = rng.choice(["string", "number", "integer", "boolean", ["string", "null"], ["null", "number"],
                                     ["string"], ["string", "number"], []])
    elif maybe(rng, 0.3):
        numbers = [value for value in values if isinstance(value, (int, float))]
        schema = {"enum": numbers, "type": rng.choice(["number", ["null", "number"]])}
    return schema


def array(rng, depth):
    schema = {"type": "array"}
    if maybe(rng, 0.8):
        schema["items"] = any_schema(rng, depth - 1)
    for key in ("minItems", "maxItems", "maxLength"):
        if maybe(rng, 0.2):
            schema[key] = rng.randint(0, 9)
    return schema


def reference(rng):
    return {"$ref": rng.choice(["#"] * 3 + [f"#/$defs/{name}" for name in NAMES[:3]] * 9 + ["#/definitions/a"])}


def object_schema(rng, depth, properties=None):
    schema = {"type": "object"}
    if depth > 0 and maybe(rng, 0.9) or properties:
        names = rng.sample(NAMES, properties or rng.randint(0, 4))
        schema["properties"] = {name: any_schema(rng, depth - 1) for name in names}
        if maybe(rng, 0.7):
            schema["required"] = rng.sample(NAMES, rng.randint(0, 5))
    if maybe(rng, 0.2):
        schema["additionalProperties"] = rng.choice([True, False, None, {}]) if maybe(rng, 0.6) else any_schema(rng, 0)
    if maybe(rng, 0.15):
        schema["$defs"] = {name: any_schema(rng, depth - 1) for name in rng.sample(NAMES[:3], rng.randint(0, 3))}
    return schema


def any_schema(rng, depth):
    if maybe(rng, 0.003):
        return rng.choice(ODD)
    if maybe(rng, 0.04):
        return rng.choice([True, False, {}])
    if maybe(rng, 0.08):
        return described(rng, reference(rng))
    kinds = [lambda: scalar(rng), lambda: enum(rng)] * 2
    kinds.append(lambda: {"type": rng.sample(TYPES, rng.randint(0, 3))})
    if depth > 0:
        kinds += [lambda: array(rng, depth), lambda: object_schema(rng, depth),
                  lambda: {"anyOf": [any_schema(rng, depth - 1) for _ in range(rng.randint(0, 3))]}]
    return described(rng, rng.choice(kinds)())


def random_tools(rng):
    tools = []
    for number in range(rng.randint(1, 2)):
        function = {"name": f"f{number}", "parameters": object_schema(rng, 3, rng.randint(1, 3))}
        if maybe(rng, 0.8):
            function["parameters"]["$defs"] = {name: described(rng, object_schema(rng, 1)) for name in NAMES[:3]}
        if maybe(rng, 0.5):
            function["description"] = rng.choice(WORDS)
        if maybe(rng, 0.05):
            function["parameters"] = rng.choice([None, {}])
        tools.append({"type": "function", "function": function})
    return tools
