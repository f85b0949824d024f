"""A tokenizer.json as the metadata of a GGUF file, and back: the same vocabulary in both forms, for tools/compare_tokenizers.py.
Needs the Python packages gguf and tokenizers. The published pre-tokenizers below are those of the families' tokenizer.json files."""
import json
import re

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
SPACE_MARK = "\u2581"

_CASED = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+%s|"
          r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*%s|")
_CONTRACTION = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r"\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _TAIL
QWEN2 = _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _TAIL
QWEN35 = _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|" + _TAIL
GPT4O = _CASED % (_CONTRACTION + "?", _CONTRACTION + "?") + r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + _TAIL
TEKKEN = _CASED % ("", "") + r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + _TAIL
KIMI = (r"[\p{Han}]+|" + (_CASED % (_CONTRACTION + "?", _CONTRACTION + "?")).replace(r"\p{M}]", r"\p{M}&&[^\p{Han}]]") +
        r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _TAIL)
DEEPSEEK3 = ("[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|"
             "\\s*[\r\n]+|\\s+(?!\\S)|\\s+")


def _byte_level(use_regex):
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


def _split(pattern):
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def _sequence(*parts):
    return {"type": "Sequence", "pretokenizers": list(parts)}


def _splits(*patterns):
    return _sequence(*map(_split, patterns), _byte_level(False))


_DIGITS = {"type": "Digits", "individual_digits": True}
NFC = {"type": "NFC"}
# GGUF name -> pre_tokenizer, normalizer, ignore_merges.
FAMILIES = {
    "gpt-2": (_byte_level(True), None, False),
    "mpt": (_byte_level(True), NFC, False),  # GPT-NeoX's tokenizer, which Mamba models use
    "smollm": (_sequence(_DIGITS, _byte_level(True)), None, False),
    "starcoder": (_sequence(_DIGITS, _byte_level(True)), None, False),
    "refact": (_sequence(_DIGITS, _byte_level(True)), None, False),
    "command-r": (_sequence(_DIGITS, _byte_level(True)), NFC, False),
    "llama-bpe": (_splits(LLAMA3), None, True),
    "lfm2": (_splits(LLAMA3), None, True),
    "dbrx": (_splits(LLAMA3), None, False),  # Granite 4
    "qwen2": (_splits(QWEN2), NFC, False),
    "qwen35": (_splits(QWEN35), NFC, False),
    "gpt-4o": (_splits(GPT4O), None, True),
    "tekken": (_splits(TEKKEN), None, True),  # Mistral Nemo, Nemotron-H
    "kimi-k2": (_splits(KIMI), None, True),
    "deepseek-v3": (_splits(r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", DEEPSEEK3), None, False),
    "deepseek-coder": (_sequence(_split("[\r\n]"), _split(r"\s?\p{L}+"), _split(r"\s?\p{P}+"), _split("[一-龥ࠀ-一가-퟿]+"), _DIGITS,
                                 _byte_level(False)), None, False),
    "falcon3": (_sequence({"type": "Punctuation", "behavior": "Contiguous"}, _byte_level(True), _DIGITS), None, False),
}


def read(path):
    """The tokenizer metadata of a GGUF file, without the prefix of its keys."""
    import gguf
    reader = gguf.GGUFReader(path)
    prefix = "tokenizer."
    return {k.removeprefix(prefix).removeprefix("ggml."): f.contents() for k, f in reader.fields.items() if k.startswith(prefix)}


def pre_name(tokenizer):
    """The GGUF name of a tokenizer.json's pre-tokenizer, or None."""
    wanted = _bare(tokenizer["pre_tokenizer"])
    has_nfc = '"NFC"' in json.dumps(tokenizer["normalizer"])
    if not has_nfc and '"NF' in json.dumps(tokenizer["normalizer"]):
        return None
    same = [name for name, family in FAMILIES.items() if _bare(family[0]) == wanted and (family[1] is not None) == has_nfc]
    ignores = bool(tokenizer["model"].get("ignore_merges"))
    return next((name for name in same if FAMILIES[name][2] == ignores), same[0] if same else None)


def _bare(pre_tokenizer):
    """Without what does not change the pieces."""
    text = json.dumps(pre_tokenizer, sort_keys=True)
    text = re.sub(r'"trim_offsets": (true|false)', "", text)
    return text.replace('"behavior": "Removed", "invert": true', '"behavior": "Isolated", "invert": false')


def to_json(metadata, pre):
    """A tokenizer.json of a byte-level GGUF vocabulary, by the published pre-tokenizer of its family."""
    pre_tokenizer, normalizer, ignore_merges = FAMILIES[pre]
    tokens, types = metadata["tokens"], metadata.get("token_type") or [NORMAL] * len(metadata["tokens"])
    added = [{"id": i, "content": t, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
              "special": types[i] != USER_DEFINED} for i, t in enumerate(tokens) if types[i] in (UNKNOWN, CONTROL, USER_DEFINED)]
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": normalizer,
            "pre_tokenizer": pre_tokenizer, "post_processor": None, "decoder": {**_byte_level(True), "add_prefix_space": True},
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
                      "fuse_unk": False, "byte_fallback": False, "ignore_merges": ignore_merges,
                      "vocab": {t: i for i, t in enumerate(tokens)}, "merges": list(metadata["merges"])}}


def write(path, tokenizer, pre):
    """The vocabulary of a tokenizer.json as a GGUF file without tensors. pre None: SentencePiece."""
    import gguf
    vocab = dict(tokenizer["model"]["vocab"])
    added = {t["id"]: t for t in tokenizer["added_tokens"]}
    vocab.update({t["content"]: i for i, t in added.items()})
    texts = {i: t for t, i in vocab.items()}
    count = max(texts) + 1
    tokens = [texts.get(i, f"[PAD{i}]") for i in range(count)]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("llama" if pre is None else "gpt2")
    if pre is not None:
        writer.add_tokenizer_pre(pre)
        merges = [m if isinstance(m, str) else " ".join(m) for m in tokenizer["model"]["merges"]]
        if pre != "kimi-k2":  # its files carry no merges: they follow from the order of the vocabulary
            writer.add_token_merges(merges)
    else:
        # SentencePiece joins what makes the piece of the best score; a tokenizer.json lists those joins in that order.
        ranks = {}
        for rank, merge in enumerate(tokenizer["model"]["merges"]):
            left, right = merge.split(" ") if isinstance(merge, str) else merge
            ranks.setdefault(left + right, rank)
        writer.add_token_scores([float(-ranks.get(t, 1e9)) for t in tokens])
        writer.add_add_space_prefix("Prepend" in json.dumps(tokenizer["normalizer"]))
    writer.add_token_list(tokens)
    writer.add_token_types([_type(i, tokens[i], texts, added, pre is None, tokenizer["model"].get("unk_token")) for i in range(count)])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def _type(token, text, texts, added, is_sentence_piece, unknown):
    if token not in texts:
        return UNUSED
    if is_sentence_piece and text == unknown:
        return UNKNOWN
    if token in added:
        return CONTROL if added[token]["special"] else USER_DEFINED
    if is_sentence_piece and re.fullmatch(r"<0x[0-9A-F]{2}>", text):
        return BYTE
    return NORMAL
