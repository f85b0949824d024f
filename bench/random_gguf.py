#!/usr/bin/env python3
"""Writes a GGUF with true dimensions and random weights, for speed comparisons of hybrids with Mamba2.

Usage: random_gguf.py granite-4.0-h-350m|falcon-h1-0.5b OUT.gguf VOCAB.gguf [--f32] [--seed N]

The tokenizer keys are copied from VOCAB.gguf (any file with a byte-level BPE tokenizer) and padded with unused tokens to the model's
size. Needs the `gguf` package and numpy; quantise with any llama-quantize. Weights are scaled so that activations stay of size one: speed
and cache behaviour are real, the text is not. Dimensions are those of the published config files.
"""
import argparse

import gguf
import numpy as np

PRESETS = {
    "granite-4.0-h-350m": dict(
        arch="granitehybrid", vocab=100352, hidden=768, layers=32, attention=(10, 13, 17, 27), heads=12, kv_heads=4, head_dim=64, ffn=2048,
        ssm_heads=48, ssm_head_dim=32, states=128, groups=1, conv=4, norm=True, tied=True, context=32768),
    "falcon-h1-0.5b": dict(
        arch="falcon-h1", vocab=32784, hidden=1024, layers=36, attention=range(36), heads=8, kv_heads=2, head_dim=64, ffn=2048,
        ssm_heads=24, ssm_head_dim=64, states=128, groups=1, conv=4, norm=False, tied=False, context=16384),
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
    a, granite = p["arch"], p["arch"] == "granitehybrid"
    writer.add_name(f"random-{name}")
    writer.add_vocab_size(p["vocab"])
    writer.add_block_count(p["layers"])
    writer.add_context_length(p["context"])
    writer.add_embedding_length(p["hidden"])
    writer.add_feed_forward_length(p["ffn"])
    writer.add_head_count(p["heads"])
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_ssm_conv_kernel(p["conv"])
    writer.add_ssm_inner_size(p["ssm_heads"] * p["ssm_head_dim"])
    writer.add_ssm_state_size(p["states"])
    writer.add_ssm_time_step_rank(p["ssm_heads"])
    writer.add_ssm_group_count(p["groups"])
    if granite:
        writer.add_head_count_kv([p["kv_heads"] if i in p["attention"] else 0 for i in range(p["layers"])])
        for key, value in (("embedding_scale", 12.0), ("residual_scale", 0.246), ("logit_scale", 3.0), ("attention.scale", 0.015625)):
            writer.add_float32(f"{a}.{key}", value)
        writer.add_bool(f"{a}.rope.scaling.finetuned", False)
        writer.add_rope_dimension_count(p["head_dim"])
    else:
        writer.add_head_count_kv(p["kv_heads"])
        writer.add_key_length(p["head_dim"])
        writer.add_value_length(p["head_dim"])
        writer.add_rope_freq_base(1e11)


def add_tensors(writer, p, rng, weight_type):
    hidden, inner = p["hidden"], p["ssm_heads"] * p["ssm_head_dim"]
    channels = inner + 2 * p["groups"] * p["states"]

    def matrix(name, rows, columns, gain=1.0):
        values = rng.standard_normal((rows, columns), dtype=np.float32) * np.float32(gain / np.sqrt(columns))
        writer.add_tensor(name, values.astype(weight_type))

    def vector(name, shape, low=1.0, high=1.0):
        writer.add_tensor(name, rng.uniform(low, high, shape).astype(np.float32))

    matrix("token_embd.weight", p["vocab"], hidden, np.sqrt(hidden))
    vector("output_norm.weight", hidden)
    if not p["tied"]:
        matrix("output.weight", p["vocab"], hidden)
    for i in range(p["layers"]):
        b = f"blk.{i}."
        attention, falcon = i in p["attention"], p["arch"] == "falcon-h1"
        vector(b + "attn_norm.weight", hidden)
        vector(b + ("ffn_norm" if falcon else "ffn_norm.weight"), hidden)
        if attention:
            matrix(b + "attn_q.weight", p["heads"] * p["head_dim"], hidden)
            matrix(b + "attn_k.weight", p["kv_heads"] * p["head_dim"], hidden)
            matrix(b + "attn_v.weight", p["kv_heads"] * p["head_dim"], hidden)
            matrix(b + "attn_output.weight", hidden, p["heads"] * p["head_dim"], 0.5)
        if falcon or not attention:
            matrix(b + "ssm_in.weight", inner + channels + p["ssm_heads"], hidden)
            writer.add_tensor(b + "ssm_conv1d.weight", (rng.standard_normal((channels, p["conv"])) * 0.5).astype(np.float32))
            vector(b + "ssm_conv1d.bias", channels, -0.1, 0.1)
            vector(b + "ssm_dt.bias", p["ssm_heads"], -4, -1)
            vector(b + "ssm_a", (p["ssm_heads"], 1), -8, -1)
            vector(b + "ssm_d", (p["ssm_heads"], 1))
            if p["norm"]:
                vector(b + "ssm_norm.weight", (p["groups"], inner // p["groups"]))
            matrix(b + "ssm_out.weight", hidden, inner, 0.5)
        matrix(b + "ffn_gate.weight", p["ffn"], hidden)
        matrix(b + "ffn_up.weight", p["ffn"], hidden)
        matrix(b + "ffn_down.weight", hidden, p["ffn"], 0.5)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("preset", choices=sorted(PRESETS))
    parser.add_argument("out")
    parser.add_argument("vocab")
    parser.add_argument("--f32", action="store_true", help="float32 matrices instead of float16")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    p = PRESETS[args.preset]
    writer = gguf.GGUFWriter(args.out, p["arch"])
    copy_vocabulary(gguf.GGUFReader(args.vocab), writer, p["vocab"])
    add_metadata(writer, args.preset, p)
    writer.add_file_type(0 if args.f32 else 1)
    add_tensors(writer, p, np.random.default_rng(args.seed), np.float32 if args.f32 else np.float16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file(progress=False)
    writer.close()


main()
