#!/usr/bin/env python3
"""Writes a GGUF with true dimensions and random weights, for speed comparisons and for the sizes of states.

Usage: random_gguf.py PRESET OUT.gguf VOCAB.gguf [--f32 | --q4_0] [--seed N]
       random_gguf.py --list

The tokenizer keys are copied from VOCAB.gguf (any file with a byte-level BPE tokenizer) and padded with unused tokens to the model's
size. Needs the `gguf` package and numpy; quantise F16 files with any llama-quantize. Weights are scaled so that activations stay of size
one: speed and cache behaviour are real, the text is not. Dimensions are those of the published config files; kimi-linear-48b has 8 of its
256 experts, which changes no state. --q4_0 draws 4-bit blocks directly: a 4B model in a minute.
"""
import argparse
import sys

import gguf
import numpy as np

NEMOTRON_3_NANO_4B = "M-M-M-MM-M-M*-M-M*-M-M-M*-M-M-MM*-MMM-M-M-"
PRESETS = {
    "granite-4.0-h-350m": dict(
        arch="granitehybrid", vocab=100352, hidden=768, layers=32, attention=(10, 13, 17, 27), heads=12, kv_heads=4, head_dim=64, ffn=2048,
        ssm_heads=48, ssm_head_dim=32, states=128, groups=1, conv=4, norm=True, tied=True, context=32768),
    "falcon-h1-0.5b": dict(
        arch="falcon-h1", vocab=32784, hidden=1024, layers=36, attention=range(36), heads=8, kv_heads=2, head_dim=64, ffn=2048,
        ssm_heads=24, ssm_head_dim=64, states=128, groups=1, conv=4, norm=False, tied=False, context=16384),
    "mamba2-370m": dict(
        arch="mamba2", vocab=50288, hidden=1024, layers=48, attention=(), heads=0, kv_heads=0, head_dim=0, ffn=0,
        ssm_heads=32, ssm_head_dim=64, states=128, groups=1, conv=4, norm=True, tied=True, context=1 << 20),
    "nemotron-3-nano-4b": dict(
        arch="nemotron_h", vocab=131072, hidden=3136, layers=42, pattern=NEMOTRON_3_NANO_4B,
        attention=[i for i, c in enumerate(NEMOTRON_3_NANO_4B) if c == "*"], heads=40, kv_heads=8, head_dim=128, ffn=12544,
        ssm_heads=96, ssm_head_dim=80, states=128, groups=8, conv=4, norm=True, tied=False, context=262144),
    "kimi-linear-48b": dict(
        arch="kimi-linear", vocab=163840, hidden=2304, layers=27, attention=(3, 7, 11, 15, 19, 23, 26), heads=32, kv_heads=1, head_dim=128,
        ffn=9216, latent=512, shared_key=64, experts=8, experts_used=8, expert_ffn=1024, dense=1, conv=4, tied=False, context=1 << 20),
}


def copy_vocabulary(reader, writer, size):
    """Copies tokenizer.*; tokens beyond those of the file are unused ones."""
    for field in reader.fields.values():
        if not field.name.startswith("tokenizer."):
            continue
        value, kind = field.contents(), field.types[0]
        if field.name == "tokenizer.ggml.tokens":
            assert len(value) <= size, f"the vocabulary has {len(value)} tokens, wanted at most {size}"
            value = value + [f"<|unused_{i}|>" for i in range(len(value), size)]
        if field.name == "tokenizer.ggml.token_type":
            value = value + [int(gguf.TokenType.UNUSED)] * (size - len(value))
        if kind == gguf.GGUFValueType.ARRAY:
            writer.add_key_value(field.name, value, kind, sub_type=field.types[-1])
        else:
            writer.add_key_value(field.name, value, kind)


def add_metadata(writer, name, p):
    writer.add_name(f"random-{name}")
    writer.add_vocab_size(p["vocab"])
    writer.add_block_count(p["layers"])
    writer.add_context_length(p["context"])
    writer.add_embedding_length(p["hidden"])
    writer.add_head_count(p["heads"])
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_ssm_conv_kernel(p["conv"])
    if "ssm_heads" in p:
        writer.add_ssm_inner_size(p["ssm_heads"] * p["ssm_head_dim"])
        writer.add_ssm_state_size(p["states"])
        writer.add_ssm_time_step_rank(p["ssm_heads"])
        writer.add_ssm_group_count(p["groups"])
    {"granitehybrid": add_granite, "falcon-h1": add_falcon, "mamba2": add_mamba2, "nemotron_h": add_nemotron,
     "kimi-linear": add_kimi}[p["arch"]](writer, p)


def kv_heads_by_layer(p):
    return [p["kv_heads"] if i in p["attention"] else 0 for i in range(p["layers"])]


def add_granite(writer, p):
    writer.add_feed_forward_length(p["ffn"])
    writer.add_head_count_kv(kv_heads_by_layer(p))
    for key, value in (("embedding_scale", 12.0), ("residual_scale", 0.246), ("logit_scale", 3.0), ("attention.scale", 0.015625)):
        writer.add_float32(f"{p['arch']}.{key}", value)
    writer.add_bool(f"{p['arch']}.rope.scaling.finetuned", False)
    writer.add_rope_dimension_count(p["head_dim"])


def add_falcon(writer, p):
    writer.add_feed_forward_length(p["ffn"])
    writer.add_head_count_kv(p["kv_heads"])
    writer.add_key_length(p["head_dim"])
    writer.add_value_length(p["head_dim"])
    writer.add_rope_freq_base(1e11)


def add_mamba2(writer, p):
    writer.add_feed_forward_length(0)


def add_nemotron(writer, p):
    writer.add_feed_forward_length([p["ffn"] if c == "-" else 0 for c in p["pattern"]])
    writer.add_head_count_kv(kv_heads_by_layer(p))
    writer.add_key_length(p["head_dim"])
    writer.add_value_length(p["head_dim"])
    writer.add_bool(f"{p['arch']}.rope.scaling.finetuned", False)


def add_kimi(writer, p):
    writer.add_feed_forward_length(p["ffn"])
    writer.add_head_count_kv(kv_heads_by_layer(p))
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(p["shared_key"])
    sizes = {"attention.key_length": p["latent"] + p["shared_key"], "attention.value_length": p["latent"], "attention.kv_lora_rank": p["latent"],
             "attention.key_length_mla": p["head_dim"] + p["shared_key"], "attention.value_length_mla": p["head_dim"],
             "kda.head_dim": p["head_dim"], "expert_count": p["experts"], "expert_used_count": p["experts_used"],
             "expert_feed_forward_length": p["expert_ffn"], "expert_shared_count": 1, "leading_dense_block_count": p["dense"],
             "expert_gating_func": 2}
    for key, value in sizes.items():
        writer.add_uint32(f"{p['arch']}.{key}", value)
    writer.add_float32(f"{p['arch']}.expert_weights_scale", 2.446)


class Tensors:
    def __init__(self, writer, seed, kind):
        self.writer, self.rng, self.kind = writer, np.random.default_rng(seed), kind

    def matrix(self, name, *shape, gain=1.0):
        deviation = gain / np.sqrt(shape[-1])
        if self.kind == "q4_0" and shape[-1] % 32 == 0:
            blocks = self.rng.integers(0, 256, (*shape[:-1], shape[-1] // 32, 18), dtype=np.uint8)
            scale = np.array([deviation / 4.6], np.float16)  # 4.6: the deviation of a uniform -8 .. 7
            blocks[..., :2] = scale.view(np.uint8)
            self.writer.add_tensor(name, blocks.reshape(*shape[:-1], -1), raw_dtype=gguf.GGMLQuantizationType.Q4_0)
            return
        values = self.rng.standard_normal(shape, dtype=np.float32) * np.float32(deviation)
        self.writer.add_tensor(name, values.astype(np.float32 if self.kind == "f32" else np.float16))

    def vector(self, name, shape, low=1.0, high=1.0):
        self.writer.add_tensor(name, self.rng.uniform(low, high, shape).astype(np.float32))

    def conv(self, name, *shape):
        self.writer.add_tensor(name, (self.rng.standard_normal(shape) * 0.5).astype(np.float32))


def attention_block(t, b, p):
    hidden, q, kv = p["hidden"], p["heads"] * p["head_dim"], p["kv_heads"] * p["head_dim"]
    t.matrix(b + "attn_q.weight", q, hidden)
    t.matrix(b + "attn_k.weight", kv, hidden)
    t.matrix(b + "attn_v.weight", kv, hidden)
    t.matrix(b + "attn_output.weight", hidden, q, gain=0.5)


def mamba_block(t, b, p):
    inner = p["ssm_heads"] * p["ssm_head_dim"]
    channels = inner + 2 * p["groups"] * p["states"]
    t.matrix(b + "ssm_in.weight", inner + channels + p["ssm_heads"], p["hidden"])
    t.conv(b + "ssm_conv1d.weight", channels, p["conv"])
    t.vector(b + "ssm_conv1d.bias", channels, -0.1, 0.1)
    t.vector(b + "ssm_dt.bias", p["ssm_heads"], -4, -1)
    t.vector(b + "ssm_a", (p["ssm_heads"], 1), -8, -1)
    t.vector(b + "ssm_d", (p["ssm_heads"], 1))
    if p["norm"]:
        t.vector(b + "ssm_norm.weight", (p["groups"], inner // p["groups"]))
    t.matrix(b + "ssm_out.weight", p["hidden"], inner, gain=0.5)


def glu_block(t, b, hidden, ffn, suffix="", experts=()):
    t.matrix(f"{b}ffn_gate{suffix}.weight", *experts, ffn, hidden)
    t.matrix(f"{b}ffn_up{suffix}.weight", *experts, ffn, hidden)
    t.matrix(f"{b}ffn_down{suffix}.weight", *experts, hidden, ffn, gain=0.5)


def kda_block(t, b, p):
    hidden, d, inner = p["hidden"], p["head_dim"], p["heads"] * p["head_dim"]
    for x in "qkv":
        t.matrix(f"{b}attn_{x}.weight", inner, hidden)
        t.conv(f"{b}ssm_conv1d_{x}.weight", 1, inner, 1, p["conv"])
    for x in "fg":
        t.matrix(f"{b}ssm_{x}_a.weight", d, hidden)
        t.matrix(f"{b}ssm_{x}_b.weight", inner, d)
    t.matrix(b + "ssm_beta.weight", p["heads"], hidden)
    t.vector(b + "ssm_a", (1, 1, p["heads"], 1), -8, -1)
    t.vector(b + "ssm_dt.bias", inner, -4, -1)
    t.vector(b + "ssm_norm.weight", d)
    t.matrix(b + "attn_output.weight", hidden, inner, gain=0.5)


def latent_attention_block(t, b, p):
    hidden, heads, d, rank, shared = p["hidden"], p["heads"], p["head_dim"], p["latent"], p["shared_key"]
    t.matrix(b + "attn_q.weight", heads * (d + shared), hidden)
    t.matrix(b + "attn_kv_a_mqa.weight", rank + shared, hidden)
    t.vector(b + "attn_kv_a_norm.weight", rank)
    t.matrix(b + "attn_k_b.weight", heads, rank, d)
    t.matrix(b + "attn_v_b.weight", heads, d, rank)
    t.matrix(b + "attn_output.weight", hidden, heads * d, gain=0.5)


def kimi_layer(t, b, i, p):
    (latent_attention_block if i in p["attention"] else kda_block)(t, b, p)
    t.vector(b + "ffn_norm.weight", p["hidden"])
    if i < p["dense"]:
        glu_block(t, b, p["hidden"], p["ffn"])
        return
    t.matrix(b + "ffn_gate_inp.weight", p["experts"], p["hidden"])
    t.vector(b + "exp_probs_b.bias", p["experts"], -0.1, 0.1)
    glu_block(t, b, p["hidden"], p["expert_ffn"], "_shexp")
    glu_block(t, b, p["hidden"], p["expert_ffn"], "_exps", (p["experts"],))


def nemotron_layer(t, b, kind, p):
    if kind == "M":
        mamba_block(t, b, p)
    elif kind == "*":
        attention_block(t, b, p)
    else:
        t.matrix(b + "ffn_up.weight", p["ffn"], p["hidden"])
        t.matrix(b + "ffn_down.weight", p["hidden"], p["ffn"], gain=0.5)


def hybrid_layer(t, b, i, p):
    """Granite-4.0-H: attention or Mamba2; Falcon-H1: both side by side."""
    falcon = p["arch"] == "falcon-h1"
    t.vector(b + ("ffn_norm" if falcon else "ffn_norm.weight"), p["hidden"])
    if i in p["attention"]:
        attention_block(t, b, p)
    if falcon or i not in p["attention"]:
        mamba_block(t, b, p)
    glu_block(t, b, p["hidden"], p["ffn"])


def add_tensors(t, p):
    t.matrix("token_embd.weight", p["vocab"], p["hidden"], gain=np.sqrt(p["hidden"]))
    t.vector("output_norm.weight", p["hidden"])
    if not p["tied"]:
        t.matrix("output.weight", p["vocab"], p["hidden"])
    for i in range(p["layers"]):
        b = f"blk.{i}."
        t.vector(b + "attn_norm.weight", p["hidden"])
        if p["arch"] == "mamba2":
            mamba_block(t, b, p)
        elif p["arch"] == "nemotron_h":
            nemotron_layer(t, b, p["pattern"][i], p)
        elif p["arch"] == "kimi-linear":
            kimi_layer(t, b, i, p)
        else:
            hybrid_layer(t, b, i, p)


def main():
    if sys.argv[1:] == ["--list"]:
        sys.exit("\n".join(sorted(PRESETS)))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("preset", choices=sorted(PRESETS))
    parser.add_argument("out")
    parser.add_argument("vocab")
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--f32", dest="kind", action="store_const", const="f32", help="float32 matrices instead of float16")
    kinds.add_argument("--q4_0", dest="kind", action="store_const", const="q4_0", help="4-bit matrices")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    p = PRESETS[args.preset]
    writer = gguf.GGUFWriter(args.out, p["arch"])
    copy_vocabulary(gguf.GGUFReader(args.vocab), writer, p["vocab"])
    add_metadata(writer, args.preset, p)
    writer.add_file_type({"f32": 0, "q4_0": 2}.get(args.kind, 1))
    add_tensors(Tensors(writer, args.seed, args.kind), p)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file(progress=False)
    writer.close()


if __name__ == "__main__":
    main()
