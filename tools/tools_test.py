#!/usr/bin/env python3
"""Tests of the checks in this folder: each must accept good input and catch the fault it is there for."""
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

TOOLS = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(TOOLS))


def run(tool, *arguments):
    done = subprocess.run([sys.executable, TOOLS / tool, *map(str, arguments)], capture_output=True, text=True,
                          check=False)
    return done.returncode, done.stdout + done.stderr


class InTree(unittest.TestCase):
    def setUp(self):
        self.root = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.root)

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path


class Layers(InTree):
    def check(self, name, text):
        self.write(name, text)
        return run("check_layers.py", self.root)

    def test_accepts_lower_layers(self):
        self.assertEqual(self.check("src/model/a.cc", '#include "kernels/b.h"\n#include <vector>\n')[0], 0)

    def test_refuses_upper_layers(self):
        for name, include in (("src/kernels/a.h", "model/b.h"), ("src/text/a.cc", "engine/b.h"),
                              ("src/cache/a.cc", "model/b.h"), ("src/state/a_test.cc", "cache/b.h"),
                              ("src/new/a.cc", "base/b.h")):
            with self.subTest(name):
                status, output = self.check(name, f'#include "{include}"\n')
                self.assertEqual(status, 1, output)
                self.assertIn(name + ":1", output)
                (self.root / name).unlink()

    def test_counts_heavy_headers_through_other_headers(self):
        self.write("src/base/json.h", "#include <nlohmann/json.hpp>\n")
        for letter in "ab":
            self.write(f"src/base/{letter}.cc", '#include "base/json.h"\n')
        self.assertEqual(run("check_layers.py", self.root)[0], 0)
        status, output = self.check("src/server/c.cc", '#include "base/json.h"\n')
        self.assertEqual(status, 1)
        self.assertIn("nlohmann/ reaches 3 sources", output)

    def test_keeps_the_library_out_of_isa_files(self):
        self.assertEqual(self.check("src/kernels/a_avx2.cc", "#include <immintrin.h>\n")[0], 0)
        self.assertEqual(self.check("src/kernels/a_avx512.cc", "#include <vector>\n")[0], 1)


class Tidy(InTree):
    def check(self, name, text):
        self.write(name, text)
        if name.endswith(".cc"):
            self.write("CMakeLists.txt", pathlib.PurePosixPath(name).name + "\n")
        return run("tidy.py", self.root)

    def test_accepts_plain_code(self):
        status, output = self.check("src/base/a.cc", "int F() {\n  return 1;  // TODO(#3): two\n}\n")
        self.assertEqual(status, 0, output)

    def test_refuses(self):
        bad = "\n".join(["void F() {"] + ["  G();"] * 120 + ["}", ""])
        for name, text, message in (
                ("src/base/a.cc", "\tint x;\n", "tab"),
                ("src/base/a.cc", "int x; \n", "space at the end"),
                ("src/base/a.cc", "int x;", "no newline"),
                ("src/base/a.cc", "int x;\n" * 900, "lines, wanted at most 800"),
                ("src/base/a.cc", bad, "a function of 122 lines"),
                ("src/base/a.cc", "// TODO: later\n", "an open task"),
                ("src/base/a.cc", "thread_local int x;\n", "thread-local"),
                ("src/kernels/a.cc", "float y = std::exp(x);\n", "libm"),
                ("src/kernels/a.cc", "float y = expf(x);\n", "libm"),
                ("src/base/a.h", "int x;\n", "no #pragma once"),
                ("CMakeLists.txt", "add_compile_options(-ffast-math)\n", "breaks exactness"),
                ("Cargo.lock", 'source = "registry+https://example.org/index"\n', "crates.io")):
            with self.subTest(message):
                status, output = self.check(name, text)
                self.assertEqual(status, 1, output)
                self.assertIn(message, output)
                (self.root / name).unlink()

    def test_refuses_a_source_that_is_not_built(self):
        self.write("CMakeLists.txt", "other.cc\n")
        self.write("src/base/a.cc", "int x;\n")
        self.assertIn("not built", run("tidy.py", self.root)[1])


class Isa(InTree):
    BODY = "#include <immintrin.h>\nvoid F(float* x) { %s }\n"
    AVX512 = BODY % "_mm512_storeu_ps(x, _mm512_set1_ps(x[0]));"
    AVX2 = BODY % "_mm256_storeu_ps(x, _mm256_set1_ps(x[0]));"

    def check(self, name, text, *flags):
        source = self.write("source.cc", text)
        subprocess.run(["g++", "-O1", *flags, "-c", source, "-o", self.root / name], check=True)
        return run("check_isa.py", self.root)

    def test_accepts_code_in_its_place(self):
        for name, text, flags in (("a.cc.o", "int F() { return 1; }\n", ()), ("a_avx2.cc.o", self.AVX2, ("-mavx2",)),
                                  ("a_avx512.cc.o", self.AVX512, ("-mavx512f",))):
            status, output = self.check(name, text, *flags)
            self.assertEqual(status, 0, output)

    def test_refuses_code_elsewhere(self):
        for name, text, flags in (("a.cc.o", self.AVX2, ("-mavx2",)), ("a.cc.o", "float F(float x) { return x * x; }\n",
                                  ("-mavx2",)), ("a_avx2.cc.o", self.AVX512, ("-mavx512f",))):
            status, output = self.check(name, text, *flags)
            self.assertEqual(status, 1, output)
            (self.root / name).unlink()

    def test_refuses_merged_symbols(self):
        shared = "inline __attribute__((noinline)) int G(int x) { return x + 1; }\nint F(int x) { return G(x); }\n"
        status, output = self.check("a_avx2.cc.o", shared, "-mavx2")
        self.assertEqual(status, 1, output)
        self.assertIn("merged symbol", output)


class CountTests(InTree):
    def check(self, *tests):
        cases = "".join(f'<testcase name="{name}" status="{status}"><system-out>{output}</system-out></testcase>'
                        for name, status, output in tests)
        self.write("ctest.xml", f"<testsuite>{cases}</testsuite>")
        status, output = run("count_tests.py", self.root)
        return status, output.splitlines()

    def test_adds_up_cases_and_single_tests(self):
        status, lines = self.check(("a_test", "run", "[  PASSED  ] 17 tests.\n"), ("layers", "run", "layers: fine"),
                                   ("server", "run", "5 passed, 0 failed\n"))
        self.assertEqual((status, lines[-1]), (0, "23 passed, 0 failed"))

    def test_names_failures(self):
        output = ("[  PASSED  ] 3 tests.\n[  FAILED  ] 1 test, listed below:\n[  FAILED  ] A.B\n")
        status, lines = self.check(("a_test", "fail", output), ("crash", "fail", "Segmentation fault"))
        self.assertEqual((status, lines), (1, ["FAILED a_test: A.B", "FAILED crash", "3 passed, 2 failed"]))

    def test_a_crash_after_passes_and_a_skip_are_failures(self):
        status, lines = self.check(("a_test", "fail", "[  PASSED  ] 3 tests.\n"),
                                   ("b_test", "run", "[  PASSED  ] 1 test.\n[  SKIPPED ] 2 tests, listed below:\n"))
        self.assertEqual((status, lines[-1]), (1, "4 passed, 3 failed"))

    def test_nothing_is_no_success(self):
        self.assertEqual(self.check(), (1, ["0 passed, 0 failed"]))


class Comparisons(unittest.TestCase):
    def test_the_corpus_is_the_same_for_a_seed_and_has_no_surrogates(self):
        import text_corpus
        texts = text_corpus.texts(300, 5, ["<|im_end|>"], TOOLS)
        self.assertEqual(texts, text_corpus.texts(300, 5, ["<|im_end|>"], TOOLS))
        self.assertNotEqual(texts, text_corpus.texts(300, 6, ["<|im_end|>"], TOOLS))
        self.assertEqual("".join(texts).encode().decode(), "".join(texts))

    def test_records_go_there_and_back(self):
        import text_records
        records = [["", "a\0b"], [], ["é" * 300]]
        self.assertEqual(list(text_records._unpacked(b"".join(map(text_records._packed, records)))),
                         [[f.encode() for f in r] for r in records])

    def test_chats_are_rewritten_one_way_at_a_time(self):
        import compare_templates
        import template_chats
        chat = [{"role": "user", "content": template_chats.text("a", "b")}, {"role": "assistant", "content": None}]
        self.assertIn([{"role": "user", "content": "ab"}, {"role": "assistant", "content": ""}], compare_templates.rewritten(chat))
        self.assertEqual(compare_templates.rewritten([{"role": "user", "content": "a"}]),
                         [[{"role": "user", "content": template_chats.text("a")}]])

    def test_pre_tokenizers_have_names(self):
        import gguf_vocabulary
        for name in ("qwen2", "qwen35", "tekken", "kimi-k2", "smollm", "command-r"):
            pre_tokenizer, normalizer, ignore_merges = gguf_vocabulary.FAMILIES[name]
            self.assertEqual(gguf_vocabulary.pre_name({"pre_tokenizer": pre_tokenizer, "normalizer": normalizer,
                                                       "model": {"ignore_merges": ignore_merges}}), name)


if __name__ == "__main__":
    result = unittest.main(exit=False, verbosity=1).result
    bad_count = len(result.failures) + len(result.errors) + len(result.skipped)
    print(f"{result.testsRun - bad_count} passed, {bad_count} failed")
    sys.exit(0 if result.wasSuccessful() and bad_count == 0 else 1)
