// SPDX-License-Identifier: Apache-2.0
// Every setting of the native engine, in one struct.
//
// A plain value. `smddp_jax/_env.py` is the one place that reads the environment; it
// fills this struct and hands it down once, so nothing below reads a variable.
#pragma once

#include <cstddef>
#include <string>

namespace smddp {

struct Settings {
  // SMDDP_TIMEOUT: how long a collective may wait for its peers, in seconds.
  double timeout_seconds = 300.0;
  // SMDDP_STAGING_BYTES: upper bound of shared memory that this process provides.
  size_t staging_bytes = size_t{64} << 20;
  // SMDDP_SEGMENT_BYTES: the largest unit in flight between the processes of one host.
  size_t segment_bytes = size_t{128} << 10;
  // SMDDP_THREADS, or this process's share of the host's cores: worker threads. 0: one
  // per core.
  int threads = 0;
  // SMDDP_HUGE_PAGES: whether to advise huge pages for large result buffers.
  bool huge_pages = true;
  // SMDDP_HOST_ID or what cluster/ found: equal for processes that share memory.
  std::string host_id;
};

}  // namespace smddp
