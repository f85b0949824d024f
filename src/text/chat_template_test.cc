#include "text/chat_template.h"

#include <gtest/gtest.h>

#include <map>

#include "text/testing.h"

namespace cairn {
namespace {

using testing::Unescape;

std::string RenderOrError(const std::string& source, const ChatInput& input) {
  const auto compiled = ChatTemplate::Compile(source);
  if (!compiled.ok()) return "COMPILE " + compiled.status().message();
  const auto text = compiled->Render(input);
  return text.ok() ? *text : "ERR " + text.status().message();
}

// `source` rendered with x from the JSON text.
std::string RenderX(const std::string& source, const std::string& x_json) {
  ChatInput input;
  input.messages_json = R"([{"role":"user","content":"hi"}])";
  input.kwargs_json = "{\"x\":" + x_json + "}";
  input.now_unix_s = 0;
  return RenderOrError(source, input);
}

// Expected texts come from jinja2 with the settings and helpers of transformers.
TEST(ChatTemplate, RendersAsTransformersDoes) {
  std::map<std::string, ChatTemplate> templates;
  int count = 0;
  for (auto fields : testing::ReadRecords("template.cases")) {
    for (std::string& field : fields) field = Unescape(field);
    ASSERT_EQ(fields.size(), 8u);
    auto at = templates.find(fields[0]);
    if (at == templates.end()) {
      const std::string source =
          testing::ReadFileOrDie(testing::TestDataPath(fields[0] + ".jinja"));
      at = templates.emplace(fields[0], ChatTemplate::Compile(source).value()).first;
    }
    ChatInput input;
    input.messages_json = fields[1];
    input.tools_json = fields[2];
    input.kwargs_json = fields[3];
    input.add_generation_prompt = fields[4] == "1";
    input.bos_token = fields[5];
    input.eos_token = fields[6];
    const auto got = at->second.Render(input);
    const std::string text = got.ok() ? *got : "ERR " + got.status().message();
    EXPECT_EQ(text, fields[7]) << fields[0] << ": " << fields[1];
    ++count;
  }
  EXPECT_GT(count, 120);
}

// Expected: Python's json.dumps(x, ensure_ascii=False, ...).
TEST(ChatTemplate, TojsonIsJsonDumps) {
  const struct {
    std::string source, x, want;
  } cases[] = {
      {"{{ x | tojson }}", R"({"zeta":1,"alpha":[1.0,true,null,"<&'\"\\\/>"],"é":{}})",
       R"({"zeta": 1, "alpha": [1.0, true, null, "<&'\"\\/>"], "é": {}})"},
      {"{{ x | tojson }}", "[1e20, 1e16, 123456789012345.5, 1e15, 0.0001, 0.00001, -0.0, 1.10, -5]",
       "[1e+20, 1e+16, 123456789012345.5, 1000000000000000.0, 0.0001, 1e-05, -0.0, 1.1, -5]"},
      {"{{ x | tojson }}", "[18446744073709551615, -9223372036854775808]",
       "[18446744073709551615, -9223372036854775808]"},
      {"{{ x | tojson }}", R"("\u0001\u001f\b\f\n\r\t\u007f\u2028")",
       "\"\\u0001\\u001f\\b\\f\\n\\r\\t\x7f\xE2\x80\xA8\""},
      {"{{ x | tojson(ensure_ascii=True) }}", R"("é😀")", R"("\u00e9\ud83d\ude00")"},
      {"{{ x | tojson(indent=2) }}", R"({"a":[1,{}],"b":[]})",
       "{\n  \"a\": [\n    1,\n    {}\n  ],\n  \"b\": []\n}"},
      {"{{ x | tojson(separators=(',', ':')) }}", R"({"a":[1,2]})", R"({"a":[1,2]})"},
      {"{{ x | tojson(sort_keys=true) }}", R"({"b":1,"a":2})", R"({"a": 2, "b": 1})"},
      {"{{ {'k': x, 'a': 1} | tojson }}", "2", R"({"k": 2, "a": 1})"},
  };
  for (const auto& c : cases) EXPECT_EQ(RenderX(c.source, c.x), c.want);
}

// Expected: jinja2.
TEST(ChatTemplate, SpeaksPythonAndTransformersJinja) {
  const struct {
    std::string source, x, want;
  } cases[] = {
      {"{{ x }}", "true", "True"},
      {"{{ x }}", "null", "None"},
      {"{{ x }}", "1.0", "1.0"},
      {"{{ x }}", R"(["a'b", "q", null, true, 1.5, {"k": "v"}])",
       R"(["a'b", 'q', None, True, 1.5, {'k': 'v'}])"},
      {"{{ nothing }}|{{ x.nothing }}", "{}", "|"},
      {"{{ x.split('</think>')[-1].lstrip('\\n') }}", R"("a</think>\n\nb")", "b"},
      {"{{ x.strip() }}|{{ x.rstrip('z ') }}|{{ x.startswith(' a') }}", R"(" a zz ")",
       "a zz| a|True"},
      {"{% for k, v in x.items() %}{{ k }}={{ v }};{% endfor %}", R"({"b":1,"a":2})", "b=1;a=2;"},
      {"{{ x.get('n', 'd') }}{{ x.get('m') }}", "{}", "dNone"},
      {"{% for i in x %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 4 %}{% break %}{% endif "
       "%}"
       "{{ i }}{% endfor %}",
       "[1,2,3,4,5]", "13"},
      {"{% set ns = namespace(n=0) %}{% for i in x %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n "
       "}}",
       "[1,2,3]", "6"},
      {"{% set ns = namespace(a=1, b=[]) %}{% for i in x %}{% set ns.b = ns.b + [i, ns.a] %}"
       "{%- set ns.a = i if i > 1 else {'k': i}['k'] -%}{% endfor %}{{ ns.a }}{{ ns.b }}",
       "[1,2]", "2[1, 1, 2, 1]"},
      {"{% set ns = namespace() %}{% set ns.a, ns.b = x, 'two' %}{% set ns.c %}c{% endset %}"
       "{{ ns.a }}{{ ns.b }}{{ ns.c }}{{ namespace(n=ns).n.a }}",
       "1", "1twoc1"},
      {"{{ 'set ns.a = ns' }}{# set ns.a = ns #}{% raw %}{% set ns.a = ns %}{% endraw %}", "1",
       "set ns.a = ns{% set ns.a = ns %}"},
      {"{% for i in x %}{{ i if loop.changed(i) }}{% endfor %}", "[1,1,2]", "12"},
      {"{{ x | join(', ', attribute='k') }}|{{ ['a', 1] | join('-') }}|{{ ', '.join(['a', 'b']) }}",
       R"([{"k":"p"},{"k":"q"}])", "p, q|a-1|a, b"},
      {"{{ '%s-%03d' | format(x, 7) }}|{{ '%(k)s' | format(k=x) }}|{{ '{}: {k:>4}'.format(x, k=1) "
       "}}",
       "5", "5-007|5|5:    1"},
      {"{{ x | upper }}|{{ x | replace('a', 'o') }}|{{ x | trim | capitalize }}|{{ x | title }}",
       R"("a cat")", "A CAT|o cot|A cat|A Cat"},
      {"a\n    {% if x %}\nb\n    {% endif %}\nc\n", "true", "a\nb\nc"},
      {"{% for i in x[::-1] %}{{ i }}{% endfor %}", "[1,2,3]", "321"},
      {"a\n  {% generation %}\nb{{ x }}\n  {%- endgeneration %}\nc", "1", "a\nb1c"},
      {"{{ x is sequence }}{{ x is iterable }}{{ x is mapping }}{{ x is string }}", R"("s")",
       "TrueTrueFalseTrue"},
      {"{{ strftime_now('%Y') | length }}", "0", "4"},
      {"{{ raise_exception('no ' ~ x) }}", R"("way")", "ERR no way"},
      {"{{ '%s' }}{{ x | string | length }}", "12.5", "%s4"},
      {"{%- macro m(a, b='d') -%}{{ a }}{{ b }}{%- endmacro -%}{{ m(x) }}", "1", "1d"},
  };
  for (const auto& c : cases) EXPECT_EQ(RenderX(c.source, c.x), c.want) << c.source;
}

// Expected: jinja2 and Python's str, by tools/compare_templates.py --expressions.
TEST(ChatTemplate, HasPythonsStringMethodsAndTextFilters) {
  const struct {
    std::string source, x, want;
  } cases[] = {
      {"{{ x | indent(4, first=true) }}|", R"("{\n")", "    {\n|"},
      {"{{ x | indent(2) }}|{{ x | indent(2, blank=True) }}", R"("a\r\n\nb")",
       "a\n\n  b|a\n  \n  b"},
      {"{{ x | tojson(indent=2) | indent(2, true) }}", R"({"a":[1]})",
       "  {\n    \"a\": [\n      1\n    ]\n  }"},
      {"{{ '' | indent(2, true) }}|{{ x | indent('> ') }}", R"("a\nb")", "  |a\n> b"},
      {"{{ x.splitlines() | join('|') }}", R"("a\rb\r\nc\u2028d\u0085\n")", "a|b|c|d|"},
      {"{{ x.splitlines(true) | length }}", R"("a\n\nb")", "3"},
      {"{{ x | replace('l', 'L', 1) }}{{ x | replace('', '-', 2) }}", R"("all")", "aLl-a-ll"},
      {"{{ x | int }},{{ x | int(5) }},{{ '12' | int }},{{ '2.9' | int }},{{ 'ff' | int(base=16) "
       "}}",
       R"("no")", "0,5,12,2,255"},
      {"{{ x.rsplit('l', 1)[0] }}|{{ x.rsplit('zz') | length }}|{{ x.partition('l')[2] }}|{{ "
       "x.rpartition('l')[0] }}",
       R"("hello")", "hel|1|lo|hel"},
      {"{{ x.removeprefix('he') }}{{ x.removesuffix('lo') }}{{ x.removeprefix('zz') }}",
       R"("hello")", "llohelhello"},
      {"{{ '-7'.zfill(4) }}|{{ x.ljust(3) }}|{{ x.rjust(3, '.') }}|{{ x.center(4) }}|{{ x | "
       "center(5) }}",
       R"("a")", "-007|a  |..a| a  |  a  "},
      {"{{ x.swapcase() }}|{{ x | wordcount }}|{{ x | truncate(8, leeway=0) }}", R"("Hello wORLD")",
       "hELLO World|2|Hello..."},
  };
  for (const auto& c : cases) EXPECT_EQ(RenderX(c.source, c.x), c.want) << c.source;
}

TEST(ChatTemplate, BadTemplatesAndInputsAreErrors) {
  EXPECT_FALSE(ChatTemplate::Compile("{% if %}").ok());
  EXPECT_FALSE(ChatTemplate::Compile("{{ x").ok());
  EXPECT_FALSE(ChatTemplate::Compile("\xff").ok());
  const ChatTemplate t = ChatTemplate::Compile("{{ messages[0].role }}").value();
  for (const char* messages : {"", "{}", "null", "[", "[1,]", "\xff", "[\"\\ud800\"]"}) {
    ChatInput input;
    input.messages_json = messages;
    EXPECT_EQ(t.Render(input).status().code(), StatusCode::kInvalidArgument) << messages;
  }
  ChatInput input;
  input.messages_json = std::string(5000, '[') + std::string(5000, ']');
  EXPECT_FALSE(t.Render(input).ok());
  input.messages_json = "[]";
  input.kwargs_json = "[]";
  EXPECT_FALSE(t.Render(input).ok());
}

// Each would take minutes, gigabytes or the whole stack; ./dev check runs this under a leak
// checker.
TEST(ChatTemplate, RunawayTemplatesStop) {
  const std::string big = "{% set big = 'b' * 100000 %}";
  for (const std::string& source : {
           std::string("{% for i in range(100000) %}{% for j in range(100000) %}{{ x }}{% endfor "
                       "%}{% endfor %}"),
           std::string("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"),
           std::string("{% set ns = namespace(s='aaaaaaaa') %}{% for i in range(60) %}"
                       "{% set ns.s = ns.s + ns.s %}{% endfor %}{{ ns.s }}"),
           std::string("{{ 'a' * 10**9 }}"),
           std::string("{{ range(10**9) | list }}"),
           std::string("{{ '{:999999999}'.format(1) }}"),
           std::string("{{ '{:.999999999f}'.format(1.5) }}"),
           std::string("{{ '%999999999d' | format(1) }}"),
           std::string("{{ ('a' * 60000000).split('a') | length }}"),
           std::string("{{ 'a' | indent(10**9) }}"),
           std::string("{{ [1] | batch(10**9, 'x') | list }}"),
           big + "{{ ('{0}' * 100000).format(big) }}",
           big + "{{ ('%(a)s' * 100000) | format(a=big) }}",
           big + "{{ big.join(range(100000)) }}",
           big + "{{ ''.join([big] * 100000) }}",
           big + "{{ ([big] * 100000) | join }}",
           big + "{{ ([big] * 100000) | upper }}",
           big + "{{ ([big] * 100000) | pprint }}",
           big + "{{ ([big] * 100000) | tojson | length }}",
           big + "{{ [big] * 100000 }}",
           big + "{{ big.replace('b', big) }}",
           big + "{% for i in range(1000) %}{{ big }}{% endfor %}",
       }) {
    EXPECT_EQ(RenderX(source, "1").substr(0, 4), "ERR ") << source;
  }
}

TEST(ChatTemplate, NothingCanHoldItself) {
  for (const char* source : {
           "{% set ns = namespace() %}{% set ns.a = ns %}{{ ns | tojson }}",
           "{% set ns = namespace() %}{%- set ns . a=[1, {'k': ns}] -%}{{ ns }}",
           "{% set ns = namespace() %}{% set ns.a, b = ns, 1 %}{{ ns ~ '' }}",
           "{% set ns = namespace() %}{% set m = namespace(n=ns) %}{% set ns.a = m %}{{ m == ns }}",
           "{% set ns = namespace() %}{% for i in [1] %}{% set ns.a = loop %}{% endfor %}",
           "{% for i in [1, 2] %}{{ loop.changed(loop) }}{% endfor %}",
           "{% for i in [1, 2] %}{% set l = loop %}{{ l . changed([loop]) }}{% endfor %}",
           "{% set ns = namespace(a=0) %}{% for i in range(9999) %}{% set ns.a = [ns.a] %}{% "
           "endfor "
           "%}",
       }) {
    EXPECT_EQ(RenderX(source, "1").substr(0, 4), "ERR ") << source;
  }
}

TEST(ChatTemplate, LongChainsOfOperatorsDoNotOverflowTheStack) {
  auto repeated = [](std::string_view text, int count) {
    std::string all;
    for (int i = 0; i < count; ++i) all += text;
    return all;
  };
  const std::string sources[] = {
      "{{ " + repeated("-", 60'000) + "1 }}",
      "{{ 1" + repeated("+1", 60'000) + " }}",
      "{{ messages" + repeated(".x", 60'000) + " }}",
      "{% if a %}" + repeated("{% elif b %}", 40'000) + "{% endif %}",
  };
  // A template or an error, but an end; what Render makes of it is bounded by its steps.
  for (const std::string& source : sources) (void)ChatTemplate::Compile(source);
  EXPECT_TRUE(ChatTemplate::Compile("{{ 1" + repeated("+1", 1000) + " }}").ok());
}

TEST(ChatTemplate, RequestArgumentsWinOverTheServers) {
  ChatInput input;
  input.messages_json = "[]";
  input.default_kwargs_json = R"({"a": 1, "b": 1})";
  input.kwargs_json = R"({"b": 2, "messages": 5})";
  EXPECT_EQ(RenderOrError("{{ a }}{{ b }}{{ messages }}", input), "12[]");
}

// What clients send and what templates read: each is rewritten only where the template needs it.
TEST(ChatTemplate, MessagesAreAdaptedToTheTemplate) {
  const std::string plain =
      "{% for m in messages %}{{ '[' + m.role + ':' + m.content + ']' }}{% for c in m.tool_calls %}"
      "{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }}{% endfor %}{% endfor %}{% "
      "endfor %}";
  const std::string capable =
      "{% for m in messages %}{{ m.role }}:{% if m.content is string %}{{ m.content }}{% else %}"
      "{% for p in m.content %}<{{ p.text }}>{% endfor %}{% endif %}{% for c in m.tool_calls %}"
      "{{ c.function.arguments if c.function.arguments is string else c.function.arguments | "
      "tojson }}"
      "{% endfor %}{% endfor %}";
  const std::string strings =
      "{% for m in messages %}{% for c in m.tool_calls %}{{ c.function.name + c.function.arguments "
      "}}{% endfor %}{% endfor %}";
  const std::string reasoning = "{% for m in messages %}{{ m.reasoning_content }}{% endfor %}";
  const struct {
    std::string source, messages, want;
  } cases[] = {
      {plain,
       R"([{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}])",
       "[user:ab]"},
      {capable,
       R"([{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}])",
       "user:<a><b>"},
      {plain, R"([{"role":"assistant","content":null}])", "[assistant:]"},
      {plain, R"([{"role":"assistant"}])", "[assistant:]"},
      {plain,
       R"([{"role":"assistant","content":"","tool_calls":[{"function":{"name":"f","arguments":"{\"k\":  1}"}}]}])",
       "[assistant:]k=1"},
      {capable,
       R"([{"role":"assistant","content":"","tool_calls":[{"function":{"name":"f","arguments":"{\"k\":  1}"}}]}])",
       "assistant:{\"k\":  1}"},
      {capable,
       R"([{"role":"assistant","content":"","tool_calls":[{"function":{"name":"f","arguments":{"k":  1}}}]}])",
       "assistant:{\"k\": 1}"},
      {strings,
       R"([{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":{"k":1}}}]}])",
       R"(f{"k":1})"},
      {strings,
       R"([{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"{\"k\":  1}"}}]}])",
       R"(f{"k":  1})"},
      // No arguments, however they are left out.
      {strings, R"([{"role":"assistant","tool_calls":[{"function":{"name":"f"}}]}])", "f{}"},
      {plain, R"([{"role":"assistant","tool_calls":[{"function":{"name":"f"}}]}])", "[assistant:]"},
      {capable, R"([{"role":"assistant","tool_calls":[{"function":{"name":"f"}}]}])",
       "assistant:{}"},
      {capable,
       R"([{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":null}}]}])",
       "assistant:{}"},
      {capable, R"([{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":""}}]}])",
       "assistant:{}"},
      {reasoning, R"([{"role":"assistant","content":"","reasoning":"why"}])", "why"},
      {reasoning, R"([{"role":"assistant","content":"","reasoning":"a","reasoning_content":"b"}])",
       "b"},
      {"{% for m in messages %}{% if m.role not in ['system', 'user', 'assistant'] %}"
       "{{ raise_exception('bad role') }}{% endif %}{{ m.role + m.content }}{% endfor %}",
       R"([{"role":"developer","content":"x"}])", "systemx"},
      {"{% for m in messages %}{{ m.role + m.content }}{% endfor %}",
       R"([{"role":"developer","content":"x"}])", "developerx"},
  };
  for (const auto& c : cases) {
    ChatInput input;
    input.messages_json = c.messages;
    EXPECT_EQ(RenderOrError(c.source, input), c.want) << c.messages;
  }
}

TEST(ChatTemplate, DefaultIsChatMl) {
  ChatInput input;
  input.messages_json = R"([{"role":"system","content":"s"},{"role":"user","content":"u"}])";
  EXPECT_EQ(
      RenderOrError(std::string(kDefaultChatTemplate), input),
      "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\nu<|im_end|>\n<|im_start|>assistant\n");
}

}  // namespace
}  // namespace cairn
