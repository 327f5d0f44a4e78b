// SPDX-License-Identifier: Apache-2.0
// A key-value store in memory, for ranks that are threads of one test.
#pragma once

#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <string>

#include "comm/kv_store.h"

namespace smddp {

class MapStore : public KeyValueStore {
 public:
  Status Set(const std::string& key, const std::string& value) override {
    const std::lock_guard lock(mutex_);
    values_[key] = value;
    changed_.notify_all();
    return Status();
  }

  Result<std::string> Get(const std::string& key, const Deadline& deadline) override {
    std::unique_lock lock(mutex_);
    const auto there = [&] { return values_.contains(key); };
    if (!changed_.wait_for(lock, std::chrono::duration<double>(deadline.SecondsLeft()),
                           there)) {
      return Status(StatusCode::kDeadline, "no key " + key);
    }
    return values_[key];
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
};

}  // namespace smddp
