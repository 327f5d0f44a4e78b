// SPDX-License-Identifier: Apache-2.0
// One execution of one collective, as this process sees it.
//
// Built by the rendezvous from the local devices' participants, then owned by whichever
// stage works on it; one owner at a time. Signature and Group are immutable and shared.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/dtype.h"
#include "base/range.h"
#include "base/status.h"
#include "comm/group.h"
#include "plan/partition.h"

namespace smddp {

// What all members of a collective must agree on.
//
// Every collective is one reduction over a space. An all-reduce gives everybody all of
// it; a reduce-scatter over N members gives block i, the i-th of N equal parts, to the
// i-th member; an all-gather sums bytes, to which every member contributes its block and
// zeros elsewhere, so any type arrives as it was.
struct Signature {
  // An all-reduce. `shapes[i]` is tensor i's shape in words, "[2,3]"; counts[i] its
  // elements. `wire` is for sums of floats only.
  Signature(ReduceOp op, DType dtype, const std::vector<size_t>& counts,
            const std::vector<std::string>& shapes,
            std::optional<DType> wire = std::nullopt);

  // `count` and `shape` are those of one member's argument.
  static Signature ReduceScatter(ReduceOp op, DType dtype, size_t count,
                                 const std::string& shape,
                                 std::optional<DType> wire = std::nullopt);
  // `bytes` and `type`, "bool[8,3]", are those of the result.
  static Signature AllGather(size_t bytes, const std::string& type);

  Collective kind;
  ReduceOp op;
  DType dtype;
  // In what contributions travel between hosts, where the user asked for a type.
  std::optional<DType> wire;
  FusedSpace space;  // The tensors, laid end to end.
  std::string text;  // "sum float32[2,3] as bfloat16 on the wire", for messages.
  uint64_t hash = 0;

  size_t bytes() const { return space.total() * SizeOf(dtype); }

 private:
  Signature(Collective kind, ReduceOp op, DType dtype, const std::vector<size_t>& counts,
            const std::vector<std::string>& shapes, std::optional<DType> wire);
};

// One local device's part: where its data is and whom to tell.
struct Participant {
  std::vector<const void*> inputs;  // One per tensor.
  std::vector<void*> outputs;
  std::function<void(const Status&)> done;  // Called once, from any thread.
};

struct Call {
  std::shared_ptr<const Group> group;
  std::shared_ptr<const Signature> signature;
  std::string label;   // "psum('i') in jit_step".
  uint64_t op = 0;     // Which collective of which program: same on every process.
  uint64_t step = 0;   // How many times its devices reached it before.
  uint64_t tag = 0;    // Of op and step: which execution.
  std::string before;  // The group of the step before, where that was another one.
  Deadline deadline = Deadline::After(0);
  std::vector<Participant> local;  // In rank order.
  size_t last = 0;                 // Index in `local` of the device that came last.

  // Where in the space the block of `local[index]` lies: what it alone contributes to an
  // all-gather, or gets of a reduce-scatter.
  Range BlockOf(size_t index) const;

  // "psum('i') in jit_step: sum float32[2,3] (24 bytes), 8 devices of ranks {0, 1},
  // step 5".
  std::string Describe() const;
};

// Where finished calls go: the engine tells their participants on threads that may
// run XLA's continuations. Takes the call; may be called with locks held.
using FinishCall = std::function<void(std::unique_ptr<Call>, Status)>;

}  // namespace smddp
