#!/usr/bin/env python3
"""Tests of the server from outside. Usage: run.py --bin CAIRN [unittest arguments]
The last line counts the tests. Every server is started on a free port and ended by its process id."""
import argparse
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import harness  # noqa: E402


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", required=True)
    options, rest = parser.parse_known_args()
    harness.BINARY = str(pathlib.Path(options.bin).resolve())
    names = [a for a in rest if not a.startswith("-")]
    loader = unittest.TestLoader()
    if names:
        suite = loader.loadTestsFromNames(names)
    else:
        suite = loader.discover(str(pathlib.Path(__file__).resolve().parent), pattern="test_*.py")
    result = unittest.TextTestRunner(stream=sys.stdout, verbosity=2 if "-v" in rest else 1).run(suite)
    bad = {test.id() for test, _ in result.failures + result.errors + result.skipped}
    # A class whose server did not start is one failure, and none of its tests ran.
    not_run = sum(name.startswith("setUpClass") for name in bad)
    print(f"{max(0, result.testsRun - len(bad) + not_run)} passed, {len(bad)} failed")
    sys.exit(0 if result.testsRun and not bad else 1)


if __name__ == "__main__":
    main()
