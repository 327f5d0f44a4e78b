// SPDX-License-Identifier: Apache-2.0
// What the processes of this host told about their GPUs, until somebody wants to know.
//
// Owned by the engine's streams. The mesh's watcher thread puts messages in; any thread
// takes them out.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>

#include "base/deadline.h"
#include "base/status.h"
#include "comm/local_mesh.h"

namespace smddp {

class DeviceMail {
 public:
  struct Failure {
    int process = 0;  // Who said it.
    std::string why;
  };

  // A kDevice or kDeviceFailure message.
  void Put(const MeshMessage& message);
  // A process is gone: who waits for it must look.
  void NoteLoss();
  // Grows with every failure and loss: as long as it does not, there are none to ask for.
  uint64_t news() const { return news_.load(); }

  // Waits for the message of `process` about `value` in `group`, while the group has not
  // failed and the process is not lost. The error says no more than why there is none.
  Result<MeshMessage> Await(uint64_t group, int process, uint64_t value,
                            const LocalMesh& mesh, const Deadline& deadline);
  // The first failure of `group` that a peer told.
  std::optional<Failure> FailureOf(uint64_t group) const;

 private:
  std::atomic<uint64_t> news_{0};
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::tuple<uint64_t, int, uint64_t>, MeshMessage> messages_;
  std::map<uint64_t, Failure> failures_;
};

}  // namespace smddp
