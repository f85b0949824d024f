#!/usr/bin/env python3
"""Compares cairn's tokenizers with Hugging Face's `tokenizers` on random texts and source code: ids, decoded text, and whether the
text comes back (how many, of how many with that library: all, unless the tokenizer normalises or the vocabulary lacks bytes).
Prints one table row for each form of each vocabulary.

    compare_tokenizers.py --bin build/release/bin/text_batch [--count 5000] [--seed 1] [--only NAME] FOLDER

FOLDER holds one folder for each family: tokenizer.json, and perhaps vocab.gguf (a published file of the same vocabulary). Where there
is no vocab.gguf the vocabulary is converted. A folder with vocab.gguf alone gets a tokenizer.json by the published pre-tokenizer of
its family; a file named `pre` holds the GGUF name to use where the file has none. Needs the packages tokenizers and gguf."""
import argparse
import array
import json
import pathlib
import sys
import tempfile

import gguf_vocabulary
import text_corpus
import text_records

SHOWN_MAX = 3


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--bin", required=True)
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", action="append", help="names of families")
    args = parser.parse_args()
    print("| family | form | pre-tokenizer | vocabulary | strings | ids equal | text equal | comes back |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    wrong = 0
    for folder in sorted(p for p in args.folder.iterdir() if p.is_dir()):
        if not args.only or folder.name in args.only:
            wrong += compare_family(folder, args)
    sys.exit(1 if wrong else 0)


def compare_family(folder, args):
    from tokenizers import Tokenizer
    with tempfile.TemporaryDirectory() as scratch:
        source, given = folder / "tokenizer.json", folder / "vocab.gguf"
        pre_file = folder / "pre"
        pre = pre_file.read_text(encoding="utf-8").strip() if pre_file.exists() else None
        metadata = gguf_vocabulary.read(given) if given.exists() else None
        if not source.exists():
            pre = pre or metadata["pre"]
            source = pathlib.Path(scratch) / "tokenizer.json"
            source.write_text(json.dumps(gguf_vocabulary.to_json(metadata, pre)), encoding="utf-8")
        parts = json.loads(source.read_text(encoding="utf-8"))
        library = Tokenizer.from_file(str(source))
        is_sentence_piece = parts["model"].get("byte_fallback", False)
        forms = [("tokenizer.json", str(source.parent))]
        pre = pre or (metadata or {}).get("pre") or (None if is_sentence_piece else gguf_vocabulary.pre_name(parts))
        if given.exists() and metadata.get("pre", "default" if is_sentence_piece else None) == pre or is_sentence_piece and given.exists():
            forms.append(("GGUF", str(given)))
        elif pre is not None or is_sentence_piece and "Metaspace" not in json.dumps(parts["pre_tokenizer"]):
            converted = pathlib.Path(scratch) / "vocab.gguf"
            gguf_vocabulary.write(converted, parts, None if is_sentence_piece else pre)
            forms.append(("GGUF, converted", str(converted)))
        specials = [t["content"] for t in parts["added_tokens"]]
        texts = text_corpus.texts(args.count, args.seed, specials, pathlib.Path(__file__).resolve().parents[1] / "src")
        expected = expectations(library, texts)
        label = "SentencePiece" if is_sentence_piece else pre or "general"
        wrong = 0
        for form, path in forms:
            if form == "GGUF" and retyped(parts, metadata):
                expected = expectations(Tokenizer.from_str(json.dumps(parts)), texts)
            wrong += compare_form(folder.name, form, path, label, library, parts, texts, expected, args.bin)
        return wrong


def retyped(parts, metadata):
    """Gives added tokens the kind that the GGUF file says: control tokens are not found where they are taken as plain text."""
    types, changed = metadata["token_type"], False
    for token in parts["added_tokens"]:
        special = token["id"] < len(types) and types[token["id"]] in (gguf_vocabulary.UNKNOWN, gguf_vocabulary.CONTROL)
        changed |= special != token["special"]
        token["special"] = special
    return changed


def expectations(library, texts):
    """(ids, their text, the text without control tokens) for each text, with control tokens found in it and as plain text."""
    library.no_padding()
    library.no_truncation()
    out = []
    for finds_special in (True, False):
        library.encode_special_tokens = not finds_special
        for text in texts:
            ids = library.encode(text, add_special_tokens=False).ids
            out.append((ids, library.decode(ids, skip_special_tokens=False), library.decode(ids, skip_special_tokens=True)))
    return out


def compare_form(family, form, path, label, library, parts, texts, expected, binary):
    records = [[flag, text] for flag in ("1", "0") for text in texts]
    try:
        answers = text_records.run(binary, ["encode", path], records)
    except RuntimeError as e:
        print(f"| {family} | {form} | {label} | {library.get_vocab_size()} | refused: {e} | | | |", flush=True)
        return 1
    has_normalizer = bool(parts["normalizer"]) and parts["normalizer"] != {"type": "Sequence", "normalizers": []}
    ids_equal = text_equal = returned = library_returns = 0
    wrong = []
    for (flag, text), (want, decoded, bare), answer in zip(records, expected, answers):
        got = array.array("i", answer[1]).tolist() if answer[0] == b"ok" else answer[1].decode()
        same_ids = got == want
        same_text = answer[0] == b"ok" and answer[2].decode() == decoded and (form != "tokenizer.json" or answer[3].decode() == bare)
        ids_equal += same_ids
        text_equal += same_text
        returned += answer[0] == b"ok" and answer[2].decode() == text
        library_returns += decoded == text
        if not (same_ids and same_text):
            wrong.append((flag, text, want, got, decoded, answer[2].decode() if answer[0] == b"ok" else ""))
    total = len(records)
    back = f"{returned} of {library_returns}" + (", normalises" if has_normalizer else "")
    print(f"| {family} | {form} | {label} | {library.get_vocab_size()} | {total} | {ids_equal} | {text_equal} | {back} |", flush=True)
    for flag, text, want, got, decoded, own in sorted(wrong, key=lambda w: (w[2] == w[3], len(w[1])))[:SHOWN_MAX]:
        print(f"  {family} {form} special={flag} {text[:200]!r}\n    want {want[:60]}\n    got  {got if isinstance(got, str) else got[:60]}"
              f"\n    text {decoded[:100]!r}\n    own  {own[:100]!r}", file=sys.stderr)
    return 0 if ids_equal == text_equal == total and returned == library_returns else 1


if __name__ == "__main__":
    main()
