// SPDX-License-Identifier: Apache-2.0
#include "module_reducer.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>

#include <memory>
#include <string>
#include <utility>

#include "module_status.h"
#include "reducer/reducer_server.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace smddp {
namespace {

std::unique_ptr<ReducerServer> Serve(std::string listen, std::string secret, int threads,
                                     size_t staging_bytes, bool once,
                                     double silence_seconds) {
  ReducerServer::Options options;
  options.listen = std::move(listen);
  options.secret = std::move(secret);
  options.threads = threads;
  options.staging_bytes = staging_bytes;
  options.once = once;
  options.silence_seconds = silence_seconds;
  auto server = ReducerServer::Start(options);
  ThrowIfError(server.status());
  return std::move(*server);
}

bool Wait(ReducerServer& server, double seconds) {
  const nb::gil_scoped_release no_gil;
  return server.Wait(seconds);
}

nb::dict Stats(ReducerServer& server) {
  const ReducerServer::Stats stats = server.stats();
  nb::dict result;
  result["jobs"] = stats.jobs;
  result["connections"] = stats.connections;
  result["refused"] = stats.refused;
  result["segments"] = stats.summed.segments;
  result["bytes"] = stats.summed.bytes_summed;
  result["seconds"] = stats.summed.seconds;
  result["stale"] = stats.summed.stale;
  result["staging_bytes"] = stats.summed.staging_bytes;
  result["memory_bytes"] = stats.memory_bytes;
  result["cpu_seconds"] = stats.cpu_seconds;
  return result;
}

}  // namespace

void DefineReducerServer(nb::module_& m) {
  nb::class_<ReducerServer>(m, "ReducerServer",
                            "A dedicated reducer; see cli/reducer.py.")
      .def(nb::new_(&Serve), "listen"_a, "secret"_a, "threads"_a, "staging_bytes"_a,
           "once"_a, "silence_seconds"_a,
           "Listens and serves, on threads of its own. Raises RuntimeError.")
      .def_prop_ro("address", &ReducerServer::address, "host:port where it listens.")
      .def("wait", &Wait, "seconds"_a, "Whether it has ended; waits for that.")
      .def("stop", &ReducerServer::Stop, "Tells the workers and ends; returns at once.")
      .def("stats", &Stats, nb::sig("def stats(self) -> dict[str, float]"),
           "Counters of all jobs so far, and of the process.");
}

}  // namespace smddp
