#!/usr/bin/env python3
"""Checks who includes whom: the layers of ARCHITECTURE.md, and that heavy libraries stay in a few files.

Usage: check_layers.py [ROOT]
Prints each offence as FILE:LINE; exit status 1 if there is one.
"""
import pathlib
import re
import sys

# Folder -> folders it may include. Deeper layers are listed in full, so that this table is the rule.
ALLOWED = {
    "base": {"base"},
    "kernels": {"base", "kernels"},
    "state": {"base", "state"},
    "model": {"base", "kernels", "state", "model"},
    "cache": {"base", "state", "cache"},
    "engine": {"base", "kernels", "state", "model", "cache", "engine"},
    "text": {"base", "text"},
    "server": {"base", "text", "engine", "server"},
}
# A header prefix that at most `MAX_UNITS` sources (tests apart) may reach, however indirectly.
HEAVY = ("boost/beast", "boost/asio", "nlohmann/", "prometheus/", "spdlog/")
MAX_UNITS = 2
# What files compiled for one instruction set may include besides this project's headers.
ISA_SOURCE = re.compile(r"_(avx2|avx512|neon)\.cc$")
ISA_SYSTEM = {"immintrin.h", "arm_neon.h", "cstdint", "cstddef"}

INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)')


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
    files = {path.relative_to(root).as_posix(): includes_of(path)
             for folder in ("src", "app") for path in sorted((root / folder).rglob("*"))
             if path.suffix in (".cc", ".h")}
    offences = layer_offences(files) + heavy_offences(files) + isa_offences(files)
    for offence in offences:
        print(offence)
    print(f"layers: {len(files)} files, {len(offences)} offences")
    sys.exit(1 if offences else 0)


def includes_of(path):
    """[(line, name, is_system)]"""
    found = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        match = INCLUDE.match(line)
        if match:
            found.append((number, match.group(1) or match.group(2), match.group(1) is None))
    return found


def is_test(name):
    return name.endswith(("_test.cc", "_bench.cc", "_probe.cc")) or "/testing/" in name


def layer_offences(files):
    offences = []
    for name, includes in files.items():
        parts = name.split("/")
        if parts[0] != "src":
            continue
        folder = parts[1]
        allowed = ALLOWED.get(folder)
        if allowed is None:
            offences.append(f"{name}:1: folder src/{folder} is not in the table of layers")
            continue
        for line, target, is_system in includes:
            layer = target.split("/")[0]
            if is_system or layer in allowed or (layer == "support" and is_test(name)):
                continue
            if is_test(name) and layer in ALLOWED and allowed_for_test(folder, layer):
                continue
            offences.append(f'{name}:{line}: {folder} must not include "{target}" '
                            f"(allowed: {', '.join(sorted(allowed))})")
    return offences


def allowed_for_test(folder, layer):
    """A test may also use what stands on the same layers, but no layer above its own."""
    return folder not in ALLOWED[layer]


def heavy_offences(files):
    offences = []
    for prefix in HEAVY:
        units = sorted(name for name in files
                       if name.endswith(".cc") and not is_test(name) and reaches(files, name, prefix))
        if len(units) > MAX_UNITS:
            offences.append(f"{prefix} reaches {len(units)} sources, wanted at most {MAX_UNITS}: "
                            + ", ".join(units))
    return offences


def reaches(files, name, prefix):
    seen, queue = set(), [name]
    while queue:
        current = queue.pop()
        if current in seen:
            continue
        seen.add(current)
        for _, target, _ in files[current]:
            if target.startswith(prefix):
                return True
            for candidate in ("src/" + target, target):
                if candidate in files:
                    queue.append(candidate)
    return False


def isa_offences(files):
    """An inline function of a shared header, compiled with AVX-512, may be the copy the linker keeps."""
    return [f"{name}:{line}: a file compiled for one instruction set must not include <{target}>"
            for name, includes in files.items() if ISA_SOURCE.search(name)
            for line, target, is_system in includes if is_system and target not in ISA_SYSTEM]


if __name__ == "__main__":
    main()
