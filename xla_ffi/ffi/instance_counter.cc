// SPDX-License-Identifier: Apache-2.0
#include "ffi/instance_counter.h"

namespace smddp {

Instance InstanceCounter::Next(uint64_t key) {
  const std::lock_guard lock(mutex_);
  auto& loaded = loaded_[key];
  if (!loaded) loaded = std::make_shared<std::atomic<uint64_t>>(0);
  return {loaded->fetch_add(1), loaded};
}

void InstanceCounter::Seal(uint64_t key) {
  const std::lock_guard lock(mutex_);
  loaded_.erase(key);
}

}  // namespace smddp
