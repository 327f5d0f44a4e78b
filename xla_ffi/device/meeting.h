// SPDX-License-Identifier: Apache-2.0
// Where the ranks of a call meet: block b of each with block b of all others.
//
// A block writes its flag into every peer's memory, so that each waits on its own memory
// alone. What any thread of a block wrote before a meeting, wherever that memory is,
// every thread of the same block of the other ranks may read after it. Used by one
// block's threads together.
#pragma once

#include <cstdint>

#include "device/call.h"

namespace smddp::device {

// The host's word may lie across PCIe: it is looked at now and then.
constexpr uint32_t kPollsPerWatch = 64;

template <class Exec>
class Meetings {
 public:
  SMDDP_DEVICE Meetings(const Exec& exec, const Call& call)
      : exec_(exec), call_(call), mine_(*call.flags[call.rank]) {}

  // Same result on all threads of the block: false where this rank gave up a call before.
  // It then comes to no meeting, and writes nothing to its peers: they may still read
  // what that call left, since it met nobody there.
  SMDDP_DEVICE bool MayBegin() const {
    return exec_.AllOfBlock(Exec::LoadRelaxed(&mine_.broken) == 0);
  }

  // Same result on all threads of the block: false where the call was given up.
  SMDDP_DEVICE bool Meet(uint32_t round) {
    exec_.AllOfBlock(true);
    const uint64_t meeting = Meeting::Pack(call_.number, round, call_.tag);
    const uint32_t first = exec_.thread_in_block();
    const uint32_t step = exec_.threads_in_block();
    for (uint32_t r = first; r < call_.ranks; r += step) {
      Exec::StoreRelease(&call_.flags[r]->met[exec_.block()][call_.rank], meeting);
    }
    bool all_came = true;
    for (uint32_t r = first; r < call_.ranks && all_came; r += step) {
      const uint64_t came = Await(&mine_.met[exec_.block()][r], meeting);
      // Who is behind this meeting has passed it: it found my tag to be its own.
      const bool disagrees = came != meeting && SameOrder(came, meeting);
      all_came = came >= meeting && !disagrees;
      if (!all_came) GiveUp(GaveUp{call_.number, round, r, disagrees});
    }
    return exec_.AllOfBlock(all_came);
  }

 private:
  SMDDP_DEVICE static bool SameOrder(uint64_t a, uint64_t b) {
    return Meeting::Order(a) == Meeting::Order(b);
  }

  // The flag, which has come up to `meeting` unless the host said to wait no longer.
  SMDDP_DEVICE uint64_t Await(uint64_t* flag, uint64_t meeting) const {
    for (uint32_t polls = 1;; ++polls) {
      const uint64_t came = Exec::LoadAcquire(flag);
      if (Meeting::Order(came) >= Meeting::Order(meeting)) return came;
      if (polls % kPollsPerWatch == 0 && Exec::LoadAcquire(&call_.watch->abort) != 0) {
        return Exec::LoadAcquire(flag);  // It may have come before the host said so.
      }
      Exec::Pause();
    }
  }

  SMDDP_DEVICE void GiveUp(const GaveUp& gave_up) {
    Exec::StoreRelease(&mine_.broken, 1);
    Exec::StoreRelease(&call_.watch->gave_up, gave_up.Pack());
  }

  const Exec& exec_;
  const Call& call_;
  Flags& mine_;
};

}  // namespace smddp::device
