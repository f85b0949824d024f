#!/usr/bin/env python3
"""The rules of STYLE.md that a program can check, over every file that git knows.

Usage: tidy.py [ROOT]
Prints each offence as FILE:LINE; exit status 1 if there is one. Warnings (files over 500 lines, functions
over 70) do not fail.
"""
import pathlib
import re
import subprocess
import sys

FILE_LINES_WARN, FILE_LINES_MAX = 500, 800
FUNCTION_LINES_WARN, FUNCTION_LINES_MAX = 70, 100
TEST_FUNCTION_LINES_MAX = 200  # a table of cases is long and simple
FILE_BYTES_MAX = 2 << 20
LARGE_FILES = {"models/trailguide/trailguide.gguf"}  # the bundled model

CODE = {".cc", ".h", ".rs", ".py", ".ts", ".tsx", ".cmake", ".txt"}
CPP = {".cc", ".h"}
TEXT = CODE | {".md", ".lock", ".json", ".toml", ".sh", ".yml", ".yaml", ""}

# (pattern, what is wrong), on every line of C++ outside comments and strings.
CPP_RULES = [
    (r"\bthread_local\b", "thread-local state"),
    (r"\busing namespace std\b", "using namespace std"),
    (r"\b(GTEST_SKIP|DISABLED_\w+)\b", "a test that does not run"),
    (r"\b(std::)?(rand|srand)\(", "rand(): randomness comes in as an argument"),
    (r"\bvdpbf16ps\b|_mm(256|512)?_dpbf16_ps|_mm(256|512)?_(rcp|rsqrt)(14|28)?_p[sd]\b",
     "an instruction whose result differs between CPUs or rounds in between"),
    (r"#pragma\s+(GCC|clang)\s+optimize|__attribute__\(\(optimize", "per-function optimisation flags"),
    (r"\b(FIXME|XXX)\b", "left open"),
]
# What reaches logits may not call libm: its last bit differs between versions and machines.
LIBM = re.compile(r"\bstd::(exp|exp2|expm1|log|log2|log1p|pow|sin|cos|tan|tanh|erf)[fl]?\("
                  r"|(?<![\w:.>])(exp|exp2|expm1|log|log1p|pow|sin|cos|tanh|erf)f?\(")
LIBM_FOLDERS = ("src/kernels/", "src/model/", "src/engine/")
LIBM_EXCEPT = ("_test.cc", "_bench.cc")
LIBM_EXCEPT_FOLDERS = ("src/model/reference/",)  # the oracle is compared within tolerances
# `fast-math` and `native` in a compiler flag.
FLAG = re.compile(r"-f(?!no-)fast-math|-funsafe-math|-Ofast\b|-march=native|-ffp-contract=(?!off)")
LOCAL_PATH = re.compile(r"/(?:home|root|Users)/\w")
CRATE_SOURCE = re.compile(r'^source = "(?!registry\+https://github\.com/rust-lang/crates\.io-index")')
NPM_SOURCE = re.compile(r'"resolved": "https?://(?!registry\.npmjs\.org/)')
OPEN_TASK = re.compile(r"\bTODO\b(?!\(#\d+\))")
NOT_A_FUNCTION = re.compile(r"^(namespace|extern|struct|class|enum|union|template|using|constexpr|const|static"
                            r"|inline constexpr|alignas)\b(?!.*\)\s*(const)?\s*(noexcept)?\s*\{$)|^\}|= \{$|^#|^//|^ ")


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
    files = list_files(root)
    errors, warnings = [], []
    for name in files:
        path = root / name
        if path.stat().st_size > FILE_BYTES_MAX and name not in LARGE_FILES:
            errors.append(f"{name}:1: {path.stat().st_size} bytes, wanted at most {FILE_BYTES_MAX}")
        if path.suffix in TEXT and not name.startswith(("models/", "tests/golden/data/")):
            check_file(name, path, errors, warnings)
    errors += unlisted_sources(root, files)
    for line in warnings:
        print("warning: " + line)
    for line in errors:
        print(line)
    print(f"tidy: {len(files)} files, {len(errors)} offences, {len(warnings)} warnings")
    sys.exit(1 if errors else 0)


def list_files(root):
    listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=root,
                            capture_output=True, check=False)
    if listed.returncode == 0:
        names = sorted(set(listed.stdout.decode().split("\0")) - {""})
    else:  # an unpacked archive
        names = sorted(p.relative_to(root).as_posix() for p in root.rglob("*")
                       if not {"build", "target", ".git", "node_modules"} & set(p.relative_to(root).parts))
    return [name for name in names if (root / name).is_file()]


def check_file(name, path, errors, warnings):
    try:
        text = path.read_bytes().decode("utf-8")
    except UnicodeDecodeError:
        if path.suffix in CODE:
            errors.append(f"{name}:1: not UTF-8")
        return
    if name == "LICENSE":
        return
    lines = text.split("\n")
    check_layout(name, path, text, lines, errors, warnings)
    if name not in ("tools/tidy.py", "tools/tools_test.py"):  # they spell out what they look for
        check_lines(name, path, lines, errors)
    if path.suffix == ".cc":
        check_functions(name, lines, errors, warnings)


def check_layout(name, path, text, lines, errors, warnings):
    if path.suffix not in CODE or name.endswith("package-lock.json"):
        return
    if text and not text.endswith("\n"):
        errors.append(f"{name}:{len(lines)}: no newline at the end")
    if len(lines) > FILE_LINES_MAX:
        errors.append(f"{name}:1: {len(lines)} lines, wanted at most {FILE_LINES_MAX}")
    elif len(lines) > FILE_LINES_WARN:
        warnings.append(f"{name}:1: {len(lines)} lines, wanted at most {FILE_LINES_WARN}")
    if path.suffix == ".h" and "#pragma once" not in text:
        errors.append(f"{name}:1: no #pragma once")
    for number, line in enumerate(lines, 1):
        if "\t" in line:
            errors.append(f"{name}:{number}: tab")
        if line != line.rstrip():
            errors.append(f"{name}:{number}: space at the end")


def check_lines(name, path, lines, errors):
    libm = (name.startswith(LIBM_FOLDERS) and not name.endswith(LIBM_EXCEPT)
            and not name.startswith(LIBM_EXCEPT_FOLDERS) and path.suffix in CPP)
    for number, line in enumerate(lines, 1):
        where = f"{name}:{number}: "
        if LOCAL_PATH.search(line):
            errors.append(where + "a path of one machine")
        if path.name == "Cargo.lock" and CRATE_SOURCE.match(line):
            errors.append(where + "a crate from another place than crates.io")
        if path.name == "package-lock.json" and NPM_SOURCE.search(line):
            errors.append(where + "a package from another place than registry.npmjs.org")
        if path.suffix in CODE and OPEN_TASK.search(line):
            errors.append(where + "an open task without its issue: TODO(#number)")
        if path.name in ("CMakeLists.txt", "CMakePresets.json") or path.suffix == ".cmake":
            if FLAG.search(line):
                errors.append(where + "a flag that breaks exactness")
        if path.suffix in CPP:
            code = code_of(line)
            for pattern, what in CPP_RULES:
                if re.search(pattern, code):
                    errors.append(where + what)
            if libm and LIBM.search(code):
                errors.append(where + "libm: use kernels/vector_ops.h")


def code_of(line):
    """The line without its strings and its // comment."""
    return re.sub(r"//.*$", "", re.sub(r'"(\\.|[^"\\])*"', '""', line))


def check_functions(name, lines, errors, warnings):
    """Outermost functions as clang-format lays them out: from column 0 to a lone closing brace."""
    begin = None
    head = ""
    for number, line in enumerate(lines, 1):
        if begin is None:
            if line and not line[0].isspace():
                head = line
                head_number = number
            if line.endswith("{") and head and not NOT_A_FUNCTION.match(head):
                begin = head_number
        elif line.startswith("}"):
            length = number - begin + 1
            what = f"{name}:{begin}: a function of {length} lines, wanted fewer than {FUNCTION_LINES_WARN}"
            if length > (TEST_FUNCTION_LINES_MAX if name.endswith("_test.cc") else FUNCTION_LINES_MAX):
                errors.append(what)
            elif length >= FUNCTION_LINES_WARN:
                warnings.append(what)
            begin = None
            head = ""


def unlisted_sources(root, files):
    """Each C++ source must stand in the CMakeLists.txt of its folder or of one above, by its name or, where a
    loop adds the levels of a kernel, by the kernel's."""
    offences = []
    for name in files:
        if not name.endswith(".cc") or name.startswith("fuzz/"):
            continue
        folder = pathlib.PurePosixPath(name).parent
        lists = [root / parent / "CMakeLists.txt" for parent in (folder, *folder.parents)]
        base = pathlib.PurePosixPath(name).name
        kernel = re.sub(r"(_ref|_avx2|_avx512)?\.cc$", "", base)
        wanted = re.compile(rf"\b({re.escape(base)}|{kernel})(?![\w.])")
        if not any(wanted.search(path.read_text(encoding="utf-8")) for path in lists if path.is_file()):
            offences.append(f"{name}:1: in no CMakeLists.txt, so it is not built")
    return offences


if __name__ == "__main__":
    main()
