"""How far logits are from others: the measures of tests/golden/README.md."""
from importlib.metadata import version

import numpy as np


def log_softmax(x):
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def loss(computed, stored):
    """KL(stored || computed) for each row, in nats."""
    p, q = log_softmax(stored.astype(np.float64)), log_softmax(computed.astype(np.float64))
    kl = (np.exp(p) * (p - q)).sum(-1)
    return {"kl_median": float(np.median(kl)), "kl_mean": float(kl.mean()), "kl_max": float(kl.max())}


def versions():
    return {name: version(name) for name in ("mlx", "mlx-lm", "gguf", "numpy")}
