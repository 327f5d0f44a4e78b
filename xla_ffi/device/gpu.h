// SPDX-License-Identifier: Apache-2.0
// What the engine asks of the GPUs of this process: memory that other GPUs reach, and
// work on streams.
//
// Whoever has GPUs implements it: the module `_cuda` (cuda_gpus.cc), and host memory and
// threads in tests (tests/device/host_gpus.h). The engine itself links nothing of CUDA.
// Everything here may be called by any thread, and what takes a stream only puts work
// there: it never waits. Objects live as long as the process.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "base/status.h"
#include "device/call.h"

namespace smddp::device {

// A cudaStream_t.
using StreamHandle = void*;

// Names memory of one process in another process of the same host.
using MemoryHandle = std::array<std::byte, 64>;

class Gpu {
 public:
  virtual ~Gpu() = default;

  // Among those of this process, as XLA counts them.
  virtual int ordinal() const = 0;

  // Memory of this GPU, all zero. Never given back: peers may still write to it.
  virtual Result<char*> Allocate(size_t bytes) = 0;
  // Host memory under an address that the host and this GPU use alike, all zero.
  virtual Result<char*> AllocateHost(size_t bytes) = 0;

  // Lets other processes map memory that Allocate() gave, and maps theirs.
  virtual Result<MemoryHandle> Export(char* memory) = 0;
  virtual Result<char*> Import(const MemoryHandle& handle) = 0;
  // Lets this GPU's kernels use the memory of another one of this process. Idempotent.
  virtual Status Reach(const Gpu& peer) = 0;

  // Kernels; see launch.h.
  virtual Status Reduce(ReduceOp op, DType in, DType out, const Call& call,
                        StreamHandle stream) = 0;
  virtual Status AllGather(DType in, DType out, const Call& call,
                           StreamHandle stream) = 0;

  // Between memory of this GPU and what AllocateHost() gave, either way.
  virtual Status Copy(void* to, const void* from, size_t bytes, StreamHandle stream) = 0;
  // Writes `value` to a word of host memory after all work before it.
  virtual Status Write(uint64_t* word, uint64_t value, StreamHandle stream) = 0;
  // Holds work behind it back until the word of host memory is at least `value`.
  virtual Status AwaitAtLeast(uint64_t* word, uint64_t value, StreamHandle stream) = 0;
  // Calls `function(argument)` on a thread of the host; it holds the stream up, must not
  // throw, and must not use this interface.
  virtual Status CallHost(void (*function)(void*), void* argument,
                          StreamHandle stream) = 0;

  // A stream of our own on this GPU, beside XLA's.
  virtual Result<StreamHandle> NewStream() = 0;
  // Holds work that comes to `stream` back until what `earlier` has now is done.
  virtual Status Follow(StreamHandle stream, StreamHandle earlier) = 0;
};

class Gpus {
 public:
  virtual ~Gpus() = default;

  // Not ok where there is no driver or no such GPU. The same object every time.
  virtual Result<Gpu*> Get(int ordinal) = 0;
};

}  // namespace smddp::device
