#!/usr/bin/env python3
"""logit_distance against itself on the bundled model. Usage: logit_distance_test.py PATH_OF_LOGIT_DISTANCE (from the repository's root)"""
import json
import pathlib
import struct
import subprocess
import sys
import tempfile
import unittest

PROGRAM = None
CONTEXT, CHUNKS = 128, 3


def run(*flags):
    return subprocess.run([PROGRAM, "--log-level", "error", *map(str, flags)], capture_output=True, text=True, timeout=300)


class LogitDistance(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.base = pathlib.Path(cls.folder.name, "base")
        cls.written = run("--write", cls.base, "--text", "README.md", "--context", CONTEXT, "--chunks", CHUNKS)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def test_a_model_is_at_no_distance_from_itself(self):
        self.assertEqual(self.written.returncode, 0, self.written.stderr)
        written, read = json.loads(self.written.stdout), json.loads(run("--base", self.base).stdout)
        self.assertEqual(written["tokens"], CHUNKS * (CONTEXT - 1 - CONTEXT // 2))
        self.assertEqual((read["tokens"], read["perplexity"], read["same_top"]), (written["tokens"], written["perplexity"], 1))
        # 16 bits over at most 16 nats: a step of 2.4e-4, so half of it squared; and what is cut off below.
        self.assertLess(abs(read["kl_mean"]), 1e-5)

    def test_other_keys_and_values_are_at_a_small_one(self):
        read = json.loads(run("--base", self.base, "--kv-type", "q8_0").stdout)
        self.assertGreater(read["kl_mean"], 1e-6)
        self.assertLess(read["kl_mean"], 1e-2)

    def test_files_that_are_no_base(self):
        whole = self.base.read_bytes()
        broken = {"cut": whole[:-100], "magic": b"x" + whole[1:], "empty": b"",
                  "vocabulary": whole[:12] + struct.pack("<i", 7) + whole[16:],
                  "token": whole[:20] + struct.pack("<i", 1 << 30) + whole[24:]}
        for name, data in broken.items():
            with self.subTest(name):
                path = pathlib.Path(self.folder.name, name)
                path.write_bytes(data)
                done = run("--base", path)
                self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)


if __name__ == "__main__":
    PROGRAM = str(pathlib.Path(sys.argv.pop(1)).resolve())
    unittest.main()
