#!/usr/bin/env python3
"""Makes a tokenizer.json for tools/compare_tokenizers.py from vocabularies that are published in another form, with the conversions
of the `transformers` package: tiktoken ranks, Mistral's tekken.json, SentencePiece models and their GGUF form.

    collect_tokenizers.py tiktoken FILE.tiktoken FOLDER --pre qwen35
    collect_tokenizers.py tekken tekken.json FOLDER
    collect_tokenizers.py sentencepiece FILE.model|FILE.gguf FOLDER"""
import argparse
import base64
import json
import pathlib

import gguf_vocabulary


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("form", choices=["tiktoken", "tekken", "sentencepiece"])
    parser.add_argument("file", type=pathlib.Path)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--pre", help="GGUF name of the pre-tokenizer of a tiktoken file")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    if args.form == "sentencepiece":
        tokenizer = sentence_piece(args.file)
    elif args.form == "tekken":
        tokenizer = tekken(args.file)
    else:
        lines = [line.split() for line in args.file.read_bytes().splitlines() if line]
        ranks = {base64.b64decode(token): int(rank) for token, rank in lines}
        specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
        tokenizer = byte_level(ranks, 0, {len(ranks) + i: t for i, t in enumerate(specials)}, args.pre)
    (args.folder / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")


def tekken(path):
    """Specials take the first ids; the file holds more ranks than the models use."""
    data = json.loads(path.read_text(encoding="utf-8"))
    config = data["config"]
    offset = config["default_num_special_tokens"]
    ranks = {base64.b64decode(t["token_bytes"]): t["rank"] for t in data["vocab"][:config["default_vocab_size"] - offset]}
    names = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]",
             "[TOOL_CALLS]"]
    specials = {i: names[i] if i < len(names) else f"<SPECIAL_{i}>" for i in range(offset)}
    return byte_level(ranks, offset, specials, "tekken")


def byte_level(ranks, offset, specials, pre):
    from transformers.convert_slow_tokenizer import bytes_to_unicode
    chars = bytes_to_unicode()
    text = {token: "".join(chars[b] for b in token) for token in ranks}
    merges = []
    for token, rank in sorted(ranks.items(), key=lambda r: r[1]):
        cuts = [(token[:i], token[i:]) for i in range(1, len(token)) if token[:i] in ranks and token[i:] in ranks]
        merges.extend([text[a], text[b]] for a, b in sorted(cuts, key=lambda c: (ranks[c[0]], ranks[c[1]])))
    tokens = {specials[i]: i for i in sorted(specials)} | {text[t]: r + offset for t, r in ranks.items()}
    order = sorted(tokens.items(), key=lambda t: t[1])
    types = [gguf_vocabulary.CONTROL if i in specials else gguf_vocabulary.NORMAL for _, i in order]
    made = gguf_vocabulary.to_json({"tokens": [t for t, _ in order], "token_type": types, "merges": merges}, pre)
    made["model"]["ignore_merges"] = gguf_vocabulary.FAMILIES[pre][2]
    return made


def sentence_piece(path):
    """As transformers' LlamaConverter lays it out: Prepend and Replace, byte fallback."""
    from transformers.convert_slow_tokenizer import SentencePieceExtractor
    from transformers.tokenization_utils_tokenizers import generate_merges
    if path.suffix == ".gguf":
        metadata = gguf_vocabulary.read(path)
        vocab = {t: i for i, t in enumerate(metadata["tokens"])}
        types = metadata["token_type"]
        scores = dict(zip(metadata["tokens"], metadata["scores"]))
        specials = [t for t, i in vocab.items() if types[i] in (gguf_vocabulary.UNKNOWN, gguf_vocabulary.CONTROL)]
    else:
        proto = SentencePieceExtractor(str(path)).proto
        vocab = {piece.piece: i for i, piece in enumerate(proto.pieces)}
        scores = {piece.piece: piece.score for piece in proto.pieces}
        specials = [piece.piece for piece in proto.pieces if piece.type in (gguf_vocabulary.UNKNOWN, gguf_vocabulary.CONTROL)]
    added = [{"id": vocab[t], "content": t, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
             for t in specials]
    mark = gguf_vocabulary.SPACE_MARK
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
            "normalizer": {"type": "Sequence", "normalizers": [
                {"type": "Prepend", "prepend": mark}, {"type": "Replace", "pattern": {"String": " "}, "content": mark}]},
            "pre_tokenizer": None, "post_processor": None,
            "decoder": {"type": "Sequence", "decoders": [
                {"type": "Replace", "pattern": {"String": mark}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
            "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None, "end_of_word_suffix": None,
                      "fuse_unk": True, "byte_fallback": True, "ignore_merges": False, "vocab": vocab,
                      "merges": [list(m) for m in generate_merges(vocab, scores)]}}


if __name__ == "__main__":
    main()
