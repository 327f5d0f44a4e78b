// SPDX-License-Identifier: Apache-2.0
#include "ffi/interrupts.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <thread>

#include "base/thread.h"
#include "ffi/registry.h"

namespace smddp {
namespace {

constexpr auto kGrace = std::chrono::seconds(2);

// What a signal handler may touch has to be global.
int wake_fd = -1;
struct sigaction previous;

void OnInterrupt(int signal, siginfo_t* info, void* context) {
  const int saved_errno = errno;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake_fd, &one, sizeof(one));
  errno = saved_errno;
  if ((previous.sa_flags & SA_SIGINFO) != 0) {
    previous.sa_sigaction(signal, info, context);
  } else if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN) {
    previous.sa_handler(signal);
  }
}

void Watch() {
  uint64_t count = 0;
  for (;;) {
    if (::read(wake_fd, &count, sizeof(count)) < 0) continue;  // EINTR.
    Registry& registry = Registry::Get();
    const uint64_t calls_before = registry.calls();
    std::this_thread::sleep_for(kGrace);
    // Still in flight and nothing new begun: the program is stuck in a wait.
    if (registry.in_flight() > 0 && registry.calls() == calls_before) {
      registry.Abort("interrupted by SIGINT (Ctrl-C)");
    }
  }
}

}  // namespace

Status WatchInterrupts() {
  if (wake_fd >= 0) return Status();
  struct sigaction current = {};
  if (::sigaction(SIGINT, nullptr, &current) != 0) return SystemError("sigaction");
  const bool python_handles =
      (current.sa_flags & SA_SIGINFO) != 0 ||
      (current.sa_handler != SIG_DFL && current.sa_handler != SIG_IGN);
  if (!python_handles) return Status();  // SIGINT ends the process, or is not wanted.
  const int fd = ::eventfd(0, EFD_CLOEXEC);
  if (fd < 0) return SystemError("eventfd");
  wake_fd = fd;
  previous = current;
  struct sigaction ours = current;
  ours.sa_flags |= SA_SIGINFO;
  ours.sa_sigaction = OnInterrupt;
  if (::sigaction(SIGINT, &ours, nullptr) != 0) return SystemError("sigaction");
  // Lives as long as the process, like the engine that it serves.
  static Thread* watcher = new Thread("smddp-interrupt", Watch, [](const Status&) {});
  (void)watcher;
  return Status();
}

}  // namespace smddp
