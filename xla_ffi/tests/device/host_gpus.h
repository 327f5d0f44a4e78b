// SPDX-License-Identifier: Apache-2.0
// GPUs made of host memory and threads, for tests of what uses device/gpu.h.
//
// A HostGpus stands for what one process sees: a test makes one for each process that it
// plays. A stream is a thread with a queue; kernels run as in host_execution.h. As on
// CUDA, a kernel may only touch memory that its GPU reaches, and a process cannot import
// what it exported. The owner waits for its streams before it lets a HostGpus go, and
// lets all of a test go together: their kernels write to each other's memory.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "device/gpu.h"
#include "tests/device/host_execution.h"

namespace smddp::device::testing {

class HostGpus;

// What was put on a stream, in order, on a thread of its own.
class HostStream {
 public:
  HostStream();
  ~HostStream();  // Behind what was put there.

  void Put(std::function<void()> work);
  // Waits until what was put there is done.
  void Finish();

 private:
  void Run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> work_;
  bool busy_ = false;
  bool ending_ = false;
  std::thread thread_;
};

class HostGpu : public Gpu {
 public:
  // How a kernel runs here; alike on all GPUs that meet.
  struct Shape {
    uint32_t blocks = 2;
    uint32_t threads = 2;
  };

  HostGpu(HostGpus& gpus, int ordinal, Shape shape)
      : gpus_(gpus), ordinal_(ordinal), shape_(shape) {}

  int ordinal() const override { return ordinal_; }
  Result<char*> Allocate(size_t bytes) override;
  Result<char*> AllocateHost(size_t bytes) override;
  Result<MemoryHandle> Export(char* memory) override;
  Result<char*> Import(const MemoryHandle& handle) override;
  Status Reach(const Gpu& peer) override;
  Status Reduce(ReduceOp op, DType in, DType out, const Call& call,
                StreamHandle stream) override;
  Status AllGather(DType in, DType out, const Call& call, StreamHandle stream) override;
  Status Copy(void* to, const void* from, size_t bytes, StreamHandle stream) override;
  Status Write(uint64_t* word, uint64_t value, StreamHandle stream) override;
  Status AwaitAtLeast(uint64_t* word, uint64_t value, StreamHandle stream) override;
  Status CallHost(void (*function)(void*), void* argument, StreamHandle stream) override;
  Result<StreamHandle> NewStream() override;
  Status Follow(StreamHandle stream, StreamHandle earlier) override;

  void Finish(StreamHandle stream);
  void FinishAll();

 private:
  friend class HostGpus;
  struct Memory {
    size_t bytes = 0;
    std::unique_ptr<char[], void (*)(char*)> owned{nullptr, nullptr};
  };

  Result<char*> New(size_t bytes, std::map<const char*, Memory>& memories);
  Status Launch(HostFunction function, Call call, StreamHandle stream);
  bool Reaches(const char* memory) const;

  HostGpus& gpus_;
  const int ordinal_;
  const Shape shape_;
  mutable std::mutex mutex_;
  std::map<const char*, Memory> own_;
  std::map<const char*, Memory> host_;
  std::map<const char*, size_t> imported_;
  std::vector<const HostGpu*> reached_;
  std::vector<std::unique_ptr<HostStream>> streams_;  // Gone first: they use the rest.
};

class HostGpus : public Gpus {
 public:
  explicit HostGpus(int count, HostGpu::Shape shape = {});

  Result<Gpu*> Get(int ordinal) override;
  HostGpu& gpu(int ordinal) { return *gpus_[static_cast<size_t>(ordinal)]; }
  void FinishAll();

  // From now on every Import and every Reach fails, as where there is no P2P.
  void RefusePeers() { refuses_peers_ = true; }
  bool refuses_peers() const { return refuses_peers_; }

 private:
  bool refuses_peers_ = false;
  std::vector<std::unique_ptr<HostGpu>> gpus_;
};

}  // namespace smddp::device::testing
