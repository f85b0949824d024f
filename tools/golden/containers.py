"""What surrounds the weights: GGUF files, a byte-level tokenizer, and .npy arrays."""
import json
import os

import gguf
import numpy as np

F32_PARTS = ("conv1d", "shortconv.conv", "ffn_gate_inp", "norm", "ssm_a", "ssm_d", "bias", "rope_freqs")
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
PATTERN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
TEMPLATE = ("{%- for m in messages %}{{- '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}{%- endfor %}"
            "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}")


def tokens(vocab):
    """The 256 bytes in their usual printable form, fillers, and the special ones at the end."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {b: chr(b) for b in shown}
    for byte in range(256):
        if byte not in table:
            table[byte] = chr(256 + len(table) - len(shown))
    return [table[b] for b in range(256)] + [f"filler{i}" for i in range(vocab - 256 - len(SPECIAL))]


def write_tokenizer(directory, vocab):
    plain = tokens(vocab)
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": PATTERN}, "behavior": "Isolated", "invert": False}
    added = [{"id": len(plain) + i, "content": s, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
             for i, s in enumerate(SPECIAL)]
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "", "end_of_word_suffix": "", "fuse_unk": False,
             "byte_fallback": False, "ignore_merges": False, "vocab": {t: i for i, t in enumerate(plain)}, "merges": []}
    tokenizer = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
                 "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]}, "post_processor": None, "decoder": byte_level,
                 "model": model}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": None, "eos_token": SPECIAL[2], "pad_token": SPECIAL[0],
              "model_max_length": 4096, "chat_template": TEMPLATE}
    for name, value in (("tokenizer.json", tokenizer), ("tokenizer_config.json", config)):
        with open(os.path.join(directory, name), "w") as out:
            json.dump(value, out)


def tokenizer_keys(vocab):
    plain = tokens(vocab)
    return {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "qwen2", "tokenizer.ggml.tokens": plain + list(SPECIAL),
            "tokenizer.ggml.token_type": [1] * len(plain) + [3] * len(SPECIAL), "tokenizer.ggml.merges": [],
            "tokenizer.ggml.eos_token_id": vocab - 1, "tokenizer.ggml.add_bos_token": False, "tokenizer.chat_template": TEMPLATE}


def is_quantisable(name, x, kind):
    block = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]][0]
    return x.ndim >= 2 and x.shape[-1] % block == 0 and not any(p in name for p in F32_PARTS)


def quantised(tensors, kind):
    """{name: (bytes as the file has them, exact values)}; those that cannot be of `kind` stay float32."""
    out = {}
    qtype = gguf.GGMLQuantizationType[kind]
    for name, x in tensors.items():
        x = np.ascontiguousarray(x, np.float32)
        if is_quantisable(name, x, kind):
            raw = gguf.quants.quantize(x, qtype)
            out[name] = (raw, gguf.quants.dequantize(raw, qtype).astype(np.float32))
        else:
            out[name] = (x, x)
    return out


def write_gguf(path, arch, name, keys, tensors, kind, vocab):
    """tensors: {name: array}; kind: F32, F16, BF16, or what `quantised` knows."""
    w = gguf.GGUFWriter(path, arch)
    w.add_name(name)
    w.add_quantization_version(2)
    for key, value in ({f"{arch}.{k}": v for k, v in keys.items()} | tokenizer_keys(vocab)).items():
        if isinstance(value, bool):
            w.add_bool(key, value)
        elif isinstance(value, int):
            w.add_uint32(key, value)
        elif isinstance(value, float):
            w.add_float32(key, value)
        elif isinstance(value, str):
            w.add_string(key, value)
        elif value:
            w.add_array(key, value)
    for tensor, x in tensors.items():
        x = np.ascontiguousarray(x, np.float32)
        if kind == "F32" or x.ndim < 2 or any(p in tensor for p in F32_PARTS):
            w.add_tensor(tensor, x)
        elif kind == "F16":
            assert np.array_equal(x.astype(np.float16).astype(np.float32), x), tensor
            w.add_tensor(tensor, x.astype(np.float16))
        elif kind == "BF16" or is_quantisable(tensor, x, kind):
            qtype = gguf.GGMLQuantizationType[kind]
            w.add_tensor(tensor, gguf.quants.quantize(x, qtype), raw_dtype=qtype)
        else:
            w.add_tensor(tensor, x)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file(progress=False)
    w.close()


def write_npy(path, x):
    """Little-endian float32, C order, header version 1.0."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as out:
        np.lib.format.write_array(out, np.ascontiguousarray(x, "<f4"), version=(1, 0))
