#include "model/hf/hf_files.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <utility>

#include "base/bytes.h"

namespace cairn {
namespace {

namespace fs = std::filesystem;

constexpr char kIndexName[] = "model.safetensors.index.json";
constexpr uint64_t kRefBytesMax = 256;
constexpr uint64_t kIndexBytesMax = 128ull << 20;
constexpr size_t kShardsMax = 4096;

bool Exists(const std::string& path) {
  std::error_code ec;
  return fs::exists(path, ec);
}

// Names of the entries of a directory, sorted; those that end in `suffix`.
std::vector<std::string> List(const std::string& directory, std::string_view suffix) {
  std::vector<std::string> names;
  std::error_code ec;
  for (fs::directory_iterator at(directory, ec), end; !ec && at != end; at.increment(ec)) {
    std::string name = at->path().filename().string();
    if (name.ends_with(suffix)) names.push_back(std::move(name));
  }
  std::sort(names.begin(), names.end());
  return names;
}

Status Missing(const std::string& directory, const std::string& part, const std::string& note) {
  return NotFound("[hf] directory '" + directory + "': " + part + " is missing" + note);
}

// A file of this directory, not a path out of it.
bool IsPlainName(std::string_view name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of("/\\") == std::string_view::npos &&
         name.find('\0') == std::string_view::npos;
}

}  // namespace

Result<std::string> ReadTextFile(const std::string& path, uint64_t bytes_max) {
  std::error_code ec;
  if (!fs::is_regular_file(path, ec)) return NotFound("[file] '" + path + "' is no file");
  const uint64_t size = fs::file_size(path, ec);
  if (ec || size > bytes_max) {
    return ResourceExhausted("[file] '" + path + "': got " + FormatSize(size) +
                             ", wanted at most " + FormatSize(bytes_max));
  }
  std::ifstream in(path, std::ios::binary);
  std::string text(size, '\0');
  in.read(text.data(), static_cast<std::streamsize>(size));
  if (static_cast<uint64_t>(in.gcount()) != size)
    return DataLoss("[file] cannot read '" + path + "'");
  return text;
}

Result<std::string> ResolveHfDirectory(const std::string& path) {
  if (Exists(path + "/config.json") || !Exists(path + "/snapshots")) return path;
  const std::string ref_path = path + "/refs/main";
  if (Exists(ref_path)) {
    ASSIGN_OR_RETURN(std::string ref, ReadTextFile(ref_path, kRefBytesMax));
    while (!ref.empty() && (ref.back() == '\n' || ref.back() == ' ')) ref.pop_back();
    if (!IsPlainName(ref)) {
      return DataLoss("[hf] '" + ref_path + "': got " + QuoteForMessage(ref) +
                      ", wanted the name of a snapshot");
    }
    if (Exists(path + "/snapshots/" + ref)) return path + "/snapshots/" + ref;
    return Missing(path, "snapshot " + QuoteForMessage(ref) + " (named by refs/main)", "");
  }
  const std::vector<std::string> snapshots = List(path + "/snapshots", "");
  if (snapshots.size() == 1) return path + "/snapshots/" + snapshots[0];
  return Missing(
      path, "refs/main",
      ", and snapshots/ has " + std::to_string(snapshots.size()) + " entries, wanted one");
}

Result<HfShards> HfShards::Open(const std::string& directory) {
  HfShards shards;
  const std::string index_path = directory + "/" + kIndexName;
  if (Exists(index_path)) {
    ASSIGN_OR_RETURN(const std::string text, ReadTextFile(index_path, kIndexBytesMax));
    ASSIGN_OR_RETURN(const JsonValue index, ParseJson(text, kIndexName));
    const JsonValue* weight_map = index.Find("weight_map");
    if (weight_map == nullptr || !weight_map->is_object()) {
      return DataLoss("[hf] '" + index_path + "': got no weight_map");
    }
    std::set<std::string, std::less<>> names;
    for (const auto& [tensor, shard] : weight_map->members()) {
      if (!shard.is_string() || !IsPlainName(*shard.AsString())) {
        return DataLoss("[hf] " + std::string(kIndexName) + ": got " + shard.Describe() +
                        " as the shard of " + QuoteForMessage(tensor) + ", wanted a file name");
      }
      names.emplace(*shard.AsString());
    }
    if (names.size() > kShardsMax) return ResourceExhausted("[hf] more than 4096 shards");
    for (const std::string& name : names) RETURN_IF_ERROR(shards.OpenShard(directory, name));
    RETURN_IF_ERROR(shards.CheckIndex(*weight_map));
    return shards;
  }
  if (Exists(directory + "/model.safetensors")) {
    RETURN_IF_ERROR(shards.OpenShard(directory, "model.safetensors"));
    return shards;
  }
  const std::vector<std::string> files = List(directory, ".safetensors");
  if (files.size() == 1) {
    RETURN_IF_ERROR(shards.OpenShard(directory, files[0]));
    return shards;
  }
  if (files.size() > 1) {
    return Missing(directory, kIndexName,
                   "; it says which of " + std::to_string(files.size()) + " shards has what");
  }
  const bool pickled = !List(directory, ".bin").empty();
  return Missing(directory, "model.safetensors",
                 pickled ? " (.bin weights are not in this version)" : "");
}

Status HfShards::OpenShard(const std::string& directory, const std::string& name) {
  const std::string path = directory + "/" + name;
  if (!Exists(path)) return Missing(directory, "shard " + QuoteForMessage(name), "");
  ASSIGN_OR_RETURN(SafetensorsFile shard, SafetensorsFile::Open(path));
  for (const SafetensorsTensor& tensor : shard.tensors()) {
    const auto [at, is_new] = tensors_.try_emplace(tensor.name, &tensor);
    if (!is_new) {
      return DataLoss("[hf] tensor " + QuoteForMessage(tensor.name) + ": got it twice, in shards " +
                      QuoteForMessage(names_[shard_of_[tensor.name]]) + " and " +
                      QuoteForMessage(name));
    }
    shard_of_[tensor.name] = names_.size();
  }
  names_.push_back(name);
  shards_.push_back(std::move(shard));  // its tensors stay where they are
  return {};
}

Status HfShards::CheckIndex(const JsonValue& weight_map) const {
  for (const auto& [tensor, shard] : weight_map.members()) {
    const auto at = shard_of_.find(tensor);
    if (at != shard_of_.end() && names_[at->second] == *shard.AsString()) continue;
    return DataLoss(
        "[hf] " + std::string(kIndexName) + ": tensor " + QuoteForMessage(tensor) +
        " is not in shard " + shard.Describe() +
        (at == shard_of_.end() ? "" : " but in " + QuoteForMessage(names_[at->second])));
  }
  if (weight_map.members().size() == tensors_.size()) return {};
  std::set<std::string_view> indexed;
  for (const auto& member : weight_map.members()) indexed.insert(member.first);
  for (const auto& [name, shard] : shard_of_) {
    if (indexed.contains(name)) continue;
    return DataLoss("[hf] " + std::string(kIndexName) + ": got no entry for tensor " +
                    QuoteForMessage(name) + " of shard " + QuoteForMessage(names_[shard]));
  }
  return {};
}

const SafetensorsTensor* HfShards::Find(std::string_view name) const {
  const auto at = tensors_.find(name);
  return at == tensors_.end() ? nullptr : at->second;
}

uint64_t HfShards::size_bytes() const {
  uint64_t total = 0;
  for (const SafetensorsFile& shard : shards_) total += shard.size_bytes();
  return total;
}

void HfShards::ReleasePages(std::span<const std::byte> bytes) const {
  for (const SafetensorsFile& shard : shards_) {
    if (shard.Contains(bytes)) return shard.ReleasePages(bytes);
  }
}

}  // namespace cairn
