// SPDX-License-Identifier: Apache-2.0
// One of several independent ways over the network: a transport, its lock, its thread.
//
// Two processes have one connection per lane, and a stream lives on one lane, so lanes
// share nothing and need no common lock. Owned by collective/network.h in a worker and
// by reducer/reducer_server.h in a dedicated reducer. Whoever holds the lock may use the
// transport; the lane's thread sleeps without it.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "base/thread.h"
#include "transport/transport.h"

namespace smddp {

class Lane {
 public:
  // `after` is called by the lane's thread, without the lock, when frames have moved.
  // `failed` gets an exception that ended the thread.
  Lane(std::string name, std::unique_ptr<Transport> transport,
       std::function<void()> after, std::function<void(Status)> failed);
  // Ends the thread, then closes all connections.
  ~Lane();

  // Starts the thread; not before the receiver can take what comes.
  void Start();

  [[nodiscard]] std::unique_lock<std::mutex> Lock();
  Transport& transport() { return *transport_; }  // With the lock.

  // Waits until all is handed to the network; false after `seconds`. Without the lock.
  bool Flush(double seconds);
  // Ends the thread. Idempotent.
  void Stop();

 private:
  void Run();

  const std::string name_;
  const std::function<void()> after_;
  const std::function<void(Status)> failed_;
  std::mutex mutex_;
  std::atomic<int> wanted_{0};  // Threads in Lock(): the lane's own lets them go first.
  std::unique_ptr<Transport> transport_;
  std::atomic<bool> stopping_{false};
  Thread thread_;
};

}  // namespace smddp
