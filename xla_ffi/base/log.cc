// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"

#include <unistd.h>

#include <string>

namespace smddp {
namespace {

void WriteLine(std::string line, std::string_view message) {
  line.append(message);
  line.push_back('\n');
  // One write, so that lines of several threads do not mix; nothing to do if it fails.
  [[maybe_unused]] const ssize_t written =
      ::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace

void LogInfo(std::string_view message) { WriteLine("smddp_jax: ", message); }

void LogWarning(std::string_view message) { WriteLine("smddp_jax: warning: ", message); }

}  // namespace smddp
