#!/usr/bin/env python3
"""Checks the objects of a build: instruction sets beyond the baseline stay in the files made for them.

Usage: check_isa.py BUILD
Only *_avx512.cc may hold EVEX code (zmm or mask registers), only *_avx2.cc and *_avx512.cc any VEX code. And
those may export no symbol that the linker merges (inline functions, templates): it keeps one copy for the
whole program, and if that is the AVX-512 one, the program dies on the next machine.
Exit status 1 if an object breaks this. Needs objdump and nm (binutils).
"""
import concurrent.futures
import os
import pathlib
import platform
import re
import subprocess
import sys

# Operands that need AVX-512, and a VEX or EVEX mnemonic (verr and verw are old system instructions).
EVEX = re.compile(r"%zmm|%k[0-7]|%[xy]mm(1[6-9]|2\d|3[01])\b")
VEX = re.compile(r"^v(?!err|erw)\w+")
# Merged symbols of the C++ runtime, the same in every object.
RUNTIME = re.compile(r"^(DW\.ref\.|__gxx_personality|_ZT[ISV]|__clang_call_terminate)")
MERGED = {"W", "V", "u"}


def main():
    build = pathlib.Path(sys.argv[1])
    if platform.machine() != "x86_64":
        print("isa: not x86-64, nothing to check")
        return
    objects = [path for path in sorted(build.rglob("*.cc.o")) if "CompilerId" not in path.as_posix()]
    if not objects:
        sys.exit(f"isa: no object under {build}")
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        offences = [line for lines in pool.map(check_object, objects) for line in lines]
    for line in offences:
        print(line)
    levels = [level_of(path) for path in objects]
    print(f"isa: {len(objects)} objects ({levels.count('avx2')} avx2, {levels.count('avx512')} avx512), "
          f"{len(offences)} offences")
    sys.exit(1 if offences else 0)


def level_of(path):
    match = re.search(r"_(avx2|avx512)\.cc\.o$", path.name)
    return match.group(1) if match else "baseline"


def check_object(path):
    level = level_of(path)
    offences = []
    if level != "avx512":
        offences += check_instructions(path, level)
    if level != "baseline":
        offences += check_symbols(path)
    return offences


def check_instructions(path, level):
    process = subprocess.Popen(["objdump", "-d", "--no-show-raw-insn", str(path)], stdout=subprocess.PIPE,
                               text=True, errors="replace")
    function = "?"
    found = None
    for line in process.stdout:
        if line.endswith(">:\n"):
            function = line.split("<", 1)[1][:-3]
            continue
        _, colon, code = line.partition(":\t")
        if not colon or found:
            continue
        if EVEX.search(code) or (level == "baseline" and VEX.match(code)):
            found = f"{path}: {level} object holds '{code.strip()}' in {function}"
    if process.wait() != 0:
        return [f"{path}: objdump failed"]
    return [found] if found else []


def check_symbols(path):
    listing = subprocess.run(["nm", "--defined-only", str(path)], capture_output=True, text=True, check=True).stdout
    offences = []
    for line in listing.splitlines():
        kind, name = line.split()[-2:]
        if kind in MERGED and not RUNTIME.match(name):
            offences.append(f"{path}: exports the merged symbol {name}")
    return offences


if __name__ == "__main__":
    main()
