// SPDX-License-Identifier: Apache-2.0
// What the buffers of one handler call say: the signature of its collective.
//
// Free functions, no state; any thread. Checks what lowering.py never emits, but a
// program from elsewhere might.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/dtype.h"
#include "base/status.h"
#include "collective/call.h"
#include "xla/ffi/api/ffi.h"

namespace smddp {

// What a call asks for, apart from its operands.
struct Request {
  Collective kind = Collective::kAllReduce;
  int64_t op = 0;     // ReduceOp; without meaning for an all-gather.
  int64_t wire = -1;  // DType in which sums travel between hosts; -1: none asked for.
};

// `members` is the size of the group, the same for all groups of a collective in blocks;
// `tensors`, how many of the arguments are exchanged.
Result<Signature> SignatureOf(const Request& request, size_t members, size_t tensors,
                              xla::ffi::RemainingArgs arguments,
                              xla::ffi::RemainingRets results);

}  // namespace smddp
