#include "model/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace cairn {
namespace {

// Closes a file descriptor at the end of a scope.
class ScopedFd {
 public:
  explicit ScopedFd(int fd) : fd_(fd) {}
  ~ScopedFd() {
    if (fd_ >= 0) ::close(fd_);
  }
  ScopedFd(const ScopedFd&) = delete;
  ScopedFd& operator=(const ScopedFd&) = delete;
  int get() const { return fd_; }

 private:
  const int fd_;
};

std::string SystemError(const char* what, const std::string& path) {
  return std::string("[file] ") + what + " '" + path + "': " + std::strerror(errno);
}

// madvise over the whole pages of the mapping `whole` that `part` touches (a mapping begins on a
// page). Advice is a hint: a refusal changes nothing.
void Advise(std::span<const std::byte> whole, std::span<const std::byte> part, int advice) {
  if (part.empty()) return;
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = static_cast<size_t>(part.data() - whole.data()) / page * page;
  const auto end = static_cast<size_t>(part.data() - whole.data()) + part.size();
  (void)::madvise(const_cast<std::byte*>(whole.data()) + begin, end - begin, advice);
}

}  // namespace

Result<MappedFile> MappedFile::Open(const std::string& path) {
  const ScopedFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (fd.get() < 0) {
    if (errno == ENOENT || errno == ENOTDIR) return NotFound(SystemError("cannot open", path));
    return InvalidArgument(SystemError("cannot open", path));
  }
  struct stat info{};
  if (::fstat(fd.get(), &info) != 0) return Internal(SystemError("cannot stat", path));
  if (!S_ISREG(info.st_mode)) return InvalidArgument("[file] '" + path + "' is not a regular file");
  if (info.st_size == 0) return DataLoss("[file] '" + path + "' is empty");
  const auto size = static_cast<size_t>(info.st_size);
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (data == MAP_FAILED) return Internal(SystemError("cannot map", path));
  MappedFile file;
  file.data_ = static_cast<const std::byte*>(data);
  file.size_ = size;
  return file;
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

void MappedFile::Prefetch(std::span<const std::byte> part) const {
  Advise(bytes(), part, MADV_WILLNEED);
}

// The mapping is private and never written, so a dropped page comes back from the file unchanged.
void MappedFile::Release(std::span<const std::byte> part) const {
  Advise(bytes(), part, MADV_DONTNEED);
}

}  // namespace cairn
