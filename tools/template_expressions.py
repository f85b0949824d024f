"""Expressions that chat templates use, for tools/compare_templates.py --expressions: each is rendered with x, a string with lines,
n, a number, l, a list, d, a dict, and o, a list of dicts."""
VALUES = {
    "x": " a\nB c\r\n\n\u2028d, e ", "n": 7, "f": 2.5, "l": [3, 1, 2, 1], "d": {"b": 1, "a": [True, None, "q'"], "é": {"k": 1.0}},
    "o": [{"k": "p", "v": 1, "t": True}, {"k": "q", "v": 2}, {"k": "p", "v": 3, "t": False}], "s": "Hello wORLD", "e": "", "z": None,
    "j": '{"a": 1}',
}
EXPRESSIONS = [
    # strings
    "x.split('\\n')", "x.split()", "s.split('l', 1)", "s.rsplit('l', 1)", "s.split('zz')", "x.splitlines()", "x.strip()", "x.lstrip()", "x.rstrip()",
    "s.strip('Hd')", "s.lstrip('Hel')", "s.rstrip('DLR')", "s.startswith('He')", "s.endswith('x')", "s.startswith(('a', 'H'))", "s.find('o')",
    "s.find('zz')", "s.rfind('o')", "s.count('l')", "s.upper()", "s.lower()", "s.title()", "s.capitalize()", "s.swapcase()", "s.replace('l', 'L')",
    "s.replace('l', 'L', 1)", "s.isupper()", "'ABC'.isupper()", "'12'.isdigit()", "'ab1'.isalnum()", "'ab'.isalpha()", "' '.isspace()",
    "s.removeprefix('Hello ')", "s.removesuffix('LD')", "'-'.join(['a', 'b'])", "'{} {}'.format(1, 'a')", "'{0}{1}{0}'.format('a', 'b')",
    "'a' * 3", "'a' ~ n ~ z", "'a' + 'b'", "'ell' in s", "'zz' not in s", "s[0]", "s[-1]", "s[1:3]", "s[::-1]", "s[:-2]", "s|length", "s.lower().title()",
    "'<think>a</think>b'.split('</think>')[-1]", "'<think>a</think>b'.split('</think>')[0].split('<think>')[-1]", "'7'.zfill(3)",
    "'a'.ljust(3) ~ '|'", "'a'.center(5)", "'x' < 'y'", "'abc' == \"abc\"",
    # filters
    "x|trim", "x|indent", "x|indent(2)", "x|indent(2, true)", "x|indent(2, first=True, blank=True)", "'a\\n'|indent(4, first=true)", "'a\\n\\nb'|indent(3)", "''|indent(2, true)",
    "d|tojson(indent=2)|indent(4)", "s|upper", "s|lower", "s|title", "'hello world-foo bar_baz'|title", "s|capitalize", "s|replace('l', 'L')", "s|replace('l', '', 1)", "l|first", "l|last",
    "l|length", "l|sort", "l|sort(reverse=true)", "['b', 'A', 'c']|sort", "l|unique|list", "l|sum", "l|max", "l|min", "l|join('-')", "l|join", "l|reverse|list", "s|reverse", "s|list",
    "o|map(attribute='k')|list", "o|map(attribute='k')|join(',')", "o|map(attribute='t', default='no')|list", "l|map('string')|join('+')", "['a', 'b']|map('upper')|list",
    "o|selectattr('k', 'equalto', 'p')|list|length", "o|selectattr('t')|list", "o|rejectattr('k', '==', 'p')|map(attribute='v')|list", "o|selectattr('t', 'defined')|list|length",
    "l|select('odd')|list", "l|reject('equalto', 1)|list", "l|select('in', [1, 2])|list", "d|length", "d|list", "z|default('d')", "nothing|default('d')",
    "e|default('d', true)", "z|default('d', true)", "'3'|int", "'x'|int", "'x'|int(5)", "2.9|int", "'2.5'|float", "f|round", "2.567|round(2)", "3|round", "-3|abs", "n|string", "f|string", "true|string",
    "z|string", "d|string", "l|string", "s|wordcount", "l|batch(3)|list", "l|batch(3, 0)|list", "l|slice(2)|list", "d|tojson", "x|tojson", "l|tojson(indent=1)", "1.0|tojson", "1e100|tojson",
    "o|groupby('k')|list|length", "o|groupby('k')|map(attribute='grouper')|list", "d|tojson(ensure_ascii=true)", "d|tojson(sort_keys=true)", "d|tojson(separators=(',', ':'))", "s|truncate(8)", "s|e", "'<a>'|e",
    "s|center(15)", "[1, [2, [3]]]|string", "'%s-%s'|format('a', 2)", "j|tojson", "s|first", "s|last", "o|map(attribute='d.x', default=1)|list", "o|sum(attribute='v')",
    "o|sort(attribute='k,v')|map(attribute='v')|list", "o|map(attribute='v')|max", "'1,2'|list", "range(3)|list", "dict(a=1)|tojson", "['a', 'b']|map('length')|list", "'a b c'|replace(' ', '')|upper",
    "s|filesizeformat if false else 'no'", "l|random if false else 1", "x|wordwrap(4) if false else 2", "(1, 2)|tojson", "[]", "{}",
    # operators and tests
    "7 // 2", "-7 // 2", "7 % 3", "-7 % 3", "2 ** 10", "7 / 2", "6 / 2", "1 + 1.5", "n is odd", "n is divisibleby 7", "n is number", "true is number", "f is float", "n is integer", "true is integer", "true is boolean",
    "z is none", "nothing is defined", "nothing is undefined", "s is string", "l is iterable", "s is iterable", "d is mapping", "l is sequence", "d is sequence", "l is mapping", "n in l", "1 in l", "'b' in d", "3 not in l", "s is eq 'a'",
    "n is gt 3", "n is sameas 7", "true is true", "z is true", "'abc' is lower", "'ABC' is upper", "n is in l", "s is not string", "not z", "z or 'a'", "e or 'b'", "l and 'c'", "1 if n > 5", "1 if n < 5", "(1 if n < 5) is defined", "n if n else 2",
    "n == 7.0", "'7' == 7", "1 < n < 9", "l == [3, 1, 2, 1]", "d == {}", "[1] + [2]", "[1, 2] * 2", "l[1:]", "l[-1]", "l[::-1]", "l[::2]", "l[5:]", "o[0].k", "o[0]['k']", "d['b']", "d.b", "d.nothing", "d.get('b')", "d.get('x', 'y')", "d.get('x')",
    "d.keys()|list", "d.values()|list", "l.count(1)", "d['é'].k", "o[1].t", "o[1].t is defined", "nothing", "none", "true", "not true", "1.0", "10000000000000000.0", "0.1 + 0.2", "1e-5", "100000000000000000000",
    "z == none", "d.a[2]", "d.a", "l|length > 3 and s|length > 2", "(l|length) * 2", "namespace(a=1).a", "s ~ ''", "'a\\'b'", "\"a'b\"", "['a\"b', \"c'd\", 'e\\\\f', 'g\\nh']", "'\\u00e9\\t'", "s.__class__",
]
# What cairn does otherwise: tuples print as lists, text has no operator % and no bytes, jinja2's HTML helpers are missing.
DIFFERENT = [
    "'%s=%d' % ('a', 3)", "'%s' % n", "'a b'.partition(' ')", "'a\\tb'.expandtabs(4)", "'é'.encode('utf-8')|length", "d|dictsort", "d|items|list", "(1, 2)", "(1,)",
    "{'a': (1, 'b')}", "()", "d.items()|list", "'a b'|urlencode", "x|striptags", "d|attr('b')", "l.index(2)", "joiner(',')()", "x.upper",
]
STATEMENTS = [
    "{% for i in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.revindex }}{{ loop.previtem }}{{ loop.nextitem }};{% endfor %}",
    "{% for i in [] %}a{% else %}none{% endfor %}", "{% for k, v in d.items() %}{{ k }}:{{ v }};{% endfor %}", "{% for k in d %}{{ k }}{% endfor %}",
    "{% for i in l if i > 1 %}{{ i }}{{ loop.index }}{% endfor %}", "{% for c in 'abc' %}{{ c }}{{ loop.cycle('x', 'y') }}{% endfor %}",
    "{% for a in l %}{% for b in l %}{{ loop.index }}{% endfor %}{{ loop.index }}{% endfor %}", "{% set a = 1 %}{% for i in l %}{% set a = i %}{% endfor %}{{ a }}",
    "{% set ns = namespace(a=[]) %}{% for i in l %}{% set ns.a = ns.a + [i] %}{% endfor %}{{ ns.a }}", "{% set a, b = 1, 2 %}{{ a }}{{ b }}", "{% set a %}x{{ n }}{% endset %}{{ a }}|{{ a|length }}",
    "{% macro m(a, b=2, c='z') %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(1) }}{{ m(1, c=3) }}{{ m(b=5, a=4) }}", "{% macro m() %}{{ caller() }}{% endmacro %}{% call m() %}in{% endcall %}",
    "{% macro r(v, d) %}{% if v is mapping %}{% for k, w in v|items %}{{ k }}({{ r(w, d + 1) }}){% endfor %}{% elif v is iterable and v is not string %}{% for w in v %}[{{ r(w, d + 1) }}]{% endfor %}{% else %}{{ v }}{{ d }}"
    "{% endif %}{% endmacro %}{{ r(d, 0) }}", "{% if n > 5 and not z %}a{% elif n %}b{% else %}c{% endif %}", "a  {#- c -#}  b", "a\n{# c #}\nb", "  {% if true %}\n  x\n  {% endif %}\ny", "{%- if true -%} \n x \n {%- endif -%} y", "{% raw %}{{ x }}{% endraw %}",
    "{% filter upper %}abc{{ s }}{% endfilter %}", "{% with a = 1, b = n %}{{ a + b }}{% endwith %}", "{% for i in l %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% endfor %}", "{% for i in l %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}",
    "{{ 'a' if n else 'b' }}{{- ' c ' -}}  d", "{{ o[0] }}", "{{ d }}", "{% for m in o %}{{ m['k'] + '-' + m.v|string }}{{ '\\n' if not loop.last }}{% endfor %}", "{{ '\\n\\n'.join(o|map(attribute='k')) }}", "{% set f = o|selectattr('k', 'equalto', 'q')|first %}{{ f.v }}",
    "{% set m = o[1:] %}{{ m|length }}{{ m[0].k }}", "{% set d2 = dict(d, c=3) %}{{ d2 }}", "{% for i in range(2, 8, 3) %}{{ i }}{% endfor %}", "{% for i in range(3, 0, -1) %}{{ i }}{% endfor %}", "{{ raise_exception('no') }}",
    "{% set x = 'a' %}{% if true %}{% set x = 'b' %}{% endif %}{{ x }}", "{% block b %}in{% endblock %}", "{% for item in d.a %}{{ item }}{% endfor %}", "{% set l2 = [] %}{% set l2 = l2 + ['a'] %}{{ l2|join }}", "{{ x|replace('\\n', '\\\\n') }}", "{{ l.append(4) }}{{ l }}",
    "{{ strftime_now('%d %b %Y') }}", "{% for x in l recursive %}{{ x }}{% endfor %}", "{%+ if true %}a{% endif %}", "a\n\n", "\na", "{% if true %}\n\n\na{% endif %}\n",
]
