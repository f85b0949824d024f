#!/usr/bin/env python3
"""Makes tiny random models in every format with reference logits and states from mlx-lm on a CPU. See README.md.

  make.py OUT [--family NAME ...] [--seed N ...] [--set KEY=VALUE ...] [--formats ...] [--lengths N ...]

Writes OUT/FAMILY-SEED/. tests/golden_check OUT/* compares cairn with them.
"""
import argparse
import json
import os
import random
import sys

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import attention_models  # noqa: E402
import compare  # noqa: E402
import containers  # noqa: E402
import hybrid_models  # noqa: E402
import kimi_model  # noqa: E402
import mamba_models  # noqa: E402
import mlx_reference  # noqa: E402
import random_weights  # noqa: E402

FAMILIES = {f.__name__.lower(): f() for m in (attention_models, hybrid_models, mamba_models, kimi_model) for f in m.FAMILIES}
FORMATS = ("hf", "gguf", "mlx", "quantised")
MATRIX_TYPES = ("BF16", "F16", "F32")


def parse():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("out")
    p.add_argument("--family", nargs="*", default=list(FAMILIES), choices=FAMILIES)
    p.add_argument("--seed", nargs="*", type=int, default=[1], help="1 has the plain sizes; others draw sizes, options and formats")
    p.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="of config.json (of its text_config), value as JSON")
    p.add_argument("--formats", nargs="*", default=list(FORMATS), choices=FORMATS)
    p.add_argument("--lengths", nargs="*", type=int, default=[1, 5, 65, 150])
    p.add_argument("--mlx", nargs="*", default=[], metavar="BITS:GROUP", help="default: drawn")
    p.add_argument("--gguf-types", nargs="*", default=["Q8_0", "Q4_0"], help="what the Python package gguf can write")
    return p.parse_args()


class Fixture:
    """One random model, and the directory that is made of it."""

    def __init__(self, name, seed, args):
        self.family, self.seed, self.args = FAMILIES[name], seed, args
        self.random = random.Random(seed * 7919 + len(name))
        self.config = self.family.config(None if seed == 1 else self.random)
        for pair in args.set:
            key, value = pair.split("=", 1)
            self.text[key] = json.loads(value)
        self.config |= {"bos_token_id": None, "eos_token_id": self.text["vocab_size"] - 1}
        self.name = f"{name}-{seed}"
        self.directory = os.path.join(args.out, self.name)
        os.makedirs(self.directory, exist_ok=True)
        self.weights = random_weights.draw_all(seed, self.family.tensors(self.config))
        self.cases = random_weights.make_cases(seed, self.text["vocab_size"], args.lengths)
        self.report = {"family": name, "seed": seed, "versions": compare.versions(), "variants": {}}

    @property
    def text(self):
        return self.config.get("text_config", self.config)

    @property
    def base(self):
        """Weights that need no multiplier beside them."""
        return self.family.fold(self.config, self.weights) if hasattr(self.family, "fold") else self.weights

    @property
    def has_experts(self):
        return any(self.text.get(k) for k in ("num_experts", "num_local_experts", "n_routed_experts"))

    def path(self, *parts):
        return os.path.join(self.directory, *parts)

    def pick(self, plain, *others):
        return plain if self.seed == 1 else self.random.choice((plain, *others))

    # --- logits

    def rows(self, logits):
        return np.concatenate([y[c["positions"]] for y, c in zip(logits, self.cases)])

    def run(self, model):
        return self.rows([mlx_reference.run(model, c["tokens"])[0] for c in self.cases])

    def write_reference(self):
        model = mlx_reference.from_checkpoint(self.family, self.config, self.weights)
        kinds = self.family.states(self.config) if hasattr(self.family, "states") else ["kv"] * self.text["num_hidden_layers"]
        logits = []
        for case in self.cases:
            y, cache = mlx_reference.run(model, case["tokens"])
            logits.append(y)
            if case.get("states"):
                for name, x in mlx_reference.states_of(cache, kinds).items():
                    containers.write_npy(self.path("states", name + ".npy"), x)
        self.logits = self.rows(logits)
        containers.write_npy(self.path("logits.npy"), self.logits)
        with open(self.path("cases.json"), "w") as out:
            cases = ",\n".join(json.dumps(c) for c in self.cases)
            out.write('{"vocab_size": %d, "cases": [\n%s\n]}\n' % (self.text["vocab_size"], cases))
        self.report["logits_std"] = float(self.logits.std())

    # --- formats

    def write_hf(self):
        kind = self.pick("BF16", "F16", "F32")
        shards = self.pick(1, 2, 3)
        mlx_reference.save_checkpoint(self.weights, self.config, self.path("hf"), kind, shards, small_vectors=self.pick(False, True))
        containers.write_tokenizer(self.path("hf"), self.text["vocab_size"])
        self.report["variants"]["hf"] = {"path": "hf", "kind": "float", "what": f"{kind}, {shards} shard{'s' * (shards > 1)}"}

    def gguf_tensors(self, weights):
        return self.family.gguf_gather(self.config, weights) | self.family.gguf_values(self.config, weights)

    def write_gguf(self):
        kind = "F32" if hasattr(self.family, "fold") else self.pick("F16", "BF16", "F32")
        self.write_gguf_file("model", self.gguf_tensors(self.base), kind)
        self.report["variants"]["gguf"] = {"path": "model.gguf", "kind": "float", "what": kind}

    def write_gguf_file(self, name, tensors, kind):
        containers.write_gguf(self.path(name + ".gguf"), self.family.gguf_arch, self.name, self.family.gguf_keys(self.config), tensors, kind,
                              self.text["vocab_size"])

    def write_quantised(self, kind):
        """Logits of the exact values that the file holds. Where each value of a tensor goes is found with a tensor of
        indices in its place."""
        base, count, places = self.base, 0, {}
        for name, x in base.items():
            places[name] = np.arange(count, count + x.size, dtype=np.int64).reshape(x.shape)
            count += x.size
        flat = np.concatenate([x.reshape(-1) for x in base.values()])
        gathered, tensors = self.family.gguf_gather(self.config, places), self.gguf_tensors(base)
        types = 0
        for name, (raw, exact) in containers.quantised(tensors, kind).items():
            if raw is not exact:
                flat[gathered[name].reshape(-1)] = exact.reshape(-1)
                types += 1
        if types == 0:
            return
        self.write_gguf_file(kind, tensors, kind)
        values = {n: flat[p.reshape(-1)].reshape(p.shape) for n, p in places.items()}
        model = mlx_reference.from_folded(self.family, self.config, values)
        exact = self.run(model)
        with mlx_reference.RoundedActivations(32):
            yardstick = compare.loss(self.run(model), exact)
        self.write_variant(kind, kind + ".gguf", exact, yardstick, kind)

    def write_mlx(self, bits, group):
        """Through mlx-lm's own conversion."""
        dtype = self.pick("BF16", "F16", "F32")
        model = mlx_reference.load(self.config, mlx_reference.arrays(self.weights))
        mlx_reference.cast(model, dtype)
        overrides = self.pick({}, {"o_proj": {"group_size": 32, "bits": 8}, "layers.0.mlp.up_proj": False},
                              {"embed_tokens": {"group_size": 64, "bits": 8}, "embeddings": False, "q_proj": {"group_size": 128, "bits": 4}})
        config = mlx_reference.quantise(model, self.config, bits, group, overrides)
        name = f"mlx{bits}g{group}"
        mlx_reference.save_mlx(model, config, self.path(name), self.pick(1, 2))
        containers.write_tokenizer(self.path(name), self.text["vocab_size"])
        if hasattr(self.family, "fold"):
            mlx_reference.put_back_multipliers(model, self.config)
        exact_model = mlx_reference.dequantised(model, self.config)
        exact = self.run(exact_model)
        mlx_reference.cast(model, "BF16")
        yardstick = compare.loss(self.run(model), exact)
        with mlx_reference.RoundedActivations(32):
            int8 = compare.loss(self.run(exact_model), exact)
        self.write_variant(name, name, exact, {k: max(v, int8[k]) for k, v in yardstick.items()}, f"{bits} bit, groups of {group}, {dtype}")

    def write_variant(self, name, path, exact, yardstick, what):
        containers.write_npy(self.path(name + ".logits.npy"), exact)
        self.report["variants"][name] = {"path": path, "kind": "quantised experts" if self.has_experts else "quantised",
                                           "what": what, "yardstick": yardstick}

    def make(self):
        formats = self.args.formats
        self.write_reference()
        if "hf" in formats:
            self.write_hf()
        if "gguf" in formats:
            self.write_gguf()
        if "mlx" in formats:
            drawn = [(4, self.pick(64, 32, 128)), (8, self.pick(64, 32, 128))]
            for bits, group in [tuple(map(int, m.split(":"))) for m in self.args.mlx] or drawn:
                self.write_mlx(bits, group)
        if "quantised" in formats:
            for kind in self.args.gguf_types:
                self.write_quantised(kind)
        with open(self.path("reference.json"), "w") as out:
            json.dump(self.report, out, indent=1)
        print(f"{self.name}: std {self.report['logits_std']:.2f}, {', '.join(self.report['variants'])}", flush=True)


def main():
    args = parse()
    for name in args.family:
        for seed in args.seed:
            Fixture(name, seed, args).make()


if __name__ == "__main__":
    main()
