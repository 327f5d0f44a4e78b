// SPDX-License-Identifier: Apache-2.0
// A job in one process, for tests: every rank is an Engine, every host an id.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <latch>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "collective/engine.h"
#include "tests/comm/map_store.h"

namespace smddp {

inline Settings SmallSettings() {
  Settings settings;
  settings.timeout_seconds = 30;
  settings.segment_bytes = 4096;  // Many segments on little data.
  settings.shard_bytes = 2048;
  settings.threads = 2;
  settings.host_id = "test";
  return settings;
}

// How many of what there is.
struct Layout {
  int processes;
  int devices;    // Of each process.
  int hosts = 1;  // Which the processes are dealt to in blocks.
  int lanes = 1;
};

// One job: an engine per process. Hosts are ids; the network is loopback.
class Job {
 public:
  Job(Layout layout, Settings settings = SmallSettings()) : devices_(layout.devices) {
    const int processes = layout.processes, devices = layout.devices;
    std::vector<Member> members;
    for (int p = 0; p < processes; ++p) {
      settings.host_id = "host" + std::to_string(p * layout.hosts / processes);
      settings.connections = layout.lanes;
      engines_.push_back(std::make_unique<Engine>(settings));
      for (int d = 0; d < devices; ++d) members.push_back({Device(p, d), p});
    }
    for (int p = 0; p < processes; ++p) {
      groups_.push_back(std::make_shared<const Group>(members, p));
    }
    if (processes == 1) return;
    EachProcess([&](int p) {
      const Status status =
          engines_[static_cast<size_t>(p)]->Connect(p, processes, store_);
      ASSERT_TRUE(status.ok()) << status.message();
    });
  }

  static int64_t Device(int process, int device) { return process * 2048 + device; }

  int processes() const { return static_cast<int>(engines_.size()); }
  int devices() const { return devices_; }
  Engine& engine(int process) { return *engines_[static_cast<size_t>(process)]; }
  void Kill(int process) { engines_[static_cast<size_t>(process)].reset(); }
  const std::shared_ptr<const Group>& group(int process) {
    return groups_[static_cast<size_t>(process)];
  }

  template <typename Body>
  void EachProcess(Body&& body) {
    std::vector<std::thread> threads;
    for (int p = 0; p < processes(); ++p) threads.emplace_back([&, p] { body(p); });
    for (std::thread& thread : threads) thread.join();
  }

 private:
  MapStore store_;
  const int devices_;
  std::vector<std::shared_ptr<const Group>> groups_;
  std::vector<std::unique_ptr<Engine>> engines_;
};

// What one process contributes to one collective, and what it gets.
template <typename T>
struct Buffers {
  Buffers(int devices, const std::vector<size_t>& counts)
      : in(devices), out(devices), left(devices), status(devices) {
    for (int d = 0; d < devices; ++d) {
      for (size_t count : counts) {
        in[d].emplace_back(count);
        out[d].emplace_back(count, T{});
      }
    }
  }
  std::vector<std::vector<std::vector<T>>> in, out;  // [device][tensor][element]
  std::latch left;
  std::vector<Status> status;
};

template <typename T>
void Submit(Job& job, int process, OpInstance& op, int64_t run_id,
            const std::shared_ptr<const Signature>& signature, Buffers<T>& buffers) {
  for (int d = 0; d < job.devices(); ++d) {
    Participant participant;
    for (auto& tensor : buffers.in[d]) participant.inputs.push_back(tensor.data());
    for (auto& tensor : buffers.out[d]) participant.outputs.push_back(tensor.data());
    participant.done = [&buffers, d](const Status& status) {
      buffers.status[d] = status;
      buffers.left.count_down();
    };
    job.engine(process).Submit(op, run_id, Job::Device(process, d), job.group(process),
                               signature, std::move(participant));
  }
}

inline std::shared_ptr<const Signature> MakeSignature(ReduceOp op, DType dtype,
                                                      const std::vector<size_t>& counts) {
  std::vector<std::string> shapes;
  for (size_t count : counts) shapes.push_back("[" + std::to_string(count) + "]");
  return std::make_shared<const Signature>(op, dtype, counts, shapes);
}

inline OpInstance MakeOp(uint64_t key) {
  OpInstance op;
  op.key = key;
  op.label = "psum #" + std::to_string(key);
  return op;
}

using Words = std::vector<std::string>;

inline void ExpectError(Buffers<float>& buffers, StatusCode code, const Words& mentions) {
  buffers.left.wait();
  for (const Status& status : buffers.status) {
    EXPECT_EQ(status.code(), code) << status.message();
    for (const std::string& word : mentions) {
      EXPECT_NE(status.message().find(word), std::string::npos)
          << "no '" << word << "' in: " << status.message();
    }
  }
}

}  // namespace smddp
