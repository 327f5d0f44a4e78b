// SPDX-License-Identifier: Apache-2.0
// The Python module `smddp_jax._core`: the engine's controls, and the addresses of its
// XLA handlers. Loaded by smddp_jax/_native.py only.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <utility>
#include <vector>

#include "base/settings.h"
#include "comm/kv_store.h"
#include "ffi/handlers_cpu.h"
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

nb::dict Types() {
  nb::dict type;
  type["type_id"] = nb::capsule(CollectiveStateId());
  type["type_info"] = nb::capsule(CollectiveStateInfo());
  nb::dict types;
  types[kCollectiveState] = type;
  return types;
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
        if (auto* engine = Registry::Get().engine_if_any()) engine->Disconnect(reason);
      },
      "reason"_a, "Leaves the job: tells the peers why, fails what is in flight.");
  m.def(
      "drain",
      [](double seconds) {
        const nb::gil_scoped_release no_gil;
        auto* engine = Registry::Get().engine_if_any();
        return engine == nullptr || engine->Drain(seconds);
      },
      "seconds"_a, "Waits until no collective is in flight; False at the deadline.");
  m.def(
      "abort",
      [](const std::string& reason) {
        if (auto* engine = Registry::Get().engine_if_any()) engine->Abort(reason);
      },
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
