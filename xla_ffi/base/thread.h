// SPDX-License-Identifier: Apache-2.0
// A named thread that joins when its owner goes and never ends the process.
//
// The owner is one object, which must tell the body to stop before it destroys the
// Thread. An exception that reaches the top of the body is logged, then given to
// `on_failure` as a Status.
#pragma once

#include <functional>
#include <string>
#include <thread>

#include "base/status.h"

namespace smddp {

class Thread {
 public:
  Thread() = default;
  // `name` is cut to the 15 characters that Linux shows.
  Thread(std::string name, std::function<void()> body,
         std::function<void(Status)> on_failure);

  bool running() const { return thread_.joinable(); }
  void Join() {
    if (thread_.joinable()) thread_.join();
  }

 private:
  std::jthread thread_;
};

}  // namespace smddp
