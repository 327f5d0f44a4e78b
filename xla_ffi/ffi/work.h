// SPDX-License-Identifier: Apache-2.0
// What a handler gives to an engine: a custom call and its buffers in our own terms.
//
// Free functions, no state; any XLA thread.
#pragma once

#include <cstdint>
#include <memory>

#include "base/status.h"
#include "collective/call.h"
#include "ffi/collective_op.h"
#include "xla/ffi/api/ffi.h"

namespace smddp {

struct Work {
  int64_t member = 0;
  std::shared_ptr<const Group> group;
  std::shared_ptr<const Signature> signature;
  Participant participant;  // Whom to tell is still to be said.
};

// `member`: who the device is in the op's groups; see CollectiveOp::GroupOf. Results
// beyond the arguments are those again, where they lie: what a start passes on to its
// done.
Result<Work> WorkOf(CollectiveOp& op, int64_t member, xla::ffi::RemainingArgs arguments,
                    xla::ffi::RemainingRets results);

// Where the first result lies that has elements; null if none has.
const void* AddressOf(xla::ffi::RemainingRets results);

}  // namespace smddp
