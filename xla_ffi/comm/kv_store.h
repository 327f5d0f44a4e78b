// SPDX-License-Identifier: Apache-2.0
// The key-value store over which processes find each other, injected by the caller.
//
// At run time it is JAX's coordination service, reached through Python; in tests a map.
// Used during bootstrap only, by the thread that bootstraps.
#pragma once

#include <string>

#include "base/deadline.h"
#include "base/status.h"

namespace smddp {

class KeyValueStore {
 public:
  virtual ~KeyValueStore() = default;
  // Keys are written once.
  virtual Status Set(const std::string& key, const std::string& value) = 0;
  // Waits until somebody has set `key`, until `deadline`.
  virtual Result<std::string> Get(const std::string& key, const Deadline& deadline) = 0;
};

}  // namespace smddp
