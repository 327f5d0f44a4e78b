// SPDX-License-Identifier: Apache-2.0
#include "host/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <string>

namespace smddp {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW;

}  // namespace

SharedMemory::~SharedMemory() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

Status SharedMemory::MapFd(UniqueFd fd, size_t size) {
  void* data = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (data == MAP_FAILED) {
    return SystemError("mapping " + std::to_string(size) + " bytes of shared memory");
  }
  // A forked child (a data loader) must neither see nor keep alive our staging.
  ::madvise(data, size, MADV_DONTFORK);
  data_ = static_cast<std::byte*>(data);
  size_ = size;
  fd_ = std::move(fd);
  return Status();
}

Result<SharedMemory> SharedMemory::Create(size_t size) {
  UniqueFd fd(::memfd_create("smddp", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return SystemError("memfd_create");
  if (::ftruncate(fd.get(), static_cast<off_t>(size)) != 0) {
    return SystemError("sizing shared memory to " + std::to_string(size) + " bytes");
  }
  if (::fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) {
    return SystemError("sealing shared memory");
  }
  SharedMemory memory;
  SMDDP_RETURN_IF_ERROR(memory.MapFd(std::move(fd), size));
  return memory;
}

Result<SharedMemory> SharedMemory::Map(UniqueFd fd, size_t size) {
  struct stat info = {};
  if (::fstat(fd.get(), &info) != 0) return SystemError("fstat of a peer's memory");
  if (static_cast<size_t>(info.st_size) < size) {
    return Status(StatusCode::kInvalidArgument, "a peer offered " +
                                                    std::to_string(info.st_size) +
                                                    " bytes of shared memory where " +
                                                    std::to_string(size) + " are needed");
  }
  if ((::fcntl(fd.get(), F_GET_SEALS) & kSeals) != kSeals) {
    return Status(StatusCode::kInvalidArgument,
                  "a peer offered shared memory that it could still resize");
  }
  SharedMemory memory;
  SMDDP_RETURN_IF_ERROR(memory.MapFd(std::move(fd), size));
  return memory;
}

}  // namespace smddp
