// What the tests of this folder share: copies of model directories, and changes in them.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "model/load.h"
#include "model/open_model.h"

namespace cairn::testing {

inline const std::string kData = "tests/golden/data/";

// A directory of its own, removed at the end.
class TempDirectory {
 public:
  TempDirectory() {
    std::string name = (std::filesystem::temp_directory_path() / "cairn_hf_XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ~TempDirectory() {
    std::error_code ec;
    std::filesystem::remove_all(path_, ec);
  }
  TempDirectory(const TempDirectory&) = delete;
  TempDirectory& operator=(const TempDirectory&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

inline std::string ReadAll(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in.good()) << path;
  return {std::istreambuf_iterator<char>(in), {}};
}

inline void WriteAll(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

inline void CopyFiles(const std::string& from, const std::string& to) {
  std::filesystem::create_directories(to);
  for (const auto& entry : std::filesystem::directory_iterator(from))
    WriteAll(to + "/" + entry.path().filename().string(), ReadAll(entry.path().string()));
}

// Replaces the first `from` after the first `after` in a file.
inline void Replace(const std::string& path, const std::string& after, const std::string& from,
                    const std::string& to) {
  std::string text = ReadAll(path);
  const size_t begin = text.find(after);
  ASSERT_NE(begin, std::string::npos) << after;
  const size_t at = text.find(from, begin);
  ASSERT_NE(at, std::string::npos) << from;
  WriteAll(path, text.replace(at, from.size(), to));
}

inline std::string WithHeader(const std::string& header, const std::string& data) {
  const uint64_t length = header.size();
  std::string out(sizeof length, '\0');
  std::memcpy(out.data(), &length, sizeof length);
  return out + header + data;
}

// The same in the header of a safetensors file, whose length may change.
inline void ReplaceInHeader(const std::string& path, const std::string& after,
                            const std::string& from, const std::string& to) {
  const std::string file = ReadAll(path);
  uint64_t length = 0;
  std::memcpy(&length, file.data(), sizeof length);
  std::string header = file.substr(sizeof length, length);
  const size_t begin = header.find(after);
  ASSERT_NE(begin, std::string::npos) << after;
  const size_t at = header.find(from, begin);
  ASSERT_NE(at, std::string::npos) << from;
  header.replace(at, from.size(), to);
  WriteAll(path, WithHeader(header, file.substr(sizeof length + length)));
}

inline Status OpenAndLoad(const std::string& path) {
  const auto file = OpenModelFile(path);
  if (!file.ok()) return file.status();
  return LoadModel(**file).status();
}

}  // namespace cairn::testing
