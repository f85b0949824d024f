#!/usr/bin/env python3
"""Prints "N passed, N failed" over the results that `./dev test` collected.

Usage: count_tests.py RESULTS
RESULTS holds ctest's reports (*.xml, JUnit). A test program counts as what it prints of itself
(GoogleTest, pytest, cargo, or a line "N passed, N failed"), any other test as one. A skipped case
counts as failed, and so does a program that failed without naming a failed case.
"""
import pathlib
import re
import sys
import xml.etree.ElementTree as ElementTree

PASSED = (re.compile(r"^\[  PASSED  \] (\d+) tests?\.", re.M),  # GoogleTest
          re.compile(r"^(\d+) passed\b", re.M),  # ours
          re.compile(r"^=+ .*?(\d+) passed\b", re.M),  # pytest
          re.compile(r"^test result: \w+\. (\d+) passed;", re.M))  # cargo
FAILED = (re.compile(r"^\[  (?:FAILED |SKIPPED) \] (\d+) tests?, listed below", re.M),
          re.compile(r"^\d+ passed, (\d+) failed\b", re.M),
          re.compile(r"^=+ .*?(\d+) (?:failed|skipped)\b", re.M),
          re.compile(r"^test result: \w+\. \d+ passed; (\d+) failed;", re.M))
GTEST_FAILED_NAME = re.compile(r"^\[  FAILED  \] ([\w./]+\.\w+)(?:, where .*)?$", re.M)


def main():
    passed = failed = 0
    failures = []
    for report in sorted(pathlib.Path(sys.argv[1]).glob("*.xml")):
        for test in ElementTree.parse(report).getroot().iter("testcase"):
            ok, bad, names = count_test(test)
            passed += ok
            failed += bad
            failures += names
    for name in failures:
        print(f"FAILED {name}")
    print(f"{passed} passed, {failed} failed")
    sys.exit(0 if failed == 0 and passed > 0 else 1)


def count_test(test):
    """(passed, failed, names of what failed) of one ctest test."""
    name = test.get("name")
    run_ok = test.get("status") == "run"
    output = test.findtext("system-out") or ""
    passed, failed = total(PASSED, output), total(FAILED, output)
    if passed + failed == 0:
        passed, failed = (1, 0) if run_ok else (0, 1)
    elif not run_ok and failed == 0:
        failed = 1
    cases = sorted(set(GTEST_FAILED_NAME.findall(output)))
    return passed, failed, [f"{name}: {case}" for case in cases] or ([name] if failed else [])


def total(patterns, text):
    return sum(int(number) for pattern in patterns for number in pattern.findall(text))


if __name__ == "__main__":
    main()
