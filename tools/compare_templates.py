#!/usr/bin/env python3
"""Compares what cairn's chat templates render with Python's jinja2, set up by the `transformers` package, on the thirty chats of
template_chats.py, each with and without a generation prompt. Prints one table row for each template.

    compare_templates.py --bin build/release/bin/text_batch [--expressions] [TEMPLATE...]

TEMPLATE is a .jinja file, a tokenizer_config.json, or a GGUF file. cairn makes some messages fit for the template (messages.rs):
where a chat has such messages and jinja2 refuses them or prints them as Python writes a list, the rewritten chat is the measure.
A chat both refuse has a column, and where the template raised the words itself they must be the same; so has one where Python's
operators stumble (a loop over None, say) and cairn renders. --expressions: template_expressions.py too, one by one."""
import argparse
import copy
import datetime
import json
import pathlib
import sys

import template_chats
import template_expressions
import text_records

NOW = 1764500000  # strftime_now, in local time on both sides
BOS, EOS = "<s>", "</s>"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("template", nargs="*", type=pathlib.Path)
    parser.add_argument("--bin", required=True)
    parser.add_argument("--expressions", action="store_true")
    parser.add_argument("--verbose", action="store_true", help="show where texts part")
    args = parser.parse_args()
    print("| template | rendered | equal | equal, rewritten | both refuse | only Python stumbles | different |\n|---|---|---|---|---|---|---|")
    wrong = compare_expressions(args) if args.expressions else 0
    for path in args.template:
        for name, source in sources(path):
            wrong += compare(name, source, args)
    sys.exit(1 if wrong else 0)


def sources(path):
    if path.suffix == ".gguf":
        import gguf_vocabulary
        metadata = gguf_vocabulary.read(path)
        return [(path.stem, metadata["chat_template"])] if "chat_template" in metadata else []
    if path.suffix != ".json":
        return [(path.stem, path.read_text(encoding="utf-8"))]
    found = json.loads(path.read_text(encoding="utf-8")).get("chat_template") or []
    if isinstance(found, str):
        found = [{"name": "default", "template": found}]
    stem = path.parent.name
    return [(f"{stem} {t['name']}" if len(found) > 1 else stem, t["template"]) for t in found]


def compare_expressions(args):
    sources = ["{{ " + e + " }}" for e in template_expressions.EXPRESSIONS] + template_expressions.STATEMENTS
    values = template_expressions.VALUES
    records = [[s, "[]", "", json.dumps(values, ensure_ascii=False), BOS, EOS, "1", str(NOW)] for s in sources]
    equal = refuse = 0
    for source, answer in zip(sources, text_records.run(args.bin, ["render"], records)):
        expected, own = Reference(source).render([], None, values, True), (answer[0].decode(), answer[1].decode())
        equal += expected == own and own[0] == "ok"
        refuse += own[0] == expected[0] == "error" and expected[1] in (None, own[1])
        if args.verbose and expected != own and not own[0] == expected[0] == "error":
            print(f"  {source}\n{parting(expected, own)}", file=sys.stderr)
    wrong = len(sources) - equal - refuse
    print(f"| expressions | {len(sources)} | {equal} | 0 | {refuse} | 0 | {wrong} |", flush=True)
    return wrong


def compare(name, source, args):
    cases = [(chat, generation) for chat in template_chats.CHATS for generation in (True, False)]
    dump = lambda value: json.dumps(value, ensure_ascii=False)
    records = [[source, dump(messages), dump(tools) if tools else "", dump(kwargs), BOS, EOS, "01"[generation], str(NOW)]
               for (_, messages, tools, kwargs), generation in cases]
    answers = text_records.run(args.bin, ["render"], records)
    reference = Reference(source)
    counts = {"equal": 0, "rewritten": 0, "refuse": 0, "stumbles": 0, "different": 0}
    for ((title, messages, tools, kwargs), generation), answer in zip(cases, answers):
        own = (answer[0].decode(), answer[1].decode())
        kind, expected = judge(reference, own, messages, tools, kwargs, generation)
        counts[kind] += 1
        if kind == "different" and args.verbose:
            print(f"  {name}: {title}, generation prompt {generation}\n{parting(expected, own)}", file=sys.stderr)
    print(f"| {name} | {len(cases)} | {counts['equal']} | {counts['rewritten']} | {counts['refuse']} | {counts['stumbles']} | "
          f"{counts['different']} |", flush=True)
    return counts["different"]


def judge(reference, own, messages, tools, kwargs, generation):
    expected = reference.render(messages, tools, kwargs, generation)
    if own[0] == "error":
        words = [expected] + [reference.render(v, tools, kwargs, generation) for v in rewritten(messages)]
        both = expected[0] == "error" and (expected[1] is None or own in words)
        return ("refuse" if both else "different"), expected
    if expected == own:
        return "equal", expected
    for variant in rewritten(messages):
        other = reference.render(variant, tools, kwargs, generation)
        if other == own:
            return "rewritten", other
    return ("stumbles" if expected == ("error", None) else "different"), expected


def rewritten(messages):
    """What messages.rs may make of these: joined parts, texts as parts, opened arguments, content that is null as empty."""
    def joined(m):
        if isinstance(m.get("content"), list):
            m["content"] = "".join(p["text"] for p in m["content"])

    def split(m):
        if isinstance(m.get("content"), str):
            m["content"] = template_chats.text(m["content"])

    def opened(m):
        for tool_call in m.get("tool_calls", []):
            if isinstance(tool_call["function"]["arguments"], str):
                tool_call["function"]["arguments"] = json.loads(tool_call["function"]["arguments"])

    def filled(m):
        if m.get("content") is None:
            m["content"] = ""

    out = []
    for steps in ([opened], [filled], [opened, filled], [joined], [joined, opened, filled], [split], [opened, filled, split]):
        variant = copy.deepcopy(messages)
        for message in variant:
            for step in steps:
                step(message)
        if variant != messages and variant not in out:
            out.append(variant)
    return out


class Reference:
    """The template as transformers compiles it."""

    def __init__(self, source):
        from transformers.utils.chat_template_utils import _compile_jinja_template
        self.compiled = _compile_jinja_template(source)
        self.compiled.environment.globals["strftime_now"] = self.compiled.globals["strftime_now"] = \
            lambda form: datetime.datetime.fromtimestamp(NOW).strftime(form)

    def render(self, messages, tools, kwargs, generation):
        """("ok", text), or ("error", the template's own words or None)."""
        import jinja2
        values = {"documents": None, "bos_token": BOS, "eos_token": EOS, "add_generation_prompt": generation, **kwargs}
        try:
            return "ok", self.compiled.render(messages=copy.deepcopy(messages), tools=copy.deepcopy(tools), **values)
        except jinja2.exceptions.UndefinedError:
            return "error", None
        except jinja2.exceptions.SecurityError:
            return "error", None
        except jinja2.exceptions.TemplateError as e:
            return "error", str(e)
        except Exception:  # whatever Python's operators raise inside a template
            return "error", None


def parting(expected, own):
    want, got = f"{expected[0]} {expected[1]}", f"{own[0]} {own[1]}"
    at = next((i for i, (a, b) in enumerate(zip(want, got)) if a != b), min(len(want), len(got)))
    begin = max(0, at - 60)
    return f"    want {want[begin:at + 120]!r}\n    got  {got[begin:at + 120]!r}"


if __name__ == "__main__":
    main()
