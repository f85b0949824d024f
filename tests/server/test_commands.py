"""The subcommands besides serve: what they print, and their exit status."""
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

import harness

GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "golden" / "data"


def run(*words, env=None, seconds=120):
    return subprocess.run([harness.BINARY, *words], capture_output=True, text=True, timeout=seconds, stdin=subprocess.DEVNULL,
                          env={**os.environ, **(env or {})})


class Commands(unittest.TestCase):
    def assert_refused(self, done, part):
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertEqual(done.stdout, "")
        lines = [line for line in done.stderr.splitlines() if not line.startswith("[2")]
        self.assertEqual(len(lines), 1, done.stderr)
        self.assertIn(part, lines[0])

    def test_help_names_each_command(self):
        done = run("--help")
        self.assertEqual(done.returncode, 0)
        for name in ("serve", "generate", "bench", "inspect", "selftest", "cache"):
            self.assertRegex(done.stdout, rf"(?m)^\s+{name}\s")
        self.assertRegex(run("--version").stdout, r"^cairn \d+\.\d+")
        self.assert_refused(run(), "subcommand is required")
        self.assert_refused(run("cache", "list"), "not in this version")

    def test_inspect_of_every_form(self):
        for path, architecture, trimmable in ((GOLDEN / "qwen35-a" / "model.gguf", "qwen35", False),
                                              (GOLDEN / "llama-a" / "hf", "llama", True),
                                              (GOLDEN / "quant" / "qwen35-a" / "mlx4", "qwen35", False)):
            facts = json.loads(run("inspect", str(path), "--json").stdout)
            self.assertEqual((facts["architecture"], facts["trimmable"]), (architecture, trimmable))
            self.assertEqual(facts["layers"], facts["attention_layers"] + facts["recurrent_layers"])
            self.assertEqual(facts["kv_bytes"], facts["kv_bytes_per_token"] * facts["context_length"])
            self.assertEqual(facts["memory_bytes"], facts["weight_bytes"] + facts["kv_bytes"] + facts["checkpoint_bytes"])
        table = run("inspect", str(GOLDEN / "qwen35-a" / "model.gguf"), "--kv-type", "q8_0", "--context-length", "100")
        self.assertIn("checkpoints are needed", table.stdout)
        self.assert_refused(run("inspect", "/no/such/file"), "no such file")

    def test_generate_from_text_file_chat_and_environment(self):
        plain = run("generate", "-p", "Hello", "--max-tokens", "8")
        self.assertEqual(plain.returncode, 0, plain.stderr)
        with tempfile.NamedTemporaryFile("w") as file:
            file.write("Hello")
            file.flush()
            self.assertEqual(run("generate", "--prompt-file", file.name, "--max-tokens", "8").stdout, plain.stdout)
            self.assert_refused(run("generate", "--prompt-file", file.name, "-p", "x"), "wanted one")
        self.assertEqual(run("generate", "-p", "Hello", env={"CAIRN_MAX_TOKENS": "8"}).stdout, plain.stdout)
        chat = run("generate", "--chat", "-p", "Hello!", "--max-tokens", "40", "--stats")
        self.assertTrue(chat.stdout.startswith("Hello"), chat.stdout)
        self.assertRegex(chat.stderr, r"\d+ prompt tokens, [\d.]+ tokens/s; \d+ generated")
        told = run("generate", "--chat", "--system", "Here is what you know:\n- Stefan Lake is 47 m deep.", "-p", "How deep is Stefan Lake?")
        self.assertIn("47", told.stdout)

    def test_generate_refuses_what_it_cannot_do(self):
        self.assert_refused(run("generate"), "no prompt")
        self.assert_refused(run("generate", "-p", "x", "--system", "y"), "--system without --chat")
        self.assert_refused(run("generate", "-p", "x", "--cache-dir", "/tmp"), "not in this version")
        self.assert_refused(run("generate", "--prompt-file", "/dev/zero"), "more than")
        self.assert_refused(run("generate", "-p", "word " * 5000), "exceeds the available context size")

    def test_added_tokens_may_lie_behind_the_embedding(self):
        with tempfile.TemporaryDirectory() as directory:
            for file in (GOLDEN / "llama-a" / "hf").iterdir():
                shutil.copy(file, directory)
            path = pathlib.Path(directory) / "tokenizer.json"
            tokenizer = json.loads(path.read_text())
            tokenizer["added_tokens"].append({**tokenizer["added_tokens"][-1], "id": 320, "content": "<image>", "special": True})
            path.write_text(json.dumps(tokenizer))
            words = ("generate", "--model", directory, "--max-tokens", "3", "-p")
            done = run(*words, "Hello")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assert_refused(run(*words, "Hello<image>"), "token 320, wanted 0 to 319")
            first = len(tokenizer["model"]["vocab"])  # of another model, then: ten words more, the added ones behind them
            tokenizer["model"]["vocab"] |= {f"word{i}": first + i for i in range(10)}
            for i, token in enumerate(tokenizer["added_tokens"]):
                token["id"] = first + 10 + i
            path.write_text(json.dumps(tokenizer))
            self.assert_refused(run(*words, "Hello"), "331 tokens in the tokenizer, but the embedding has 320 rows")

    def test_selftest_proves_the_law_of_the_bundled_model(self):
        done = run("selftest", "--prompt", "80", "--decode", "4", seconds=300)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("bit for bit", done.stdout.splitlines()[-1])
        self.assertNotIn("FAIL", done.stdout)

    def test_bench_prints_one_object_with_its_figures(self):
        done = run("bench", "--prefill", "64", "--decode", "4", "--branch", "256", "--batch", "2", "--repeat", "1", "--threads", "2", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        figures = json.loads(done.stdout)
        for key in ("prefill_tps", "decode_tps", "batch_decode_tps", "bytes_per_token"):
            self.assertGreater(figures[key], 0, key)
        self.assertIn(figures["cpu_level"], ("scalar", "avx2", "avx512"))
        self.assertGreater(min(figures["roof"].values()), 0)
        self.assertEqual(figures["branch"]["restore_point"] + figures["branch"]["replayed_tokens"], 256)

    def test_bench_cache_is_the_same_each_time(self):
        words = ("bench", "cache", "--trace", "chat", "--requests", "20", "--policies", "value,lru", "--budgets", "10,50", "--csv")
        first, second = run(*words), run(*words)
        self.assertEqual(first.returncode, 0, first.stderr)
        rows = [line.split(",")[:-1] for line in first.stdout.splitlines()]  # the last column is time
        self.assertEqual(rows, [line.split(",")[:-1] for line in second.stdout.splitlines()])
        self.assertEqual([row[3] for row in rows], ["policy", "infinite", "value", "lru", "value", "lru"])
        self.assert_refused(run("bench", "cache", "--policies", "best"), "wanted value, lru")
        self.assert_refused(run("bench", "cache", "--trace", "/no/such/file"), "no such file")


if __name__ == "__main__":
    unittest.main()
