#!/usr/bin/env python3
"""Writes LFM2-350M with its true dimensions and random weights as an F16 GGUF, for speed comparisons.

Usage: random_lfm2.py OUT.gguf VOCAB.gguf [--seed N]

The tokenizer keys are copied from VOCAB.gguf (any file with a byte-level BPE tokenizer of at most 65,536 tokens, such as SmolLM2's) and padded
with unused tokens. Needs the `gguf` package and numpy; quantise with any llama-quantize. Weights are scaled so that activations stay of size
one: speed and cache behaviour are real, the text is not. Dimensions are those of the published config file.
"""
import argparse

import gguf
import numpy as np

from random_gguf import copy_vocabulary

VOCAB, HIDDEN, LAYERS, ATTENTION = 65536, 1024, 16, (2, 5, 8, 10, 12, 14)
HEADS, KV_HEADS, HEAD_DIM, FFN, TAPS, CONTEXT = 16, 8, 64, 4608, 3, 128000


def add_tensors(writer, rng):
    def matrix(name, rows, columns, gain=1.0):
        values = rng.standard_normal((rows, columns), dtype=np.float32) * np.float32(gain / np.sqrt(columns))
        writer.add_tensor(name + ".weight", values.astype(np.float16))

    def ones(name, n):
        writer.add_tensor(name + ".weight", np.ones(n, np.float32))

    matrix("token_embd", VOCAB, HIDDEN, np.sqrt(HIDDEN))
    ones("token_embd_norm", HIDDEN)
    for i in range(LAYERS):
        b = f"blk.{i}."
        ones(b + "attn_norm", HIDDEN)
        ones(b + "ffn_norm", HIDDEN)
        if i in ATTENTION:
            matrix(b + "attn_q", HEADS * HEAD_DIM, HIDDEN)
            matrix(b + "attn_k", KV_HEADS * HEAD_DIM, HIDDEN)
            matrix(b + "attn_v", KV_HEADS * HEAD_DIM, HIDDEN)
            matrix(b + "attn_output", HIDDEN, HEADS * HEAD_DIM, 0.5)
            ones(b + "attn_q_norm", HEAD_DIM)
            ones(b + "attn_k_norm", HEAD_DIM)
        else:
            matrix(b + "shortconv.in_proj", 3 * HIDDEN, HIDDEN)
            writer.add_tensor(b + "shortconv.conv.weight", (rng.standard_normal((HIDDEN, TAPS)) * 0.5).astype(np.float32))
            matrix(b + "shortconv.out_proj", HIDDEN, HIDDEN, 0.5)
        matrix(b + "ffn_gate", FFN, HIDDEN)
        matrix(b + "ffn_up", FFN, HIDDEN)
        matrix(b + "ffn_down", HIDDEN, FFN, 0.5)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("vocab")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    writer = gguf.GGUFWriter(args.out, "lfm2")
    copy_vocabulary(gguf.GGUFReader(args.vocab), writer, VOCAB)
    writer.add_name("random-lfm2-350m")
    writer.add_vocab_size(VOCAB)
    writer.add_block_count(LAYERS)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv([KV_HEADS if i in ATTENTION else 0 for i in range(LAYERS)])
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(1e6)
    writer.add_uint32("lfm2.shortconv.l_cache", TAPS)
    writer.add_file_type(1)
    add_tensors(writer, np.random.default_rng(args.seed))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file(progress=False)
    writer.close()


if __name__ == "__main__":
    main()
