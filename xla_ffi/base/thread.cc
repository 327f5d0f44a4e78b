// SPDX-License-Identifier: Apache-2.0
#include "base/thread.h"

#include <pthread.h>
#include <signal.h>

#include <exception>
#include <utility>

#include "base/log.h"

namespace smddp {
namespace {

// Signals belong to the application's own threads (Python's main thread above all).
void BlockSignals() {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
}

}  // namespace

Thread::Thread(std::string name, std::function<void()> body,
               std::function<void(Status)> on_failure)
    : thread_([name = std::move(name), body = std::move(body),
               on_failure = std::move(on_failure)] {
        BlockSignals();
        pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());
        std::string what;
        try {
          body();
          return;
        } catch (const std::exception& error) {
          what = error.what();
        } catch (...) {
          what = "unknown exception";
        }
        what = "thread " + name + " failed: " + what;
        LogWarning(what);
        on_failure(Status(StatusCode::kInternal, what));
      }) {}

}  // namespace smddp
