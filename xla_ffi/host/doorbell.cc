// SPDX-License-Identifier: Apache-2.0
#include "host/doorbell.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <ctime>

namespace smddp {

void Doorbell::Ring() {
  if (asleep_.load(std::memory_order_seq_cst) == 0) return;
  if (asleep_.exchange(0, std::memory_order_acq_rel) == 0) return;  // Rung already.
  rings_.fetch_add(1, std::memory_order_release);
  ::syscall(SYS_futex, &rings_, FUTEX_WAKE, 1, nullptr, nullptr, 0);
}

void Doorbell::Sleep(uint32_t seen, double seconds) {
  timespec timeout;
  timeout.tv_sec = static_cast<time_t>(seconds);
  timeout.tv_nsec = static_cast<long>((seconds - timeout.tv_sec) * 1e9);  // NOLINT
  // Returns at once if somebody rang since `seen` was read; a spurious return is fine.
  ::syscall(SYS_futex, &rings_, FUTEX_WAIT, seen, &timeout, nullptr, 0);
}

}  // namespace smddp
