// SPDX-License-Identifier: Apache-2.0
#include "ffi/registry.h"

#include <pthread.h>

#include <utility>

#include "base/deadline.h"
#include "gpu/trial.h"

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

void Registry::UseGpus(device::Gpus& gpus) {
  const std::lock_guard lock(gpus_mutex_);
  gpus_ = &gpus;
}

void Registry::NameGpus(std::map<int, int64_t> ids) {
  const std::lock_guard lock(gpus_mutex_);
  gpu_ids_ = std::move(ids);
  if (GpuEngine* gpus = gpu_engine_.load()) gpus->Name(gpu_ids_);
}

Result<GpuEngine*> Registry::gpu_engine() {
  if (GpuEngine* gpus = gpu_engine_.load()) return gpus;
  Engine& engine = this->engine();
  const std::lock_guard lock(gpus_mutex_);
  if (gpus_ == nullptr) {
    return Status(StatusCode::kInvalidArgument,
                  "a collective runs on GPUs, but the module smddp_jax._cuda was not "
                  "loaded; import smddp_jax before the program is compiled");
  }
  if (gpu_engine_.load() == nullptr) {
    auto* const made = new GpuEngine(engine, *gpus_);  // Leaked on purpose.
    made->Name(gpu_ids_);
    gpu_engine_.store(made);
  }
  return gpu_engine_.load();
}

Status Registry::TryGpus(std::vector<int> ordinals) {
  device::Gpus* gpus = nullptr;
  {
    const std::lock_guard lock(gpus_mutex_);
    gpus = gpus_;
  }
  if (gpus == nullptr) {
    return Status(StatusCode::kInvalidArgument,
                  "the module smddp_jax._cuda was not loaded");
  }
  return smddp::TryGpus(engine(), *gpus, std::move(ordinals));
}

// The GPUs first: their peers hear of it by the engine.
void Registry::Disconnect(const std::string& reason) {
  if (GpuEngine* gpus = gpu_engine_if_any()) gpus->Leave(reason);
  if (Engine* engine = engine_if_any()) engine->Disconnect(reason);
}

void Registry::Abort(const std::string& reason) {
  if (GpuEngine* gpus = gpu_engine_if_any()) gpus->Abort(reason);
  if (Engine* engine = engine_if_any()) engine->Abort(reason);
}

bool Registry::Drain(double seconds) {
  const Deadline deadline = Deadline::After(seconds);
  GpuEngine* gpus = gpu_engine_if_any();
  Engine* engine = engine_if_any();
  return (gpus == nullptr || gpus->Drain(seconds)) &&
         (engine == nullptr || engine->Drain(deadline.SecondsLeft()));
}

uint64_t Registry::calls() const {
  const GpuEngine* gpus = gpu_engine_if_any();
  const Engine* engine = engine_if_any();
  return (gpus ? gpus->stats().calls : 0) + (engine ? engine->stats().calls : 0);
}

uint64_t Registry::in_flight() const {
  const GpuEngine* gpus = gpu_engine_if_any();
  const Engine* engine = engine_if_any();
  return (gpus ? gpus->stats().in_flight : 0) + (engine ? engine->stats().in_flight : 0);
}

}  // namespace smddp
