// SPDX-License-Identifier: Apache-2.0
// Every setting of the native engine, in one struct.
//
// A plain value. `smddp_jax/_env.py` is the one place that reads the environment; it
// fills this struct and hands it down once, so nothing below reads a variable.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace smddp {

struct Settings {
  // SMDDP_TIMEOUT: how long a collective may wait for its peers, in seconds.
  double timeout_seconds = 300.0;
  // SMDDP_STAGING_BYTES: upper bound of shared memory that this process provides.
  size_t staging_bytes = size_t{64} << 20;
  // SMDDP_GPU_STAGING_BYTES: upper bound of what each GPU provides of its memory to a
  // group.
  size_t gpu_staging_bytes = size_t{64} << 20;
  // SMDDP_SEGMENT_BYTES: the largest unit in flight between the processes of one host.
  size_t segment_bytes = size_t{128} << 10;
  // SMDDP_THREADS, or this process's share of the host's cores: worker threads. 0: one
  // per core.
  int threads = 0;
  // SMDDP_HUGE_PAGES: whether to advise huge pages for large result buffers.
  bool huge_pages = true;
  // SMDDP_HOST_ID or what cluster/ found: equal for processes that share memory.
  std::string host_id;

  // Between hosts.
  // SMDDP_REDUCERS: "host:port" of each dedicated reducer; the same list everywhere.
  std::vector<std::string> reducers;
  // SMDDP_WEIGHTS: relative speed of the NIC of each worker host in rank order, then of
  // each dedicated reducer. Empty: all alike, or measured.
  std::vector<double> weights;
  // SMDDP_WEIGHTS=measure: the job measures them when it starts.
  bool measure_weights = false;
  // SMDDP_SHARD_BYTES: what one reducer gets of a segment, about.
  size_t shard_bytes = size_t{24} << 10;
  // SMDDP_CONNECTIONS: connections, and threads that serve them, between two processes.
  int connections = 1;
  // SMDDP_INTERFACE: name of the network interface to listen on. Empty: the one by which
  // `coordinator` is reached.
  std::string interface;
  // SMDDP_PORT: port to listen on; 0: any free one.
  int port = 0;
  // SMDDP_SILENCE: a peer on another host that is mute for this long is lost, in seconds.
  double silence_seconds = 30.0;
  // SMDDP_SECRET: what peers must prove to know. Empty: rank 0 makes one and shares it
  // over the key-value store.
  std::string secret;
  // SMDDP_COORDINATOR: "host:port" of JAX's coordination service.
  std::string coordinator;
};

}  // namespace smddp
