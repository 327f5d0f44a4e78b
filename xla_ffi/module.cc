// SPDX-License-Identifier: Apache-2.0
// The Python module `smddp_jax._core`: the engine's controls, and the addresses of its
// XLA handlers. Loaded by smddp_jax/_native.py only.
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <utility>
#include <vector>

#include "base/settings.h"
#include "comm/kv_store.h"
#include "ffi/handlers_cpu.h"
#include "ffi/handlers_cuda.h"
#include "ffi/interrupts.h"
#include "ffi/registry.h"
#include "module_reducer.h"
#include "module_status.h"
#include "plan/shares.h"
#include "reduce/reduce.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace smddp {
namespace {

// JAX's key-value store, reached through two Python callables. Used without the GIL.
class PythonStore : public KeyValueStore {
 public:
  PythonStore(nb::callable set, nb::callable get)
      : set_(std::move(set)), get_(std::move(get)) {}

  Status Set(const std::string& key, const std::string& value) override {
    const nb::gil_scoped_acquire gil;
    try {
      set_(key, nb::bytes(value.data(), value.size()));
      return Status();
    } catch (const nb::python_error& error) {
      return Status(StatusCode::kSystem, error.what());
    }
  }

  Result<std::string> Get(const std::string& key, const Deadline& deadline) override {
    const nb::gil_scoped_acquire gil;
    try {
      const auto value = nb::cast<nb::bytes>(get_(key, deadline.SecondsLeft()));
      return std::string(value.c_str(), value.size());
    } catch (const nb::python_error& error) {
      return Status(StatusCode::kDeadline, error.what());
    }
  }

 private:
  nb::callable set_;
  nb::callable get_;
};

nb::dict Registrations() {
  nb::dict targets;
  for (const Target& target : Targets()) {
    nb::dict handlers;
    handlers["instantiate"] = nb::capsule(target.instantiate);
    handlers["execute"] = nb::capsule(target.execute);
    targets[target.name] = handlers;
  }
  return targets;
}

nb::dict CudaRegistrations() {
  nb::dict targets;
  for (const CudaTarget& target : CudaTargets()) {
    nb::dict handlers;
    handlers["instantiate"] = nb::capsule(target.instantiate);
    handlers["initialize"] = nb::capsule(target.initialize);
    handlers["execute"] = nb::capsule(target.execute);
    targets[target.name] = handlers;
  }
  return targets;
}

nb::dict TypeOf(const char* name, void* id, void* info) {
  nb::dict type;
  type["type_id"] = nb::capsule(id);
  type["type_info"] = nb::capsule(info);
  nb::dict types;
  types[name] = type;
  return types;
}

nb::dict Types() {
  return TypeOf(kCollectiveState, CollectiveStateId(), CollectiveStateInfo());
}

nb::dict CudaTypes() { return TypeOf(kCudaState, CudaStateId(), CudaStateInfo()); }

void UseGpus(const nb::capsule& gpus) {
  Registry::Get().UseGpus(*static_cast<device::Gpus*>(gpus.data("smddp.device.Gpus")));
}

std::string TryGpus(const std::vector<int>& ordinals) {
  const nb::gil_scoped_release no_gil;
  return Registry::Get().TryGpus(ordinals).message();
}

std::string UntoldGpuError() {
  GpuEngine* gpus = Registry::Get().gpu_engine_if_any();
  return gpus != nullptr ? gpus->TakeUntold().message() : "";
}

void Connect(int process_index, int process_count, nb::callable kv_set,
             nb::callable kv_get, const Settings& settings) {
  PythonStore store(std::move(kv_set), std::move(kv_get));
  Registry& registry = Registry::Get();
  const nb::gil_scoped_release no_gil;
  ThrowIfError(registry.Configure(settings));
  ThrowIfError(registry.Connect(process_index, process_count, store));
}

nb::dict Stats() {
  Engine::Stats stats;
  if (Engine* engine = Registry::Get().engine_if_any()) stats = engine->stats();
  nb::dict result;
  result["calls"] = stats.calls;
  result["bytes"] = stats.bytes;
  result["host_calls"] = stats.host_calls;
  result["failed"] = stats.failed;
  result["in_flight"] = stats.in_flight;
  result["staging_bytes"] = stats.staging_bytes;
  const Network::Counters& network = stats.network;
  result["wire_bytes_sent"] = network.wire.bytes_sent;
  result["wire_bytes_received"] = network.wire.bytes_received;
  result["frames_sent"] = network.wire.frames_sent;
  result["frames_received"] = network.wire.frames_received;
  result["refused_connections"] = network.refused;
  result["stale_frames"] = network.reduced.stale;
  result["summed_bytes"] = network.reduced.bytes_summed;
  GpuEngine::Stats of_gpus;
  if (GpuEngine* gpus = Registry::Get().gpu_engine_if_any()) of_gpus = gpus->stats();
  result["gpu_calls"] = of_gpus.calls;
  result["gpu_failed"] = of_gpus.failed;
  result["gpu_in_flight"] = of_gpus.in_flight;
  result["gpu_staging_bytes"] = of_gpus.staging_bytes;
  return result;
}

}  // namespace
}  // namespace smddp

NB_MODULE(_core, m) {
  using smddp::Registry;
  using smddp::Settings;

  nb::class_<Settings>(m, "Settings", "Settings of the native engine; see _env.py.")
      .def(nb::init<>())
      .def_rw("timeout_seconds", &Settings::timeout_seconds)
      .def_rw("staging_bytes", &Settings::staging_bytes)
      .def_rw("gpu_staging_bytes", &Settings::gpu_staging_bytes)
      .def_rw("segment_bytes", &Settings::segment_bytes)
      .def_rw("threads", &Settings::threads)
      .def_rw("huge_pages", &Settings::huge_pages)
      .def_rw("host_id", &Settings::host_id)
      .def_rw("reducers", &Settings::reducers)
      .def_rw("weights", &Settings::weights)
      .def_rw("measure_weights", &Settings::measure_weights)
      .def_rw("shard_bytes", &Settings::shard_bytes)
      .def_rw("connections", &Settings::connections)
      .def_rw("interface", &Settings::interface)
      .def_rw("port", &Settings::port)
      .def_rw("silence_seconds", &Settings::silence_seconds)
      .def_rw("secret", &Settings::secret)
      .def_rw("coordinator", &Settings::coordinator);

  m.def("registrations", &smddp::Registrations,
        nb::sig("def registrations() -> dict[str, dict[str, object]]"),
        "XLA FFI targets of platform \"cpu\": name to the handlers of each stage.");
  m.def("types", &smddp::Types, nb::sig("def types() -> dict[str, dict[str, object]]"),
        "XLA FFI state types, to be registered before the targets.");
  m.def("cuda_registrations", &smddp::CudaRegistrations,
        nb::sig("def cuda_registrations() -> dict[str, dict[str, object]]"),
        "The same of platform \"CUDA\"; _cuda has the GPUs.");
  m.def("cuda_types", &smddp::CudaTypes,
        nb::sig("def cuda_types() -> dict[str, dict[str, object]]"),
        "The same of platform \"CUDA\".");
  m.def("use_gpus", &smddp::UseGpus, "gpus"_a,
        nb::sig("def use_gpus(gpus: object) -> None"),
        "Takes what _cuda.gpus() gives. Before the first collective on a GPU.");
  m.def(
      "name_gpus",
      [](const std::map<int, int64_t>& ids) { Registry::Get().NameGpus(ids); }, "ids"_a,
      "Says which global device id each local ordinal is.");
  m.def("try_gpus", &smddp::TryGpus, "ordinals"_a,
        "Why these GPUs of this process, or all if none is given, and those of the "
        "host's other processes cannot use each other's memory; empty if they can. "
        "Collective over the processes of this host, once, after connect().");
  m.def("untold_gpu_error", &smddp::UntoldGpuError,
        "An error on a GPU that no collective has returned to XLA, or nothing.");
  m.def("connect", &smddp::Connect, "process_index"_a, "process_count"_a, "kv_set"_a,
        "kv_get"_a, "settings"_a,
        nb::sig("def connect(process_index: int, process_count: int, "
                "kv_set: collections.abc.Callable[[str, bytes], None], "
                "kv_get: collections.abc.Callable[[str, float], bytes], "
                "settings: Settings) -> None"),
        "Joins the job's other processes; collective. Raises RuntimeError.");
  m.def(
      "configure",
      [](const Settings& settings) {
        smddp::ThrowIfError(Registry::Get().Configure(settings));
      },
      "settings"_a, "Sets what the engine is made with at its first use.");
  m.def(
      "disconnect",
      [](const std::string& reason) {
        const nb::gil_scoped_release no_gil;
        Registry::Get().Disconnect(reason);
      },
      "reason"_a, "Leaves the job: tells the peers why, fails what is in flight.");
  m.def(
      "drain",
      [](double seconds) {
        const nb::gil_scoped_release no_gil;
        return Registry::Get().Drain(seconds);
      },
      "seconds"_a, "Waits until no collective is in flight; False at the deadline.");
  m.def(
      "abort", [](const std::string& reason) { Registry::Get().Abort(reason); },
      "reason"_a, "Fails every collective that is in flight.");
  m.def(
      "watch_interrupts", [] { smddp::ThrowIfError(smddp::WatchInterrupts()); },
      "Lets Ctrl-C end a wait for a collective. Main thread only.");
  m.def("stats", &smddp::Stats, nb::sig("def stats() -> dict[str, int]"),
        "Counters of this process's engine.");
  m.def(
      "balanced_shares",
      [](const std::vector<double>& worker_nics,
         const std::vector<double>& reducer_nics) {
        auto shares = smddp::BalancedShares(worker_nics, reducer_nics);
        return std::pair(std::move(shares.fraction), shares.seconds_per_byte);
      },
      "worker_nics"_a, "reducer_nics"_a,
      "Share of each dedicated reducer, then of each worker host; and seconds per byte.");
  m.def("instruction_set", &smddp::ReduceInstructionSet,
        "\"avx512\", \"avx2\" or \"generic\".");
  smddp::DefineReducerServer(m);
}
