"""The models of mlx-lm on a CPU, in float32: reference logits and states, and MLX directories as its converter makes them.

Only mlx_lm.models is imported, so that neither transformers nor a tokenizer is needed. Where mlx-lm differs from the
published model code, it is put right here:
  falcon_h1   its folding of the multipliers leaves key_multiplier out, and attention_in_multiplier of v_proj: it is
              given weights with all of them folded in
  falcon_h1, granitemoehybrid, mamba2   the gated norm is over the whole row: made to be over each of the groups
  granitemoehybrid   its default clamps dt from below: the configs made here say that it must not
"""
import importlib
import importlib.util
import json
import os
import sys
import types

import numpy as np


def import_models():
    """mlx_lm as a package without its own __init__, which wants transformers."""
    if "mlx_lm" not in sys.modules:
        package = types.ModuleType("mlx_lm")
        package.__path__ = list(importlib.util.find_spec("mlx_lm").submodule_search_locations)
        sys.modules["mlx_lm"] = package


import_models()
import mlx.core as mx  # noqa: E402
import mlx.nn as nn  # noqa: E402
from mlx.utils import tree_flatten, tree_map_with_path  # noqa: E402
from mlx_lm.models.cache import make_prompt_cache  # noqa: E402

from mlx_lm.models.switch_layers import SwitchLinear  # noqa: E402

mx.set_default_device(mx.cpu)
DTYPES = {"F32": mx.float32, "F16": mx.float16, "BF16": mx.bfloat16}
RENAMED = {"mistral": "llama"}


# ------------------------------------------------------------------ models


def switch_in_float32(module, x, indices, sorted_indices=False):
    """SwitchLinear where MLX has no other type on a CPU."""
    weight = module["weight"].astype(mx.float32).swapaxes(-1, -2)
    y = mx.gather_mm(x.astype(mx.float32), weight, rhs_indices=indices, sorted_indices=sorted_indices).astype(x.dtype)
    return y + mx.expand_dims(module["bias"][indices], -2) if "bias" in module else y


SwitchLinear.__call__ = switch_in_float32


def groups_of(config):
    return config.get("mamba_n_groups") or config.get("n_groups") or 1


def norm_by_groups(model, groups):
    """The gated norms of mlx-lm that ignore the groups."""
    for _, module in model.named_modules():
        if not type(module).__name__.endswith("RMSNormGated") or hasattr(module, "group_size") or groups == 1:
            continue
        eps = module.eps if hasattr(module, "eps") else module.variance_epsilon

        def call(self, x, gate=None, eps=eps):
            if gate is not None:
                x = x * nn.silu(gate)
            parts = mx.unflatten(x, axis=-1, shape=(groups, -1))
            return self.weight * mx.fast.rms_norm(parts, None, eps).flatten(-2)

        module.__class__ = type("GroupedNorm", (type(module),), {"__call__": call})


def new_model(config):
    name = config["model_type"]
    module = importlib.import_module("mlx_lm.models." + RENAMED.get(name, name))
    model = module.Model(module.ModelArgs.from_dict(json.loads(json.dumps(config))))
    norm_by_groups(model, groups_of(config))
    model.eval()
    return model


def from_checkpoint(family, config, weights):
    """The model in float32, from weights under Hugging Face names."""
    return from_folded(family, config, family.fold(config, weights) if hasattr(family, "fold") else weights)


def from_folded(family, config, weights):
    """The same, from weights that have all multipliers inside. Convolutions in mlx-lm's layout keep it from folding."""
    if hasattr(family, "fold"):
        weights = {k: v.swapaxes(1, 2) if "conv1d.weight" in k else v for k, v in weights.items()}
    return load(config, arrays(weights))


def arrays(weights):
    return {k: mx.array(np.ascontiguousarray(v, np.float32)) for k, v in weights.items()}


def load(config, weights):
    model = new_model(config)
    if hasattr(model, "sanitize"):
        weights = model.sanitize(weights)
    model.load_weights(list(weights.items()))
    return model


def run(model, tokens):
    """Logits [T, vocab] and the caches."""
    cache = make_prompt_cache(model)
    logits = model(mx.array(tokens)[None], cache=cache)[0].astype(mx.float32)
    mx.eval(logits)
    return np.array(logits), cache


def states_of(cache, kinds):
    """{name: array} in the checkpoint's order; `kinds` as families say them, None: a layer without a cache."""
    out, at = {}, iter(cache)
    for i, kind in enumerate(kinds):
        if kind is None:
            continue
        for part, c in zip(kind.split("+"), split(next(at))):
            if part in ("kv", "latent"):
                # All positions in order, of a window too: its cache turns only after the first pass.
                assert c.offset <= c.keys.shape[2]
                out[f"layer{i}_k"] = c.keys[0, :, : c.offset]
                out[f"layer{i}_v"] = c.values[0, :, : c.offset]
                continue
            *conv, memory = c.cache if part != "conv" else [c.cache[0], None]
            out[f"layer{i}_conv"] = mx.concatenate([x[0] for x in conv], axis=-1)
            if memory is not None:
                out[f"layer{i}_{part}"] = memory[0]
    return {k: np.array(v.astype(mx.float32)) for k, v in out.items()}


def split(cache):
    return getattr(cache, "caches", [cache])


# ------------------------------------------------------------------ quantised


def cast(model, dtype):
    keep = getattr(model, "cast_predicate", lambda _: True)
    model.update(tree_map_with_path(
        lambda k, v: v.astype(DTYPES[dtype]) if keep(k) and mx.issubdtype(v.dtype, mx.floating) else v, model.parameters()))


def quantise(model, config, bits, group, overrides):
    """In place, as mlx_lm.convert does; returns config.json. `overrides`: {end of a layer's name: settings, or False}."""
    settings = {"group_size": group, "bits": bits, "mode": "affine"}
    own = getattr(model, "quant_predicate", None)

    def predicate(path, module):
        if not hasattr(module, "to_quantized") or module.weight.shape[-1] % group != 0:
            return False
        said = own(path, module) if own is not None else True
        for suffix, value in overrides.items():
            if path.endswith(suffix):
                said = value
        if isinstance(said, dict) and module.weight.shape[-1] % said["group_size"] != 0:
            return False
        if said is not True:
            settings[path] = said
        return said

    nn.quantize(model, group, bits, class_predicate=predicate)
    return config | {"quantization": settings, "quantization_config": settings}


def is_quantised(module):
    return "scales" in module and "bits" in module.__dict__


def dequantised(model, config):
    """A float32 model with the very values of a quantised one."""
    values = {}
    for path, module in model.named_modules():
        if is_quantised(module):
            parts = [module[k].astype(mx.float32) for k in ("scales", "biases")]
            values[path + ".weight"] = mx.dequantize(module.weight, *parts, module.group_size, module.bits)
    packed = {name + suffix for name in [n.removesuffix(".weight") for n in values] for suffix in (".weight", ".scales", ".biases")}
    values |= {name: x.astype(mx.float32) for name, x in tree_flatten(model.parameters()) if name not in packed}
    exact = new_model(config)
    if "lm_head" in exact and "lm_head" not in model:  # tied only once it has seen the weights (gemma3)
        exact.pop("lm_head")
        exact.tie_word_embeddings = True
    exact.load_weights(list(values.items()))
    return exact


def put_back_multipliers(model, config):
    """Into an MLX Falcon-H1 what mlx-lm's folding leaves out of it."""
    for path, module in model.named_modules():
        factor = {"k_proj": config["key_multiplier"], "v_proj": config["attention_in_multiplier"]}.get(path.split(".")[-1])
        if factor is not None:
            for name in ("scales", "biases") if is_quantised(module) else ("weight",):
                module[name] = module[name] * factor


def save_mlx(model, config, directory, shards=1):
    save(directory, dict(tree_flatten(model.parameters())), config, shards, "mlx")


def save(directory, arrays, config, shards, made_by):
    os.makedirs(directory, exist_ok=True)
    names = sorted(arrays)
    files = ["model.safetensors"] if shards == 1 else [f"model-{i + 1:05}-of-{shards:05}.safetensors" for i in range(shards)]
    where = {}
    for i, file in enumerate(files):
        part = names[i * len(names) // shards : (i + 1) * len(names) // shards]
        mx.save_safetensors(os.path.join(directory, file), {n: arrays[n] for n in part}, metadata={"format": made_by})
        where |= dict.fromkeys(part, file)
    if shards > 1:
        index = {"metadata": {"total_size": sum(a.nbytes for a in arrays.values())}, "weight_map": where}
        with open(os.path.join(directory, "model.safetensors.index.json"), "w") as out:
            json.dump(index, out, indent=0)
    with open(os.path.join(directory, "config.json"), "w") as out:
        json.dump(config, out, indent=1)


def save_checkpoint(weights, config, directory, dtype, shards=1, small_vectors=False):
    """A Hugging Face directory. small_vectors: vectors in `dtype` too, as published checkpoints have them."""
    arrays = {}
    for name, x in weights.items():
        a = mx.array(np.ascontiguousarray(x, np.float32))
        if (x.ndim >= 2 and "A_log" not in name) or small_vectors:
            b = a.astype(DTYPES[dtype])
            assert mx.array_equal(b.astype(mx.float32), a), name
            a = b
        arrays[name] = a
    save(directory, arrays, config | {"torch_dtype": {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}[dtype]}, shards, "pt")


# ------------------------------------------------------------------ rounded activations


def round_blocks(x, block):
    """As int8 with one scale for each block of a row, which is what integer kernels multiply."""
    if x.shape[-1] % block != 0:
        return x
    parts = mx.unflatten(x, axis=-1, shape=(-1, block))
    scale = mx.max(mx.abs(parts), axis=-1, keepdims=True) / 127
    rounded = mx.round(parts / mx.where(scale == 0, 1, scale)) * scale
    return rounded.flatten(-2)


class RoundedActivations:
    """While it is open, every linear map rounds its input."""

    def __init__(self, block):
        self.block, self.kept = block, {}
        self.calls = [(nn.Linear, "__call__"), (SwitchLinear, "__call__"), (nn.Embedding, "as_linear")]

    def __enter__(self):
        for owner, name in self.calls:
            plain = getattr(owner, name)
            self.kept[owner, name] = plain

            def call(module, x, *rest, plain=plain, **named):
                return plain(module, round_blocks(x, self.block), *rest, **named)

            setattr(owner, name, call)
        return self

    def __exit__(self, *_):
        for (owner, name), plain in self.kept.items():
            setattr(owner, name, plain)
