"""The prompt cache as clients see it: usage, /v1/cache, salts, and what an abort leaves behind."""
import time
import unittest

from harness import Server, Stream

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def words(count, key=""):
    return " ".join(f"w{key}{i}" for i in range(count))


class Cache(unittest.TestCase):
    def setUp(self):
        self.server = Server("--prefill-step-size", "64", "--decode-concurrency", "2")

    def tearDown(self):
        self.assertEqual(self.server.stop(), 0)

    def restore_point(self, prompt, **kw):
        reply = self.server.complete(prompt, max_tokens=2, **kw)
        self.assertEqual(reply.status, 200, reply.body)
        j = reply.json
        self.assertEqual(j["usage"]["prompt_tokens_details"]["cached_tokens"], j["cairn"]["restore_point"])
        self.assertEqual(j["timings"]["cache_n"], j["cairn"]["restore_point"])
        self.assertEqual(j["cairn"]["restore_point"] + j["cairn"]["replayed_tokens"], j["usage"]["prompt_tokens"])
        return j["cairn"]["restore_point"], j["usage"]["prompt_tokens"], j["cairn"]

    def test_the_same_prompt_replays_nothing_and_gives_the_same_bits(self):
        prompt = words(150)
        cold = self.server.complete(prompt, logprobs=5, cache_prompt=False).json
        self.assertEqual(cold["cairn"]["miss_reason"], "disabled_by_request")
        first = self.server.complete(prompt, logprobs=5).json
        second = self.server.complete(prompt, logprobs=5).json
        self.assertEqual(second["cairn"]["replayed_tokens"], 0)
        self.assertIsNone(second["cairn"]["miss_reason"])
        for warm in (first, second):
            self.assertEqual(warm["choices"], cold["choices"])

    def test_an_edit_restores_the_checkpoint_before_it(self):
        old, new = words(150), words(100) + " other " + words(49, "x")
        self.restore_point(old)
        restored, _, cairn = self.restore_point(new)
        self.assertEqual(restored % 64, 0)
        self.assertGreaterEqual(restored, 64)
        self.assertEqual(cairn["miss_reason"], "between_checkpoints")
        self.assertGreaterEqual(cairn["divergence_token"], restored)

    def test_explain_foretells_and_changes_nothing(self):
        self.restore_point(words(150))
        new = words(100) + " other " + words(49, "x")
        said = self.server.post("/v1/cache/explain", {"prompt": new}).json
        again = self.server.post("/v1/cache/explain", {"prompt": new}).json
        self.assertEqual(said, again)
        restored, count, cairn = self.restore_point(new)
        self.assertEqual((said["restore_point"], said["prompt_tokens"]), (restored, count))
        self.assertEqual(said["miss_reason"], cairn["miss_reason"])
        self.assertEqual(said["divergence_token"], cairn["divergence_token"])
        self.assertIn(restored, [c["position"] for c in said["checkpoints"]])
        chat = self.server.post("/v1/cache/explain", {"messages": [{"role": "user", "content": "hi"}]})
        self.assertEqual(chat.status, 200)

    def test_explain_knows_what_the_request_forbids(self):
        prompt = words(150)
        for fields in ({}, {"cache_prompt": False}, {"echo": True, "logprobs": 1}, {"cache_salt": "other"}):
            self.restore_point(prompt)
            said = self.server.post("/v1/cache/explain", {"prompt": prompt, **fields}).json
            cairn = self.server.complete(prompt, max_tokens=2, **fields).json["cairn"]
            self.assertEqual({k: said[k] for k in cairn}, cairn, fields)

    def test_salts_are_apart_and_not_shown(self):
        prompt = words(150)
        self.restore_point(prompt, cache_salt="alice-secret")
        self.assertEqual(self.restore_point(prompt)[0], 0)
        self.assertGreater(self.restore_point(prompt, cache_salt="alice-secret")[0], 0)
        shown = self.server.get("/v1/cache").body
        self.assertNotIn(b"alice-secret", shown)

    def test_list_drop_clear(self):
        self.restore_point(words(150))
        cache = self.server.get("/v1/cache").json
        metrics = self.server.metrics()
        self.assertEqual(cache["bytes"], metrics['cairn_cache_bytes{tier="memory"}'])
        self.assertEqual(cache["checkpoints"], metrics['cairn_checkpoints{tier="memory"}'])
        self.assertEqual(sum(n["checkpoint"] for n in cache["nodes"]), cache["checkpoints"])
        first = cache["nodes"][0]
        self.assertTrue(first["text"].startswith("w0"))
        self.assertEqual(first["begin"], 0)
        last = cache["nodes"][-1]["id"]
        self.assertEqual(self.server.request("DELETE", f"/v1/cache/{last}").status, 200)
        self.assertEqual(self.server.request("DELETE", f"/v1/cache/{last}").status, 404)
        self.assertEqual(self.server.request("DELETE", "/v1/cache/x").status, 404)
        self.assertEqual(self.server.request("DELETE", "/v1/cache/").status, 404)  # an empty id is not everything
        self.assertEqual(self.server.request("DELETE", "/v1/cache").status, 200)
        self.assertEqual(self.server.get("/v1/cache").json["nodes"], [])
        self.assertEqual(self.server.metrics()['cairn_cache_bytes{tier="memory"}'], 0)
        self.assertEqual(self.restore_point(words(150))[0], 0)

    def test_pins(self):
        self.restore_point(words(150))
        node = [n for n in self.server.get("/v1/cache").json["nodes"] if n["checkpoint"]][-1]["id"]
        for _ in range(2):
            self.assertEqual(self.server.post(f"/v1/cache/{node}/pin", {}).json, {"pinned": node})
        cache = self.server.get("/v1/cache").json
        self.assertEqual([n["id"] for n in cache["nodes"] if n["pinned"]], [node])
        self.assertEqual(cache["pins"]["count"], 1)
        self.assertGreater(cache["pins"]["bytes"], 0)
        self.assertEqual(self.server.request("DELETE", f"/v1/cache/{node}/pin").json, {"unpinned": node})
        self.assertEqual(self.server.get("/v1/cache").json["pins"]["count"], 0)
        for path in ("/v1/cache/999999999/pin", "/v1/cache/x/pin", "/v1/cache/1/other"):
            self.assertEqual(self.server.post(path, {}).status, 404, path)

    def test_a_pin_too_many_is_a_conflict(self):
        with Server("--prefill-step-size", "64", "--prompt-cache-size", "2") as server:  # pins may take half of the paths
            server.complete(words(150))
            nodes = [n["id"] for n in server.get("/v1/cache").json["nodes"] if n["checkpoint"]]
            self.assertEqual(server.post(f"/v1/cache/{nodes[0]}/pin", {}).status, 200)
            refused = server.post(f"/v1/cache/{nodes[1]}/pin", {})
            self.assertEqual((refused.status, refused.error["code"]), (409, "pins_full"))
            self.assertNotIn("retry-after", refused.headers)

    def test_an_aborted_prefill_goes_on_where_it_stopped(self):
        prompt = words(900)
        s = Stream(self.server, COMPLETIONS,
                   {"prompt": prompt, "max_tokens": 1, "stream": True, "return_progress": True})
        done = 0
        for chunk in s.events():
            if "prompt_progress" in chunk:
                done = chunk["prompt_progress"]["processed"]
                break
        s.close()
        self.assertGreater(done, 0)
        self.assertTrue(self.server.wait_idle())
        self.assertGreaterEqual(self.restore_point(prompt)[0], done - 64)

    def test_a_client_that_leaves_frees_its_slot_within_a_step(self):
        body = {"prompt": "Hello", "max_tokens": 3500, "ignore_eos": True, "stream": True}
        for leave_early in (False, True):
            streams = [Stream(self.server, COMPLETIONS, body) for _ in range(2)]
            queued = [Stream(self.server, COMPLETIONS, body) for _ in range(3)]  # headers come at once
            self.assertTrue(all(s.status == 200 for s in streams + queued))
            if not leave_early:
                streams[0].wait_text()
            begin = time.time()
            for s in streams + queued:
                s.close()
            self.assertTrue(self.server.wait_idle(3))
            self.assertLess(time.time() - begin, 3)
        self.assertEqual(self.server.metrics()['cairn_memory_bytes{kind="live"}'], 0)

    def test_slots_show_what_runs(self):
        s = Stream(self.server, COMPLETIONS, {"prompt": "Hello", "max_tokens": 3500, "ignore_eos": True, "stream": True})
        s.wait_text()
        slots = self.server.get("/slots").json
        self.assertEqual(len(slots), 2)
        running = [x for x in slots if x["is_processing"]]
        self.assertEqual([x["phase"] for x in running], ["decode"])
        self.assertEqual(self.server.metrics()["llamacpp:requests_processing"], 1)
        s.close()
        self.assertTrue(self.server.wait_idle())
        self.assertFalse(any(x["is_processing"] for x in self.server.get("/slots").json))

    def test_a_stop_string_publishes_no_checkpoint_beyond_the_answer(self):
        prompt = words(40)
        full = self.server.complete(prompt, max_tokens=60, cache_prompt=False).json["choices"][0]["text"]
        reply = self.server.complete(prompt, max_tokens=60, stop=[full[10:16]]).json
        kept = reply["usage"]["prompt_tokens"] + reply["usage"]["completion_tokens"]
        self.assertTrue(self.server.wait_idle())
        deepest = max(n["end"] for n in self.server.get("/v1/cache").json["nodes"] if n["checkpoint"])
        self.assertLessEqual(deepest, kept)


class CacheOff(unittest.TestCase):
    def test_zero_switches_it_off(self):
        for flag in ("--prompt-cache-size", "--prompt-cache-bytes"):
            with Server(flag, "0") as server:
                for _ in range(2):
                    self.assertEqual(server.complete(words(50)).json["cairn"]["restore_point"], 0)
                cache = server.get("/v1/cache").json
                self.assertEqual((cache["enabled"], cache["nodes"]), (False, []))


if __name__ == "__main__":
    unittest.main()
