"""Thirty chats for tools/compare_templates.py: tools, tool calls and results, reasoning, content parts, missing and empty parts,
Unicode, arguments of the template. Each is (name, messages, tools, template arguments)."""


def system(content):
    return {"role": "system", "content": content}


def user(content):
    return {"role": "user", "content": content}


def assistant(content, **more):
    return {"role": "assistant", "content": content, **more}


def result(content, name="get_weather", call="call00001"):
    return {"role": "tool", "content": content, "name": name, "tool_call_id": call}


def call(name, arguments, call_id="call00001"):
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def text(*parts):
    return [{"type": "text", "text": p} for p in parts]


WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "Weather <now> & \"here\", l'été\nand \u65e5\u672c",
    "parameters": {"type": "object", "required": ["city"], "properties": {
        "zeta": {"type": "number", "default": 1.0, "minimum": -0.5}, "city": {"type": "string", "enum": ["Paris", "Zürich"]},
        "days": {"type": "integer", "description": "how many", "default": 3}, "ok": {"type": "boolean", "default": True},
        "unit": {"type": ["string", "null"], "default": None}}}}}
ADD = {"type": "function", "function": {"name": "add", "description": "Adds 1e20 and 0.1", "parameters": {
    "type": "object", "properties": {"b": {"type": "array", "items": {"type": "number"}}, "a": {"type": "object", "properties": {}}}}}}
NOTHING = {"type": "function", "function": {"name": "ping", "description": "", "parameters": {"type": "object", "properties": {}}}}
TOOLS = [WEATHER, ADD]
HARD = {"zeta": 1.5, "city": "Paris", "n": None, "t": True, "x": [1, 2.0, 1e20, 1e-7, {"b": 1, "a": "<'\"\\/\u007f\u2028é😀"}]}
PARIS = {"city": "Paris"}

CHATS = [
    ("one question", [user("hi")], None, {}),
    ("system", [system("You are a cairn."), user("  keep my spaces \n")], None, {}),
    ("three turns", [system("s"), user("a"), assistant("b"), user("c"), assistant("d"), user("e")], None, {}),
    ("no system, turns", [user("1"), assistant("2"), user("3")], None, {}),
    ("thought in content", [user("1"), assistant("<think>\nx\n</think>\n\n2"), user("3")], None, {}),
    ("reasoning_content", [user("a"), assistant("b", reasoning_content="why\n"), user("c"), assistant("d", reasoning_content="\n\nso"),
                           user("e")], None, {}),
    ("reasoning, last answer", [user("a"), assistant("b", reasoning_content="because")], None, {}),
    ("thinking off", [user("hi")], None, {"enable_thinking": False}),
    ("thinking on", [system("/no_think"), user("hi /think")], None, {"enable_thinking": True, "reasoning_effort": "high"}),
    ("thinking, other names", [user("hi"), assistant("x", reasoning_content="y"), user("z")], None,
     {"thinking": True, "preserve_thinking": True, "clear_thinking": False}),
    ("tools", [user("weather?")], TOOLS, {}),
    ("tools and system", [system("sys"), user("weather?")], TOOLS, {}),
    ("tools without thinking", [system("sys"), user("weather?")], [WEATHER, NOTHING], {"enable_thinking": False}),
    ("a call and its result", [user("w"), assistant("", tool_calls=[call("get_weather", PARIS)]), result('{"temp": 3}')], TOOLS, {}),
    ("a call, answered", [user("w"), assistant("", tool_calls=[call("get_weather", HARD)]), result("3"), assistant("3 degrees"),
                          user("thanks")], TOOLS, {}),
    ("two calls", [user("w"), assistant("let me look", tool_calls=[call("add", {"a": 1, "b": 2}), call("get_weather", PARIS, "call00002")]),
                   result("3", "add"), result("sun", call="call00002")], TOOLS, {}),
    ("a call with reasoning", [system("s"), user("w"), assistant("", reasoning_content="hmm", tool_calls=[call("add", {})]),
                               result("r", "add"), assistant("done", reasoning_content="ok"), user("more")], TOOLS, {}),
    ("calls in two turns", [user("w"), assistant("", tool_calls=[call("get_weather", PARIS)]), result("1"),
                            assistant("", tool_calls=[call("get_weather", {"city": "Zürich", "days": 2}, "call00003")]),
                            result("2", call="call00003")], TOOLS, {}),
    ("arguments as text", [user("w"), assistant("", tool_calls=[call("get_weather", '{"city":  "Paris", "days": 1.0}')]), result("1")],
     TOOLS, {}),
    ("a call without content", [user("w"), assistant(None, tool_calls=[call("get_weather", PARIS)]), result("1")], TOOLS, {}),
    ("a call at the end", [user("w"), assistant("ok", tool_calls=[call("ping", {})])], [NOTHING], {}),
    ("parts", [user(text("part one", " two"))], None, {}),
    ("parts everywhere", [system(text("sys part")), user(text("p")), assistant(text("q")), user(text("r ", "s"))], None, {}),
    ("parts in a result", [user("w"), assistant("", tool_calls=[call("get_weather", PARIS)]), result(text("cold", "!"))], TOOLS, {}),
    ("empty content", [system(""), user(""), assistant(""), user("x")], None, {}),
    ("Unicode", [system("Ты — кэрн"), user("emoji 👩‍👩‍👧 \u2028 e\u0301 שלום \t日本語"), assistant("«ok»"), user("é")], None, {}),
    ("template text", [user("{{ 7*7 }} {% raw %} <|im_end|> </s> [INST] <tool_call>{}</tool_call>")], None, {}),
    ("lines", [system("a\n\n  b\n"), user("\n\nmulti\nline\n\n\ttext  \n"), assistant("\n x \n"), user("y")], None, {}),
    ("documents", [user("x")], None, {"documents": [{"title": "t", "text": "d", "doc_id": 1}], "date_string": "01 Jan 2026"}),
    ("long", [system("s")] + [m for i in range(12) for m in (user(f"q{i}"), assistant(f"a{i}"))] + [user("end")], None, {}),
]
assert len(CHATS) == 30
