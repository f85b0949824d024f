// What tools/compare_tokenizers.py and tools/compare_templates.py compare: the text library over
// many inputs in one process. Standard input and output carry records: a u32 count of fields, then
// each field as a u32 length and its bytes (little endian); one answer record for each record.
//
//   text_batch encode FILE.gguf|DIRECTORY   parse_special ("0" or "1"), text
//                                           -> "ok", ids (u32 each), text of the ids, the same
//                                              without control tokens | "error", message
//   text_batch render                       template, messages, tools, arguments, bos, eos,
//                                           add_generation_prompt ("0" or "1"), now in seconds
//                                           -> "ok", prompt | "error", message
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "gguf_tokenizer.h"
#include "model/gguf.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"
#include "text_file.h"

namespace cairn {
namespace {

using Record = std::vector<std::string>;

constexpr uint32_t kFieldsMax = 16;
constexpr uint32_t kFieldBytesMax = 256u << 20;
constexpr size_t kJsonBytesMax = 256u << 20;

bool ReadWord(uint32_t* word) { return std::fread(word, sizeof(*word), 1, stdin) == 1; }

// nullopt at the end of the input, and for one that is broken.
std::optional<Record> ReadRecord() {
  uint32_t count = 0;
  if (!ReadWord(&count) || count > kFieldsMax) return std::nullopt;
  Record record(count);
  for (std::string& field : record) {
    uint32_t size = 0;
    if (!ReadWord(&size) || size > kFieldBytesMax) return std::nullopt;
    field.resize(size);
    if (size != 0 && std::fread(field.data(), 1, size, stdin) != size) return std::nullopt;
  }
  return record;
}

void WriteRecord(const Record& record) {
  const auto write_word = [](size_t value) {
    const auto word = static_cast<uint32_t>(value);
    std::fwrite(&word, sizeof(word), 1, stdout);
  };
  write_word(record.size());
  for (const std::string& field : record) {
    write_word(field.size());
    std::fwrite(field.data(), 1, field.size(), stdout);
  }
}

Result<Tokenizer> OpenTokenizer(const std::string& path) {
  if (path.ends_with(".gguf")) {
    ASSIGN_OR_RETURN(const GgufFile file, GgufFile::Open(path));
    ASSIGN_OR_RETURN(const TokenizerSpec spec, ReadTokenizerSpec(file));
    return Tokenizer::Create(spec);
  }
  ASSIGN_OR_RETURN(const std::string json,
                   ReadTextFile("tokenizer", path + "/tokenizer.json", kJsonBytesMax));
  const auto config = ReadTextFile("config", path + "/tokenizer_config.json", kJsonBytesMax);
  return Tokenizer::FromJson(json, config.ok() ? *config : std::string());
}

Record Encoded(const Tokenizer& tokenizer, const Record& in) {
  const auto ids = tokenizer.Encode(in[1], {.parse_special = in[0] == "1"});
  if (!ids.ok()) return {"error", ids.status().message()};
  std::string bytes(reinterpret_cast<const char*>(ids->data()), ids->size() * sizeof(Token));
  return {"ok", std::move(bytes), tokenizer.Decode(*ids, false), tokenizer.Decode(*ids, true)};
}

int Encode(const std::string& path) {
  const auto tokenizer = OpenTokenizer(path);
  if (!tokenizer.ok()) {
    std::fprintf(stderr, "%s\n", tokenizer.status().message().c_str());
    return 2;
  }
  while (const auto in = ReadRecord()) {
    if (in->size() != 2) return 2;
    WriteRecord(Encoded(*tokenizer, *in));
  }
  return 0;
}

int Render() {
  std::string source;
  std::optional<Result<ChatTemplate>> compiled;
  while (const auto in = ReadRecord()) {
    if (in->size() != 8) return 2;
    if (!compiled || source != (*in)[0]) {
      source = (*in)[0];
      compiled.emplace(ChatTemplate::Compile(source));
    }
    if (!compiled->ok()) {
      WriteRecord({"error", compiled->status().message()});
      continue;
    }
    ChatInput input;
    input.messages_json = (*in)[1];
    input.tools_json = (*in)[2];
    input.kwargs_json = (*in)[3];
    input.bos_token = (*in)[4];
    input.eos_token = (*in)[5];
    input.add_generation_prompt = (*in)[6] == "1";
    input.now_unix_s = std::strtoll((*in)[7].c_str(), nullptr, 10);
    const auto prompt = (*compiled)->Render(input);
    WriteRecord(prompt.ok() ? Record{"ok", *prompt} : Record{"error", prompt.status().message()});
  }
  return 0;
}

}  // namespace
}  // namespace cairn

int main(int argc, char** argv) {
  const std::string_view mode = argc > 1 ? argv[1] : "";
  if (mode == "encode" && argc == 3) return cairn::Encode(argv[2]);
  if (mode == "render" && argc == 2) return cairn::Render();
  std::fprintf(stderr, "usage: text_batch encode FILE.gguf|DIRECTORY | text_batch render\n");
  return 2;
}
