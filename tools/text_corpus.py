"""Random texts that tokenizers find hard, the same for the same seed: all scripts, combining marks, emoji sequences, edges of
the code space, control characters, digit and space runs, line ends, contractions, special tokens in text, source code."""
import pathlib
import random

# First and last code point of blocks that cover the scripts in use, old and new.
BLOCKS = [
    (0x20, 0x7E), (0xA0, 0x24F), (0x250, 0x36F), (0x370, 0x3FF), (0x400, 0x52F), (0x530, 0x58F), (0x590, 0x5FF),
    (0x600, 0x6FF), (0x700, 0x74F), (0x780, 0x7BF), (0x7C0, 0x7FF), (0x8A0, 0x8FF), (0x900, 0x97F), (0x980, 0x9FF),
    (0xA00, 0xA7F), (0xA80, 0xAFF), (0xB00, 0xB7F), (0xB80, 0xBFF), (0xC00, 0xC7F), (0xC80, 0xCFF), (0xD00, 0xD7F),
    (0xD80, 0xDFF), (0xE00, 0xE7F), (0xE80, 0xEFF), (0xF00, 0xFFF), (0x1000, 0x109F), (0x10A0, 0x10FF), (0x1100, 0x11FF),
    (0x1200, 0x137F), (0x13A0, 0x13FF), (0x1400, 0x167F), (0x16A0, 0x16FF), (0x1780, 0x17FF), (0x1800, 0x18AF), (0x1AB0, 0x1AFF),
    (0x1B00, 0x1B7F), (0x1C80, 0x1C8F), (0x1DC0, 0x1DFF), (0x1E00, 0x1FFF), (0x2000, 0x206F), (0x2070, 0x209F), (0x20A0, 0x20FF),
    (0x2100, 0x218F), (0x2190, 0x22FF), (0x2300, 0x23FF), (0x2460, 0x24FF), (0x2500, 0x25FF), (0x2600, 0x27BF), (0x2800, 0x28FF),
    (0x2C00, 0x2C5F), (0x2D00, 0x2D2F), (0x2E80, 0x2FDF), (0x3000, 0x303F), (0x3040, 0x30FF), (0x3100, 0x312F), (0x3130, 0x318F),
    (0x3200, 0x33FF), (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xA000, 0xA4CF), (0xA640, 0xA69F), (0xA720, 0xA7FF), (0xAB30, 0xAB6F),
    (0xAC00, 0xD7A3), (0xD7B0, 0xD7FF), (0xE000, 0xF8FF), (0xF900, 0xFAFF), (0xFB00, 0xFB4F), (0xFB50, 0xFDFF), (0xFE00, 0xFE0F),
    (0xFE20, 0xFE2F), (0xFE30, 0xFE6F), (0xFE70, 0xFEFF), (0xFF00, 0xFFEF), (0xFFF0, 0xFFFF), (0x10000, 0x100FF), (0x10330, 0x1034F),
    (0x10400, 0x1044F), (0x104B0, 0x104FF), (0x10A00, 0x10A5F), (0x10E60, 0x10E7F), (0x11000, 0x1107F), (0x11100, 0x1114F),
    (0x118A0, 0x118FF), (0x12000, 0x123FF), (0x13000, 0x1342F), (0x16E40, 0x16E9F), (0x1B000, 0x1B0FF), (0x1D165, 0x1D1FF),
    (0x1D400, 0x1D7FF), (0x1E900, 0x1E95F), (0x1EE00, 0x1EEFF), (0x1F000, 0x1F02F), (0x1F100, 0x1F1FF), (0x1F300, 0x1F5FF),
    (0x1F600, 0x1F64F), (0x1F680, 0x1F6FF), (0x1F900, 0x1F9FF), (0x1FA70, 0x1FAFF), (0x1FBF0, 0x1FBF9), (0x20000, 0x2A6DF),
    (0x2F800, 0x2FA1F), (0x30000, 0x3134F), (0xE0001, 0xE007F), (0xE0100, 0xE01EF), (0xF0000, 0xF00FF), (0x10FF00, 0x10FFFF),
]
MARKS = [(0x300, 0x36F), (0x483, 0x487), (0x591, 0x5BD), (0x610, 0x61A), (0x64B, 0x65F), (0x93A, 0x94D), (0xE31, 0xE3A),
         (0x1AB0, 0x1ACE), (0x1DC0, 0x1DFF), (0x20D0, 0x20F0), (0x3099, 0x309A), (0xFE20, 0xFE2F)]
SPACES = [" ", "  ", "   ", "        ", "\t", "\n", "\r\n", "\r", "\n\n", " \n", "\n ", "\t\t", "\u00a0", "\u2003", "\u3000",
          "\u2028", "\u2029", "\u0085", "\u000b", "\u000c", "\u200b", "\u180e", "\u2060", "\ufeff", "\u1680", "\u202f", "\u205f"]
EDGES = ["\ud7ff", "\ue000", "\uf8ff", "\ufffd", "\ufffe", "\uffff", "\U00010000", "\U0010ffff", "\U0001ffff", "\ufdd0", "\u2581",
         "\u0120", "\u010a", "\u00ad", "\u034f", "\u061c", "\u200c", "\u200d", "\u200e", "\u200f", "\u202a", "\u202e", "\u2066", "\u2069",
         "\ufe0f", "\ufe0e", "\u20e3", "\ufb01", "\ufdfa", "\u1e9e", "\u0130", "\u0131", "\u017f", "\u212a", "\u2126", "\u0344", "\u0958",
         "\u1100\u1161\u11a8", "\u0041\u030a", "\u00c5", "\u212b", "e\u0301\u0323", "e\u0323\u0301", "\u1ebd\u0328"]
EMOJI = ["👩‍👩‍👧‍👦", "👩🏽‍🚀", "🏳️‍🌈", "🇫🇷", "🇺🇦🇯🇵", "👍🏿", "1️⃣", "#️⃣", "🧑‍🤝‍🧑", "❤️‍🔥", "🏴󠁧󠁢󠁥󠁮󠁧󠁿", "☕", "⛰️", "🫠", "😀😀😀", "🪿", "🫩"]
STEMS = ["I", "we", "they", "don", "can", "it", "you", "he", "O", "l", "rock", "Jean", "dans", "WE", "Y", "that", "é", "日", "5", ""]
ENDINGS = ["s", "t", "re", "ve", "m", "ll", "d", "S", "T", "RE", "Ve", "M", "LL", "lL", "D", "ſ", "tis", "em", "z", "st", "Re", "rE"]
DIGITS = ["0123456789", "٠١٢٣٤٥٦٧٨٩", "०१२३४५६७८९", "０１２３４５６７８９", "²³¹½¼¾", "ⅠⅡⅢⅳⅹ", "①②③⑩", "𝟘𝟙𝟚𝟛", "〇一二三十百", "๐๑๒๓", "੦੧੨", "🯰🯱🯹"]
WORDS = ("the of and to in is cairn checkpoint state prefix token attention kernel Grüße naïve façade Zürich señor żółć смысл "
         "предложение καλημέρα שלום مرحبا नमस्ते สวัสดี こんにちは 世界 你好 안녕하세요 ישראל việt ngữ đường İstanbul IJsselmeer camelCaseWord "
         "snake_case_word SCREAMING_CASE HTTPServer x86_64 utf8 e.g. i.e. U.S.A. $9.99 50% 3.14159 1e-10 0xDEADBEEF 2026-11-30 "
         "12:34:56 user@example.org https://example.org/a?b=c&d=%20#x C:\\dir\\file.txt /usr/lib/x.so -flag --long=1 a+b==c !== <div> </p> "
         "&amp; {{x}} [0] (y) \"quoted\" 'single' `code` **bold** __init__ ... — – … ‘x’ “y” «z» ¿qué? ¡ay! № € £ ¥ ™ © a̐éö̲ ﬁ ǆ").split()
BROKEN_SPECIALS = ["<|", "|>", "<|im_", "<|im_start|", "im_start|>", "<s", "</s", "<think", "[INST]", "[/INST]", "<0x0A>", "<0xFF>",
                   "<unk>", "<|endoftext|>", "<bos>", "<start_of_turn>", "▁", "▁▁x", "Ġ", "ĠĠ", "Ċ", "<｜", "<<SYS>>", "<|x|>"]
LANGUAGES = {
    "cc": "template <typename T> auto {a}(const std::vector<T>& {b}) -> Result<size_t> {{\n\tif ({b}.empty()) return {n}u; // {w}\n"
          "\tfor (int i = 0; i < {n}; ++i) {{ {a}_ += {b}[i] << {m}; }}\n}}\n",
    "py": "def {a}({b}: list[int] = None, *args, **kw) -> dict:\n    \"\"\"{w}\"\"\"\n    return {{k: f'{{v!r:>{m}}}' for k, v in {b}.items() "
          "if v != {n}}}\n\n\n@property\nasync def __{a}__(self): await self.{b}\n",
    "rs": "impl<'a> {a}<'a> {{\n    pub fn {b}(&mut self) -> Option<&'a str> {{ self.x.get(..{n})?.split('\\n').nth({m}) }} // {w}\n}}\n",
    "js": "const {a} = async ({{ {b}, ...rest }}) => {{\n  await fetch(`/api/${{{b}}}?n={n}`); // {w}\n  return rest ?? [{m}, null];\n}};\r\n",
    "go": "func (s *{a}) {b}(ctx context.Context, n int) (err error) {{\n\tdefer func() {{ err = fmt.Errorf(\"%w: {w}\", err) }}()\n"
          "\treturn s.do(ctx, {n}, {m})\n}}\n",
    "sql": "SELECT {a}.{b}, COUNT(*) AS n\nFROM {a} LEFT JOIN t ON t.id = {a}.id -- {w}\nWHERE {b} >= {n} AND x <> '{m}' GROUP BY 1;\n",
    "json": "{{\"{a}\": [{n}, -{m}.5e-3, null, true], \"{b}\": {{\"k\\u00e9\": \"{w}\\n\"}}}}",
    "html": "<!DOCTYPE html>\n<a href=\"/{a}/{b}\" class='x-{n}'>{w}&nbsp;</a>\n<!-- {m} -->\n",
    "sh": "#!/bin/sh\nset -eu\nfor {a} in $(seq {n}); do printf '%s\\n' \"${{{a}:-{b}}}\" | awk '{{print $1}}' >> /tmp/{b}.log 2>&1; done # {w}\n",
    "tex": "\\begin{{equation}}\\label{{eq:{a}}}\n  \\sum_{{i=1}}^{{{n}}} \\frac{{{b}_i}}{{{m}}} % {w}\n\\end{{equation}}\n",
    "hs": "{a} :: Ord k => Map k Int -> [k]\n{a} {b} = [ k | (k, v) <- toList {b}, v /= {n} ]  -- {w}\n  where m' = {m}\n",
    "yaml": "{a}:\n  - {b}: {n}\n    x: &anchor |\n      {w}\n\n  - <<: *anchor\n    y: !!str {m}\n",
}


def texts(count, seed, specials=(), source_root=None):
    """`count` strings, without surrogates. specials: tokens of the vocabulary to put into text; source_root: real source code."""
    rng = random.Random(seed)
    files = _sources(source_root)
    makers = [_any_script, _one_script, _marks, _emoji, _edges, _controls, _digits, _spaces, _contractions, _words, _words, _long_word,
              _code, _code]
    out = []
    while len(out) < count:
        which = rng.randrange(len(makers) + 3)
        if which < len(makers):
            text = makers[which](rng)
        elif which == len(makers):
            text = _specials(rng, specials)
        elif which == len(makers) + 1 and files:
            text = _slice(rng, files)
        else:
            text = "".join(rng.choice(makers)(rng) for _ in range(rng.randint(2, 4)))
        out.append("".join(c for c in text if not 0xD800 <= ord(c) <= 0xDFFF))
    return out


def _sources(root):
    if root is None:
        return []
    names = sorted(p for ext in ("cc", "h", "rs", "py", "md", "txt", "jinja") for p in pathlib.Path(root).rglob("*." + ext)
                   if "build" not in p.parts)
    return [p.read_text(encoding="utf-8", errors="ignore") for p in names[:400]]


def _char(rng, blocks):
    first, last = rng.choice(blocks)
    return chr(rng.randint(first, last))


def _any_script(rng):
    return "".join(_char(rng, BLOCKS) if rng.random() < 0.8 else chr(rng.choice([rng.randrange(0xD800), rng.randrange(0xE000, 0x110000)]))
                   for _ in range(rng.randint(0, 40)))


def _one_script(rng):
    block = [rng.choice(BLOCKS)]
    words = ("".join(_char(rng, block) for _ in range(rng.randint(1, 9))) for _ in range(rng.randint(1, 8)))
    return rng.choice([" ", " ", "", ", ", "\n", "-", "'"]).join(words)


def _marks(rng):
    bases = [(0x41, 0x7A), (0xC0, 0x17F), (0x391, 0x3C9), (0x5D0, 0x5EA), (0x627, 0x64A), (0x905, 0x939), (0xE01, 0xE2E), (0xAC00, 0xAC80),
             (0x1100, 0x1112), (0x3042, 0x3093), (0x20, 0x30)]
    out = []
    for _ in range(rng.randint(1, 12)):
        out.append(_char(rng, bases))
        out.extend(_char(rng, MARKS) for _ in range(rng.choice([0, 0, 1, 1, 2, 3, 8])))
    return "".join(out)


def _emoji(rng):
    return rng.choice(["", " ", "a"]).join(rng.choice(EMOJI) for _ in range(rng.randint(1, 6)))


def _edges(rng):
    return "".join(rng.choice(EDGES) + rng.choice(["", "", " ", "x", "\n"]) for _ in range(rng.randint(1, 10)))


def _controls(rng):
    return "".join(rng.choice([chr(rng.randrange(0x20)), chr(rng.randrange(0x7F, 0xA0)), "a", " ", "\x1b[31m", "\x00"])
                   for _ in range(rng.randint(1, 20)))


def _digits(rng):
    out = []
    for _ in range(rng.randint(1, 5)):
        alphabet = rng.choice(DIGITS)
        out.append("".join(rng.choice(alphabet) for _ in range(rng.choice([1, 2, 3, 4, 5, 6, 7, 9, 10, 31, 120]))))
        out.append(rng.choice(["", " ", ".", ",", "-", "x", "  ", "\n", "/"]))
    return "".join(out)


def _spaces(rng):
    return "".join(rng.choice(SPACES) * rng.choice([1, 1, 1, 2, 3, 17]) + rng.choice(["", "", "a", "!", "7", "é", "中"])
                   for _ in range(rng.randint(1, 12)))


def _contractions(rng):
    return "".join(rng.choice(STEMS) + rng.choice(["'", "'", "’", "''", " '", "`"]) + rng.choice(ENDINGS) + rng.choice(["", " ", ".", "\n"])
                   for _ in range(rng.randint(1, 10)))


def _words(rng):
    return "".join(rng.choice(WORDS) + rng.choice([" ", " ", " ", "", ", ", ".\n", "\t", "  "]) for _ in range(rng.randint(1, 30)))


def _long_word(rng):
    piece = rng.choice([lambda: rng.choice("abcdefghijklmnopqrstuvwxyz"), lambda: rng.choice("ab"), lambda: _char(rng, [(0x4E00, 0x9FFF)]),
                        lambda: rng.choice("!?=-_*#/."), lambda: rng.choice("Aa"), lambda: "a"])
    return "".join(piece() for _ in range(rng.choice([40, 120, 400])))


def _specials(rng, specials):
    pool = list(specials)[:400] + BROKEN_SPECIALS
    return "".join(rng.choice(pool) + rng.choice(["", "", " ", "\n", "x", " the ", "é"]) for _ in range(rng.randint(1, 8)))


def _slice(rng, files):
    text = rng.choice(files)
    at = rng.randrange(max(1, len(text)))
    piece = text[at:at + rng.choice([20, 100, 400, 1200])]
    return piece.replace("\n", "\r\n") if rng.random() < 0.3 else piece


def _code(rng):
    name = lambda: rng.choice(["x", "Value", "get_item", "kMaxSize", "HTTPServer2", "变量", "naïve", "_p", "i", "fooBarBaz", "T"])
    source = rng.choice(list(LANGUAGES.values()))
    text = source.format(a=name(), b=name(), n=rng.randrange(10 ** rng.randint(1, 12)), m=rng.randint(0, 99), w=_words(rng)[:60])
    return text.replace("\n", "\r\n") if rng.random() < 0.2 else text
