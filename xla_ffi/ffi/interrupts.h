// SPDX-License-Identifier: Apache-2.0
// Ctrl-C for a main thread that is blocked inside XLA.
//
// Python sees SIGINT only between bytecodes, so a main thread that waits for a result
// that never comes cannot be interrupted. The watcher here notices the signal, gives
// Python a moment to raise KeyboardInterrupt by itself, then fails the collectives that
// are in flight; the wait ends and the interrupt follows.
#pragma once

#include "base/status.h"

namespace smddp {

// Wraps the SIGINT handler that is installed now, which still runs first. Idempotent;
// call it from the main thread.
Status WatchInterrupts();

}  // namespace smddp
