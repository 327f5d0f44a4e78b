// SPDX-License-Identifier: Apache-2.0
// A block of memory that several processes map: an anonymous memfd.
//
// Owned by one object per process and mapping. It has no name in any file system, so
// it is gone with the last process that maps it, whatever way that process ends. Sealed
// against resizing, so that no peer can turn our loads into SIGBUS.
#pragma once

#include <cstddef>
#include <utility>

#include "base/status.h"
#include "base/unique_fd.h"

namespace smddp {

class SharedMemory {
 public:
  SharedMemory() = default;
  SharedMemory(SharedMemory&& other) noexcept { *this = std::move(other); }
  SharedMemory& operator=(SharedMemory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~SharedMemory();

  // Zeroed memory of `size` bytes; pages are taken as they are first touched.
  static Result<SharedMemory> Create(size_t size);
  // Maps what a peer created. Refuses a block smaller than `size` or one that its
  // maker can still shrink.
  static Result<SharedMemory> Map(UniqueFd fd, size_t size);

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  int fd() const { return fd_.get(); }

 private:
  Status MapFd(UniqueFd fd, size_t size);

  std::byte* data_ = nullptr;
  size_t size_ = 0;
  UniqueFd fd_;
};

}  // namespace smddp
