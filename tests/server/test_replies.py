"""The shape of replies: what OpenAI's clients rely on."""
import json
import pathlib
import unittest

from harness import Server, Stream, text_of

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "golden" / "data"
HELLO = {"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 8}


class Replies(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--prefill-step-size", "64")

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0

    def test_chat_reply_has_every_part(self):
        reply = self.server.chat("Hello!")
        self.assertEqual(reply.status, 200)
        j = reply.json
        self.assertTrue(j["id"].startswith("chatcmpl-"))
        self.assertEqual((j["object"], j["model"]), ("chat.completion", "Trailguide"))
        self.assertIsInstance(j["created"], int)
        choice = j["choices"][0]
        self.assertEqual(choice["message"]["role"], "assistant")
        self.assertTrue(choice["message"]["content"].startswith("Hello"))
        self.assertEqual((choice["index"], choice["finish_reason"]), (0, "length"))
        usage = j["usage"]
        self.assertEqual(usage["total_tokens"], usage["prompt_tokens"] + usage["completion_tokens"])
        self.assertEqual(usage["completion_tokens"], 8)
        self.assertEqual(usage["completion_tokens_details"]["reasoning_tokens"], 0)
        self.assertEqual(set(j["cairn"]), {"restore_point", "replayed_tokens", "miss_reason", "divergence_token"})
        self.assertEqual(j["timings"]["predicted_n"], 8)
        self.assertGreater(j["timings"]["predicted_ms"], 0)

    def test_end_of_turn_gives_finish_reason_stop(self):
        reply = self.server.chat("Hello!", max_tokens=200)
        self.assertEqual(reply.json["choices"][0]["finish_reason"], "stop")
        self.assertNotIn("<|im_end|>", reply.json["choices"][0]["message"]["content"])

    def test_stream_order_and_one_head(self):
        chunks, _, done = self.server.stream(CHAT, {**HELLO, "stream_options": {"include_usage": True}})
        self.assertTrue(done)
        self.assertEqual(chunks[0]["choices"][0]["delta"], {"role": "assistant", "content": ""})
        self.assertTrue(all("role" not in c["choices"][0]["delta"] for c in chunks[1:-1]))
        self.assertEqual(chunks[-2]["choices"][0]["delta"], {})
        self.assertEqual(chunks[-2]["choices"][0]["finish_reason"], "length")
        self.assertEqual(chunks[-1]["choices"], [])
        self.assertEqual(chunks[-1]["usage"]["completion_tokens"], 8)
        self.assertIn("cairn", chunks[-1])
        self.assertIn("timings", chunks[-1])
        for key in ("id", "created", "model", "object"):
            self.assertEqual(len({c[key] for c in chunks}), 1, key)
        self.assertEqual(text_of(chunks), self.server.chat().json["choices"][0]["message"]["content"])

    def test_without_usage_chunk_figures_travel_in_the_finish_chunk(self):
        chunks, _, _ = self.server.stream(CHAT, HELLO)
        self.assertTrue(all(c["choices"] for c in chunks))
        self.assertIn("restore_point", chunks[-1]["cairn"])
        self.assertIn("timings", chunks[-1])

    def test_stream_headers(self):
        s = Stream(self.server, CHAT, {**HELLO, "stream": True})
        s.read_all()
        s.close()
        self.assertEqual(s.status, 200)
        self.assertIn("text/event-stream", s.headers["content-type"])
        self.assertEqual(s.headers["access-control-allow-origin"], "*")

    def test_completion_equals_its_stream(self):
        body = {"prompt": "The trail to the hut", "max_tokens": 12}
        plain = self.server.post(COMPLETIONS, body).json
        chunks, _, done = self.server.stream(COMPLETIONS, body)
        self.assertTrue(done)
        self.assertEqual(plain["object"], "text_completion")
        self.assertEqual({c["object"] for c in chunks}, {"text_completion"})
        self.assertEqual(text_of(chunks), plain["choices"][0]["text"])

    def test_routes_without_v1(self):
        for path in ("/chat/completions", CHAT, CHAT + "/"):
            self.assertEqual(self.server.post(path, HELLO).status, 200, path)
        for path in ("/completions", COMPLETIONS):
            self.assertEqual(self.server.post(path, {"prompt": "a", "max_tokens": 1}).status, 200, path)
        old = self.server.post("/completion", {"prompt": "a"})
        self.assertEqual(old.status, 404)
        self.assertIn("/v1/completions", old.error["message"])

    def test_token_array_prompt_equals_its_text(self):
        text = "The trail to the hut"
        tokens = self.server.post("/tokenize", {"content": text}).json["tokens"]
        a, b = self.server.complete(text), self.server.complete(tokens)
        self.assertEqual(a.json["choices"][0]["text"], b.json["choices"][0]["text"])
        self.assertEqual(b.json["usage"]["prompt_tokens"], len(tokens))

    def test_stop_string_is_cut_and_counted_alike_in_both_forms(self):
        body = {"prompt": "Hello", "max_tokens": 40, "logprobs": 1}
        full = self.server.post(COMPLETIONS, body).json["choices"][0]["text"]
        for at in range(3, 12):
            stop = full[at:at + 5]
            cut = full[:full.find(stop)]
            plain = self.server.post(COMPLETIONS, {**body, "stop": ["@never@", stop]}).json
            chunks, _, _ = self.server.stream(
                COMPLETIONS, {**body, "stop": stop, "stream_options": {"include_usage": True}})
            self.assertEqual(plain["choices"][0]["text"], cut)
            self.assertEqual(plain["choices"][0]["finish_reason"], "stop")
            self.assertEqual(text_of(chunks), cut)
            tokens = plain["choices"][0]["logprobs"]["tokens"]
            self.assertEqual(len(tokens), plain["usage"]["completion_tokens"])
            self.assertTrue(cut.startswith("".join(tokens)))
            streamed = [t for c in chunks[:-1] for t in (c["choices"][0]["logprobs"] or {"tokens": []})["tokens"]]
            self.assertEqual(streamed, tokens)
            self.assertEqual(chunks[-1]["usage"]["completion_tokens"], len(tokens))

    def test_a_stop_string_that_spells_a_control_token(self):
        token = self.server.post("/tokenize", {"content": "<|im_start|>"}).json["tokens"]
        self.assertEqual(len(token), 1)
        body = {"prompt": "Hello", "max_tokens": 4, "logit_bias": {str(token[0]): 100}, "return_tokens": True}
        self.assertEqual(self.server.post(COMPLETIONS, body).json["choices"][0]["tokens"], 4 * token)
        choice = self.server.post(COMPLETIONS, {**body, "stop": ["@never@", "<|im_start|>"]}).json["choices"][0]
        self.assertEqual((choice["text"], choice["tokens"], choice["finish_reason"]), ("", [], "stop"))

    def test_text_that_only_began_a_stop_string_is_not_lost(self):
        full = self.server.complete("Hello", max_tokens=12).json["choices"][0]["text"]
        almost = full[-3:] + "\u0001"
        self.assertEqual(self.server.complete("Hello", max_tokens=12, stop=almost).json["choices"][0]["text"], full)
        chunks, _, _ = self.server.stream(COMPLETIONS, {"prompt": "Hello", "max_tokens": 12, "stop": [almost]})
        self.assertEqual(text_of(chunks), full)

    def test_logprobs_join_to_the_text_and_are_sorted(self):
        choice = self.server.chat(logprobs=True, top_logprobs=3).json["choices"][0]
        entries = choice["logprobs"]["content"]
        self.assertEqual("".join(e["token"] for e in entries), choice["message"]["content"])
        for e in entries:
            values = [t["logprob"] for t in e["top_logprobs"]]
            self.assertEqual(values, sorted(values, reverse=True))
            self.assertEqual(e["top_logprobs"][0]["token"], e["token"])
            self.assertEqual(bytes(e["bytes"]).decode(), e["token"])
        self.assertIsNone(self.server.chat().json["choices"][0]["logprobs"])

    def test_echo_with_logprobs_runs_from_token_0(self):
        text = "The trail to the hut"
        body = {"prompt": text, "max_tokens": 3, "echo": True, "logprobs": 1}
        reply = self.server.post(COMPLETIONS, body).json
        choice = reply["choices"][0]
        self.assertTrue(choice["text"].startswith(text))
        self.assertEqual("".join(choice["logprobs"]["tokens"]), choice["text"])
        self.assertIsNone(choice["logprobs"]["token_logprobs"][0])
        self.assertTrue(all(x <= 0 for x in choice["logprobs"]["token_logprobs"][1:]))
        self.assertEqual(reply["cairn"]["miss_reason"], "prompt_logprobs")
        chunks, _, _ = self.server.stream(COMPLETIONS, body)
        self.assertEqual(text_of(chunks), choice["text"])
        streamed = [x for c in chunks for x in (c["choices"][0]["logprobs"] or {"text_offset": []})["text_offset"]]
        self.assertEqual(streamed, choice["logprobs"]["text_offset"])
        scored = self.server.post(COMPLETIONS, {**body, "max_tokens": 0}).json["choices"][0]
        self.assertEqual(scored["text"], text)
        n = len(scored["logprobs"]["tokens"])
        self.assertEqual(scored["logprobs"]["token_logprobs"], choice["logprobs"]["token_logprobs"][:n])

    def test_max_tokens_0(self):
        reply = self.server.chat(max_tokens=0).json
        self.assertEqual(reply["choices"][0]["message"]["content"], "")
        self.assertEqual(reply["usage"]["completion_tokens"], 0)

    def test_return_tokens_and_timings_per_token(self):
        body = {"prompt": "Hello", "max_tokens": 6, "return_tokens": True, "timings_per_token": True}
        plain = self.server.post(COMPLETIONS, body).json["choices"][0]
        chunks, _, _ = self.server.stream(COMPLETIONS, body)
        streamed = [t for c in chunks for t in c["choices"][0].get("tokens", [])]
        self.assertEqual(streamed, plain["tokens"])
        text = self.server.post("/detokenize", {"tokens": streamed}).json["content"]
        self.assertEqual(text, plain["text"])
        self.assertTrue(all("timings" in c for c in chunks))

    def test_progress_never_ahead_and_reaches_the_end(self):
        prompt = " ".join(f"word{i}" for i in range(400))
        chunks, _, _ = self.server.stream(COMPLETIONS, {"prompt": prompt, "max_tokens": 1, "return_progress": True})
        progress = [c["prompt_progress"] for c in chunks if "prompt_progress" in c]
        self.assertTrue(progress)
        done = [p["processed"] for p in progress]
        self.assertEqual(done, sorted(done))
        self.assertEqual(done[-1], progress[-1]["total"])
        self.assertEqual(text_of(chunks), self.server.complete(prompt, max_tokens=1).json["choices"][0]["text"])

    def test_seed_fixes_the_sample(self):
        def text(**kw):
            return self.server.complete("Once", max_tokens=16, temperature=1.5, **kw).json["choices"][0]["text"]
        self.assertEqual(text(seed=5), text(seed=5))
        self.assertNotEqual(text(seed=5), text(seed=6))
        self.assertGreater(len({text(seed=-1) for _ in range(4)} | {text() for _ in range(4)}), 1)

    def test_characters_cut_over_tokens_are_never_broken(self):
        ids = self.server.post("/tokenize", {"content": "\u26f0"}).json["tokens"]
        self.assertGreater(len(ids), 1)
        bias = {str(i): 100 for i in ids}
        for seed in range(4):
            body = {"prompt": "x", "max_tokens": 24, "temperature": 1, "seed": seed, "logit_bias": bias, "logprobs": 0}
            plain = self.server.post(COMPLETIONS, body).json["choices"][0]
            chunks, _, _ = self.server.stream(COMPLETIONS, body)
            self.assertEqual(text_of(chunks), plain["text"])
            raw = b"".join(bytes(e["bytes"]) for e in plain["logprobs"]["content"])
            self.assertEqual(plain["text"], raw.decode("utf-8", "replace"))
            for c in chunks:
                json.dumps(c, ensure_ascii=False).encode("utf-8")

    def test_extras_are_honoured(self):
        base = self.server.complete("Hello", max_tokens=10)
        text = base.json["choices"][0]["text"]
        first = self.server.post("/tokenize", {"content": text}).json["tokens"][0]
        banned = self.server.complete("Hello", max_tokens=10, logit_bias={str(first): -100}).json["choices"][0]["text"]
        self.assertNotEqual(banned, text)
        ended = self.server.complete("Hello", max_tokens=10, stop_token_ids=[first]).json
        self.assertEqual((ended["choices"][0]["text"], ended["choices"][0]["finish_reason"]), ("", "stop"))
        self.assertEqual(self.server.chat(max_tokens=60, ignore_eos=True).json["usage"]["completion_tokens"], 60)
        self.assertEqual(self.server.complete("Hello", id_slot=3, max_tokens=10).json["choices"], base.json["choices"])

    def test_each_sampling_field_has_its_effect(self):
        def text(prompt="Hello", **fields):
            return self.server.complete(prompt, max_tokens=10, seed=1, **fields).json["choices"][0]["text"]
        greedy, hot = text(), text(temperature=20)
        self.assertNotEqual(hot, greedy)
        for only_the_best in ({"top_k": 1}, {"top_p": 0}, {"min_p": 1}):
            self.assertEqual(text(temperature=20, **only_the_best), greedy, only_the_best)
        warm = text(temperature=1)
        self.assertNotEqual(text(temperature=1, xtc_probability=1, xtc_threshold=0), warm)
        self.assertEqual(text(temperature=1, xtc_probability=1, xtc_threshold=1), warm)
        self.assertEqual(text(temperature=1, xtc_probability=1), text(temperature=1, xtc_probability=1, xtc_threshold=0.1))
        # A token that would come again and again.
        token = self.server.post("/tokenize", {"content": greedy}).json["tokens"][0]
        bias = {"logit_bias": {str(token): 60}}
        again = text(**bias)
        self.assertEqual(again, self.server.post("/detokenize", {"tokens": [token] * 10}).json["content"])
        for penalty in ({"repetition_penalty": 100}, {"presence_penalty": 100}, {"frequency_penalty": 100}):
            self.assertNotEqual(text(**bias, **penalty), again, penalty)
        self.assertEqual(text(**bias, repetition_penalty=100, repetition_context_size=0), again)
        self.assertEqual(text(repetition_penalty=0), greedy)  # mlx-lm's word for none
        never = text(logit_bias=[[token, False]])             # llama.cpp's
        self.assertNotIn(token, self.server.post("/tokenize", {"content": never}).json["tokens"])
        self.assertEqual(never, text(logit_bias={str(token): -100}))

    def test_what_reaches_the_template(self):
        def prompt(**fields):
            return self.server.post("/apply-template", {**HELLO, **fields}).json["prompt"]
        tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]
        self.assertIn('"name": "look"', prompt(tools=tools))
        self.assertEqual(prompt(tools=tools, tool_choice="none"), prompt(tools=tools))
        silent = prompt(chat_template_kwargs={"enable_thinking": False})
        self.assertNotEqual(silent, prompt())
        self.assertEqual(prompt(enable_thinking=False), silent)
        self.assertEqual(prompt(reasoning_effort="none"), silent)
        self.assertEqual(prompt(reasoning_effort="none", enable_thinking=True), prompt())
        self.assertEqual(prompt(reasoning_effort="low"), prompt())

    def test_min_tokens_holds_back_every_end(self):
        first = self.server.post("/tokenize", {"content": self.server.complete("Hello").json["choices"][0]["text"]}).json["tokens"][0]
        ended = self.server.complete("Hello", stop_token_ids=[first], min_tokens=5).json
        self.assertGreaterEqual(ended["usage"]["completion_tokens"], 5)
        self.assertEqual(self.server.complete("Hello", stop_token_ids=[first]).json["usage"]["completion_tokens"], 0)


class OtherModels(unittest.TestCase):
    def test_alternatives_that_are_parts_of_characters_stay_apart(self):
        with Server("--model", str(GOLDEN / "falcon-h1" / "model.gguf")) as server:
            legacy = server.complete("Hello", logprobs=20, ignore_eos=True).json["choices"][0]["logprobs"]
        for top, entry in zip(legacy["top_logprobs"], legacy["content"]):
            self.assertEqual(list(top.values()), [t["logprob"] for t in entry["top_logprobs"]])
        self.assertTrue(any(key.startswith("bytes:\\x") for top in legacy["top_logprobs"] for key in top))

    def test_text_offsets_where_bytes_are_broken_and_tokens_have_no_text(self):
        body = {"prompt": "Hello hut", "max_tokens": 40, "logprobs": 0, "temperature": 1.5}
        broken = special = 0
        with Server("--model", str(GOLDEN / "falcon-h1" / "model.gguf")) as server:
            for seed in range(6):
                one = {**body, "seed": seed, "echo": seed % 2 == 0}
                choice = server.post(COMPLETIONS, one).json["choices"][0]
                chunks, _, _ = server.stream(COMPLETIONS, one)
                text, offsets = choice["text"], choice["logprobs"]["text_offset"]
                streamed = [x for c in chunks for x in (c["choices"][0]["logprobs"] or {"text_offset": []})["text_offset"]]
                self.assertEqual(streamed, offsets)
                self.assertEqual(offsets, sorted(offsets))
                for token, begin in zip(choice["logprobs"]["tokens"], offsets):
                    broken += "\ufffd" in token
                    special += token.startswith("<|")
                    if "\ufffd" not in token and not token.startswith("<|"):
                        self.assertEqual(text[begin:begin + len(token)], token)
        self.assertGreater(broken, 0)
        self.assertGreater(special, 0)


class Reasoning(unittest.TestCase):
    TEMPLATE = ("{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
                "{{ '<|im_start|>assistant\n<think>\n' }}")

    def test_reasoning_and_answer_are_told_apart(self):
        with Server("--chat-template", self.TEMPLATE) as server:
            reply = server.chat(max_tokens=60, return_tokens=True, logprobs=True).json
            message = reply["choices"][0]["message"]
            self.assertTrue(message["content"].startswith("Hello"))
            self.assertTrue(message["reasoning_content"])
            self.assertEqual(message["reasoning"], message["reasoning_content"])
            tokens = reply["choices"][0]["tokens"]
            raw = server.post("/detokenize", {"tokens": tokens}).json["content"]
            self.assertEqual(raw, message["reasoning_content"] + "\n</think>\n\n" + message["content"])
            head = server.post("/detokenize", {"tokens": tokens[:reply["usage"]["completion_tokens_details"]
                                                             ["reasoning_tokens"]]}).json["content"]
            self.assertEqual(head, message["reasoning_content"] + "\n</think>")
            chunks, _, _ = server.stream(CHAT, {**HELLO, "max_tokens": 60, "return_tokens": True, "logprobs": True})
            deltas = [c["choices"][0]["delta"] for c in chunks]
            self.assertEqual("".join(d.get("reasoning_content", "") for d in deltas), message["reasoning_content"])
            self.assertEqual("".join(d.get("reasoning", "") for d in deltas), message["reasoning_content"])
            self.assertEqual(text_of(chunks), message["content"])
            self.assertEqual([t for c in chunks for t in c["choices"][0].get("tokens", [])], tokens)
            entries = [e for c in chunks for e in (c["choices"][0]["logprobs"] or {"content": []})["content"]]
            self.assertEqual(entries, reply["choices"][0]["logprobs"]["content"])

    def test_reasoning_that_never_ends(self):
        with Server("--chat-template", self.TEMPLATE) as server:
            reply = server.chat(max_tokens=3).json
            self.assertEqual(reply["choices"][0]["message"]["content"], "")
            self.assertTrue(reply["choices"][0]["message"]["reasoning_content"])
            self.assertEqual(reply["usage"]["completion_tokens_details"]["reasoning_tokens"], 3)


if __name__ == "__main__":
    unittest.main()
