// SPDX-License-Identifier: Apache-2.0
#include "ffi/registry.h"

#include <pthread.h>

namespace smddp {

Registry& Registry::Get() {
  static Registry* registry = new Registry();  // Leaked on purpose: see the header.
  return *registry;
}

Engine& Registry::engine() {
  if (Engine* engine = engine_.load()) return *engine;
  const std::lock_guard lock(mutex_);
  if (engine_.load() == nullptr) {
    engine_.store(new Engine(settings_));
    pthread_atfork(nullptr, nullptr, [] {
      if (Engine* engine = Get().engine_if_any()) engine->AfterForkInChild();
    });
  }
  return *engine_.load();
}

Status Registry::Configure(const Settings& settings) {
  const std::lock_guard lock(mutex_);
  if (engine_.load() != nullptr) {
    return Status(StatusCode::kInvalidArgument,
                  "the native engine runs already; call smddp_jax.init() before the "
                  "first collective");
  }
  settings_ = settings;
  return Status();
}

Status Registry::Connect(int process, int processes, KeyValueStore& store) {
  process_.store(process);
  processes_.store(processes);
  return engine().Connect(process, processes, store);
}

}  // namespace smddp
