"""Random weights under their Hugging Face names.

A tensor is (name, shape, init). Each is drawn from a generator of its own, seeded by the model's seed and a checksum
of the name, so that adding a tensor changes no other. Matrices hold values that bfloat16 and float16 both represent
exactly: F32, F16 and BF16 directories of one seed are the same model and share one set of logits.
"""
import zlib

import numpy as np


def matrix(gain=1.0):
    """Rows of unit variance in, variance gain^2 out."""
    return ("matrix", gain)


def uniform(low, high):
    return ("uniform", low, high)


NORM = uniform(0.6, 1.4)
NORM_MINUS_ONE = uniform(-0.4, 0.4)  # of families that compute 1 + w
BIAS = uniform(-0.3, 0.3)


def round_to_half(x):
    """To the nearest value with bfloat16's 8 bits; those too small for float16 become 0."""
    bits = np.asarray(x, np.float32).view(np.uint32)
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    y = bits.astype(np.uint32).view(np.float32).copy()
    y[np.abs(y) < 2.0**-16] = 0.0
    return y


def draw(seed, name, shape, init):
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    if init[0] in ("matrix", "stacked"):
        fan_in = shape[-1] if init[0] == "stacked" else np.prod(shape[1:])
        return round_to_half(rng.standard_normal(shape) * (init[1] / np.sqrt(fan_in)))
    return round_to_half(rng.uniform(init[1], init[2], shape))


def draw_all(seed, specs):
    weights = {}
    for name, shape, init in specs:
        assert name not in weights, name
        weights[name] = draw(seed, name, tuple(int(n) for n in shape), init)
    return weights


def make_cases(seed, vocab, lengths):
    """Random sequences with stored positions. The one of 65 tokens carries the states; each longer one starts with it,
    goes its own way afterwards, and has a repeated span."""
    rng = np.random.default_rng([seed, 77])
    start = rng.integers(0, vocab - 5, 65)
    cases, row = [], 0
    for length in lengths:
        tokens = rng.integers(0, vocab - 5, length)
        if length >= 65:
            tokens[:65] = start
        if length >= 128:
            tokens[80:100] = tokens[20:40]
            tokens[104:112] = tokens[104]
        every = 1 if length <= 65 else 7
        positions = sorted({*range(0, length, every), *range(max(0, length - 3), length)})
        case = {"name": f"len{length}", "tokens": tokens.tolist(), "positions": positions, "first_row": row}
        if length == 65:
            case["states"] = True
        cases.append(case)
        row += len(positions)
    return cases
