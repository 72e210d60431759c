// SPDX-License-Identifier: Apache-2.0
#include "support/simulated_nccl/region.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <map>
#include <mutex>
#include <system_error>

namespace farandole::sim::nccl {
namespace {

struct Mappings {
  std::mutex mutex;
  std::map<std::string, std::weak_ptr<Region>> by_name;  ///< guarded by mutex
};

Mappings& mappings() {
  static auto* made = new Mappings;  // kernels may use it while the process ends
  return *made;
}

Region* map(const std::string& name) {
  const int file = ::shm_open(name.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
  if (file < 0) throw std::system_error(errno, std::generic_category(), "shm_open " + name);
  void* mapped = MAP_FAILED;
  if (::ftruncate(file, sizeof(Region)) == 0) {
    mapped = ::mmap(nullptr, sizeof(Region), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  }
  const int error = errno;
  ::close(file);
  if (mapped == MAP_FAILED) throw std::system_error(error, std::generic_category(), "mmap " + name);
  return static_cast<Region*>(mapped);
}

}  // namespace

void Region::publish_fault(const std::string& text) {
  int none = 0;
  if (!fault_state.compare_exchange_strong(none, 1)) return;
  std::snprintf(fault_text, sizeof fault_text, "%s", text.c_str());
  fault_state.store(2);
}

std::shared_ptr<Region> open_region(const std::string& name) {
  const std::lock_guard<std::mutex> lock(mappings().mutex);
  std::weak_ptr<Region>& known = mappings().by_name[name];
  std::shared_ptr<Region> region = known.lock();
  if (region == nullptr) {
    region.reset(map(name), [name](Region* mapped) {
      ::munmap(mapped, sizeof(Region));
      remove_name(name);
    });
    known = region;
  }
  return region;
}

void remove_name(const std::string& name) { ::shm_unlink(name.c_str()); }

}  // namespace farandole::sim::nccl
