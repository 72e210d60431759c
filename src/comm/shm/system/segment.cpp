// SPDX-License-Identifier: Apache-2.0
#include "comm/shm/system/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <cerrno>
#include <mutex>
#include <string>
#include <utility>

#include "comm/fork_safe_mutex.h"
#include "comm/memory_limits.h"
#include "comm/shm/system/private_in_child.h"
#include "comm/shm/system/system_call.h"

namespace farandole::comm::shm {
namespace {

constexpr const char* kMoreMemory =
    "give the container or cgroup more memory, or lower FARANDOLE_STAGING_BYTES.";

/// Throws if the file would exceed the limit on file sizes, which would be the signal SIGXFSZ.
void check_file_size_limit(size_t bytes) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) != 0 || bytes <= limit.rlim_cur) return;
  throw_errno("making a shared segment of " + std::to_string(bytes) + " bytes", "", EFBIG);
}

/// Throws if there is less memory left, because otherwise the kernel would kill a process.
void check_memory_left(size_t bytes) {
  constexpr size_t kWorthALook = size_t{1} << 20;
  if (bytes < kWorthALook) return;
  const auto left = memory_left();
  if (!left || bytes <= left->bytes) return;
  throw SystemError(
      "no-memory-left",
      "creating a shared memory segment of " + std::to_string(bytes) + " bytes failed.",
      left->limit + " has " + std::to_string(left->bytes) + " bytes left.", kMoreMemory);
}

/// Whether another kind of file may work if memfd_create() has failed with `error`.
bool is_missing(int error) { return error == ENOSYS || error == EPERM || error == EACCES; }

Descriptor create_memfd(size_t bytes) {
  Descriptor segment(
      retried([] { return ::memfd_create("farandole", MFD_CLOEXEC | MFD_ALLOW_SEALING); }));
  if (!segment.valid()) return segment;
  const auto size = static_cast<off_t>(bytes);
  if (retried([&] { return ::ftruncate(segment.get(), size); }) != 0) {
    throw_errno("ftruncate of a shared segment to " + std::to_string(bytes) + " bytes",
                kMoreMemory);
  }
  ::fcntl(segment.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  return segment;
}

/// Reserves the pages now, so that a full /dev/shm is an exception, not a SIGBUS later.
Descriptor create_tmpfile(size_t bytes) {
  Descriptor segment(retried(
      [] { return ::open("/dev/shm", O_TMPFILE | O_RDWR | O_CLOEXEC, S_IRUSR | S_IWUSR); }));
  if (!segment.valid()) {
    throw_errno("opening an unnamed file in /dev/shm", "mount a writable tmpfs on /dev/shm.");
  }
  int error = EINTR;
  while (error == EINTR) {
    error = ::posix_fallocate(segment.get(), 0, static_cast<off_t>(bytes));
  }
  if (error != 0) {
    throw_errno("reserving " + std::to_string(bytes) + " bytes in /dev/shm",
                "enlarge /dev/shm (docker run --shm-size=...), or lower FARANDOLE_STAGING_BYTES.",
                error);
  }
  return segment;
}

}  // namespace

Descriptor create_segment(size_t bytes, SegmentBacking backing) {
  check_file_size_limit(bytes);
  check_memory_left(bytes);
  if (backing != SegmentBacking::kTmpfile) {
    Descriptor segment = create_memfd(bytes);
    if (segment.valid()) return segment;
    if (backing == SegmentBacking::kMemfd || !is_missing(errno)) {
      throw_errno("memfd_create", "set FARANDOLE_SEGMENTS=auto to fall back to /dev/shm.");
    }
  }
  return create_tmpfile(bytes);
}

void reserve(const Descriptor& segment, size_t offset, size_t bytes) {
  const auto begin = static_cast<off_t>(offset);
  const auto length = static_cast<off_t>(bytes);
  if (retried([&] { return ::fallocate(segment.get(), 0, begin, length); }) == 0) return;
  if (errno == EOPNOTSUPP || errno == ENOSYS) return;  // a sandbox: reserves nothing
  throw_errno("reserving " + std::to_string(bytes) + " bytes of shared memory", kMoreMemory);
}

/// Guarded by fork_safe_mutex<Mapping>(). Never destroyed: groups may be released while the process
/// exits.
Mapping::Registry& Mapping::registry() {
  static auto* const instance = new Registry;
  return *instance;
}

std::shared_ptr<Mapping> Mapping::of(const Descriptor& segment, InChild in_child) {
  std::shared_ptr<Mapping> mapping = find_or_map(segment, in_child);
  if (in_child == InChild::kPrivate) {
    make_private_in_children(mapping->data_, mapping->bytes_, segment);
  }
  return mapping;
}

std::shared_ptr<Mapping> Mapping::find_or_map(const Descriptor& segment, InChild in_child) {
  struct stat status {};
  if (::fstat(segment.get(), &status) != 0) {
    throw_errno("fstat of a shared segment", "report this; the descriptor should be good.");
  }
  const std::lock_guard<std::mutex> lock(fork_safe_mutex<Mapping>());
  const Identity identity{status.st_dev, status.st_ino};
  std::weak_ptr<Mapping>& entry = registry()[identity];
  if (auto mapping = entry.lock()) return mapping;
  const auto bytes = static_cast<size_t>(status.st_size);
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, segment.get(), 0);
  if (data == MAP_FAILED) {
    throw_errno("mapping " + std::to_string(bytes) + " bytes of shared memory",
                "raise the address space limit (ulimit -v) or vm.max_map_count.");
  }
  ::madvise(data, bytes, MADV_HUGEPAGE);  // a hint; refused where huge pages are off
  if (in_child == InChild::kUnmapped) ::madvise(data, bytes, MADV_DONTFORK);
  std::shared_ptr<Mapping> mapping(
      new Mapping(identity, static_cast<std::byte*>(data), bytes, in_child));
  entry = mapping;
  return mapping;
}

void Mapping::populate(const Descriptor& segment, size_t offset, size_t bytes) const {
  constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE of Linux 5.14
  if (retried([&] { return ::madvise(data_ + offset, bytes, kPopulateWrite); }) == 0) return;
  reserve(segment, offset, bytes);  // for an older kernel, or to get the error
}

Mapping::~Mapping() {
  if (in_child_ == InChild::kPrivate) forget_private_in_children(data_);
  // In a forked child without the pages, something else may stand at their addresses.
  if (in_child_ == InChild::kPrivate || fork_guard_.in_creator()) ::munmap(data_, bytes_);
  const std::lock_guard<std::mutex> lock(fork_safe_mutex<Mapping>());
  const auto entry = registry().find(identity_);
  if (entry != registry().end() && entry->second.expired()) registry().erase(entry);
}

}  // namespace farandole::comm::shm
