// Runs a fuzz target without libFuzzer: each file of a corpus, then mutations of it. The same
// inputs on each run. Usage: fuzz_NAME CORPUS [MUTATIONS PER FILE]

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "fuzz.h"

namespace {

constexpr size_t kInputBytesMax = size_t{64} << 10;
constexpr int kMutationsPerFile = 100;

using Random = std::mt19937_64;

size_t Below(Random& random, size_t limit) { return limit == 0 ? 0 : random() % limit; }

// One change: a byte, a number of an interesting size, a cut, a repetition, a piece of another
// file.
void Change(Random& random, const std::vector<std::string>& corpus, std::string* text) {
  constexpr unsigned char kBytes[] = {0, 1, 0x7f, 0x80, 0xff, '"', '{', '}', '%', '\\', '\n', ' '};
  const size_t at = Below(random, text->size());
  const size_t count = Below(random, std::min<size_t>(text->size() - at, 64)) + 1;
  switch (Below(random, 6)) {
    case 0:
      if (!text->empty()) (*text)[at] = static_cast<char>(random());
      break;
    case 1:
      text->insert(at, 1, static_cast<char>(kBytes[Below(random, std::size(kBytes))]));
      break;
    case 2:
      for (size_t i = at; i < std::min(at + 8, text->size()); ++i)
        (*text)[i] = static_cast<char>(kBytes[Below(random, 5)]);
      break;
    case 3:
      text->erase(at, count);
      break;
    case 4:
      text->insert(at, text->substr(at, count));
      break;
    default: {
      const std::string& other = corpus[Below(random, corpus.size())];
      text->insert(at, other.substr(Below(random, other.size()), count));
    }
  }
  if (text->size() > kInputBytesMax) text->resize(kInputBytesMax);
}

void Run(const std::string& text) {
  (void)LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(text.data()), text.size());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: %s CORPUS [MUTATIONS PER FILE]\n", argv[0]);
    return 2;
  }
  const int mutations = argc > 2 ? std::atoi(argv[2]) : kMutationsPerFile;
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(argv[1])) paths.push_back(entry);
  std::sort(paths.begin(), paths.end());
  std::vector<std::string> corpus;
  for (const auto& path : paths) {
    std::ifstream file(path, std::ios::binary);
    corpus.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  if (corpus.empty()) {
    std::fprintf(stderr, "%s: no files\n", argv[1]);
    return 1;
  }
  Run("");
  size_t runs = 1;
  for (size_t i = 0; i < corpus.size(); ++i) {
    Run(corpus[i]);
    Random random(i);
    for (int m = 0; m < mutations; ++m) {
      std::string text = corpus[i];
      for (size_t changes = Below(random, 4) + 1; changes > 0; --changes)
        Change(random, corpus, &text);
      Run(text);
    }
    runs += 1 + static_cast<size_t>(std::max(mutations, 0));
  }
  std::printf("%zu inputs from %zu files\n", runs, corpus.size());
  return 0;
}
