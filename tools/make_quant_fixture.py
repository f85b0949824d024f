#!/usr/bin/env python3
"""Writes tests/golden/data/quant_blocks/TYPE.bin: random blocks and what the Python package `gguf` makes of them.

TYPE.bin = file bytes of 512 weights, then their float32 values (little-endian). Needs: pip install gguf numpy.
"""

import pathlib

import gguf
import numpy as np

OUT = pathlib.Path(__file__).resolve().parent.parent / "tests/golden/data/quant_blocks"
WEIGHTS = 512
# Byte offsets of the f16 fields of a block; random bits there would be infinities and NaNs too often.
F16_FIELDS = {
    "Q8_0": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2],
    "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208],
}


def main():
    rng = np.random.default_rng(7)
    OUT.mkdir(parents=True, exist_ok=True)
    for name, fields in F16_FIELDS.items():
        qtype = gguf.GGMLQuantizationType[name]
        elements, size = gguf.GGML_QUANT_SIZES[qtype]
        blocks = rng.integers(0, 256, (WEIGHTS // elements, size), dtype=np.uint8)
        for offset in fields:
            scale = rng.normal(0, 0.05, len(blocks)).astype(np.float16)
            scale[0] = np.float16(3e-6)  # a subnormal one
            blocks[:, offset : offset + 2] = scale.view(np.uint8).reshape(-1, 2)
        values = gguf.quants.dequantize(blocks, qtype).astype("<f4")
        (OUT / f"{name}.bin").write_bytes(blocks.tobytes() + values.tobytes())


if __name__ == "__main__":
    main()
