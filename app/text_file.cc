#include "text_file.h"

#include <filesystem>
#include <fstream>

#include "base/bytes.h"

namespace cairn {

Result<std::string> ReadTextFile(const std::string& what, const std::string& path,
                                 size_t bytes_max) {
  std::error_code ec;
  std::ifstream file(path, std::ios::binary);
  if (!file || std::filesystem::is_directory(path, ec))
    return NotFound("[flags] " + what + " " + path + ": cannot be read, wanted a file");
  std::string text(bytes_max + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  if (text.size() > bytes_max)
    return InvalidArgument("[flags] " + what + " " + path + ": more than " + FormatSize(bytes_max));
  return text;
}

}  // namespace cairn
