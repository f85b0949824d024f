#!/usr/bin/env python3
"""Makes the fixtures of src/text/tokenizer_families_test.cc: one small vocabulary, whose merges cross every border that a
pre-tokenizer may draw, and for each family the ids that Hugging Face's `tokenizers` gives with the published pre-tokenizer.

    make_tokenizer_cases.py src/text/testdata"""
import json
import pathlib
import sys

import gguf_vocabulary
import text_corpus

NAMES = ["gpt-2", "mpt", "smollm", "command-r", "llama-bpe", "lfm2", "dbrx", "qwen2", "qwen35", "gpt-4o", "tekken", "kimi-k2",
         "deepseek-v3", "deepseek-coder", "falcon3"]
BY_RANK = "kimi-k2 ranks"  # the vocabulary without merges
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
PLAIN = ["<think>", "</think>"]
VOCABULARY_SIZE = 800
TEXTS = [
    "HTTPServer's fooBarBaz IT'S don'T weʼre O'ſ", "ÀÉÎ héLLo ǅabc ʰx ªb İi", "中文abc中文Def漢字かなカナHTML", "1234567 ١٢٣٤ ²³½ 12.5/7//x Ⅳ5",
    "a/b//c\n/\n!!/\n\n  x", "e\u0301 \u1ab8\u1acc e\u1ae0\u0323 \u0939\u0947\u0932\u094b \u0344", "<div class='x'>a_b-c</div>,\"q\"",
    "  two   spaces\t\ttabs \r\n\r\n end  ", "«Привет», — сказал… №5!", "\u3000全角　スペース。「引用」", "x=1;y+=22;z<<=333;//!!==4444", "<|im_start|>user\nhi<|im_end|>\n<think>a</think>",
    "안녕하세요 ㄱㄴ 조선", "na\u0303o a\u0323\u0307 \u212b \u2126 ﬁ", "🏳️‍🌈👩🏽‍🚀 1️⃣ ⛰", "don’t 'tis ''re 'LL 's'S", "\u00a0nbsp\u00a0\u2003em\u200bzero", "\x00\x1b[0m\x7f\u0085", "_a__b ___ --c -d.e ...f", "٣٫١٤ ४५६ ๑๒๓ 〇一",
]


def main():
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    out = pathlib.Path(sys.argv[1])
    source = pathlib.Path(__file__).resolve().parent
    corpus = [p.read_text(encoding="utf-8")[:20000] for p in sorted(source.glob("*.py"))[:4]] + TEXTS * 3 + text_corpus.WORDS
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer, trained.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False), decoders.ByteLevel()
    pieces = [line[i:i + 12] for text in corpus for line in [text] for i in range(0, len(text), 12)]
    trained.train_from_iterator(pieces, trainers.BpeTrainer(vocab_size=VOCABULARY_SIZE, show_progress=False, min_frequency=1,
                                                            initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    trained.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIALS])
    trained.add_tokens([AddedToken(t, special=False, normalized=False) for t in PLAIN])
    base = json.loads(trained.to_str())
    texts = TEXTS + [t for t in text_corpus.texts(400, 7, SPECIALS) if 8 <= len(t) <= 48][:20]
    vocab = dict(base["model"]["vocab"]) | {t["content"]: t["id"] for t in base["added_tokens"]}
    tokens = sorted(vocab, key=vocab.get)
    types = [3 if t in SPECIALS else 4 if t in PLAIN else 1 for t in tokens]
    merges = [m if isinstance(m, str) else " ".join(m) for m in base["model"]["merges"]]
    with open(out / "families.spec", "w", encoding="utf-8", newline="\n") as f:
        f.write("kind gpt2\npre gpt-2\n")
        f.writelines(f"token {kind} 0 {escaped(t)}\n" for kind, t in zip(types, tokens))
        f.writelines(f"merge {escaped(m)}\n" for m in merges)
    with open(out / "families.cases", "w", encoding="utf-8", newline="\n") as f:
        for name in [*NAMES, BY_RANK]:
            parts = gguf_vocabulary.to_json({"tokens": tokens, "token_type": types, "merges": merges}, name.split(" ")[0])
            if name == BY_RANK:
                parts["model"]["merges"] = by_rank([t for t, kind in zip(tokens, types) if kind == 1], vocab)
            library = Tokenizer.from_str(json.dumps(parts))
            for text in texts:
                ids = library.encode(text, add_special_tokens=False).ids
                f.write("\t".join([name, escaped(text), " ".join(map(str, ids)), escaped(library.decode(ids, skip_special_tokens=False))]) + "\n")
    frame = gguf_vocabulary.to_json({"tokens": tokens, "token_type": types, "merges": merges}, "gpt-2")
    frame |= {"normalizer": "@normalizer@", "pre_tokenizer": "@pre_tokenizer@"}
    frame["model"]["ignore_merges"] = "@ignore_merges@"
    (out / "families.tokenizer.json").write_text(dump(frame) + "\n", encoding="utf-8")
    with open(out / "families.pre", "w", encoding="utf-8", newline="\n") as f:
        for name in NAMES:
            pre_tokenizer, normalizer, ignore_merges = gguf_vocabulary.FAMILIES[name]
            f.write("\t".join([name, escaped(dump(normalizer)), escaped(dump(pre_tokenizer)), dump(ignore_merges)]) + "\n")


def by_rank(tokens, vocab):
    known = set(tokens)
    merges = []
    for token in tokens:
        cuts = [(token[:i], token[i:]) for i in range(1, len(token)) if token[:i] in known and token[i:] in known]
        merges.extend(list(c) for c in sorted(cuts, key=lambda c: (vocab[c[0]], vocab[c[1]])))
    return merges


def dump(value):
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def escaped(text):
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t").replace("\0", "\\0")


if __name__ == "__main__":
    main()
