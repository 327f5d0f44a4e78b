// SPDX-License-Identifier: Apache-2.0
// From tensors to Calls: how they are laid out, cut, and given to blocks.
//
// Pure functions over plain values, the same on all ranks of a group but for the
// addresses. All ranks must make the same calls, with the same numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/dtype.h"
#include "base/status.h"
#include "device/call.h"

namespace smddp::device {

// A rank's group: where it maps the memory of all members.
struct Group {
  uint32_t rank = 0;
  uint32_t ranks = 0;
  Flags* flags[kMaxRanks] = {};
  char* staging[kMaxRanks] = {};  // Two halves each.
  size_t half_bytes = 0;
  Watch* watch = nullptr;
  uint32_t max_blocks = kMaxBlocks;
};

struct Tensor {
  const void* from = nullptr;  // Unused by an all-gather.
  void* to = nullptr;          // Unused by a reduce-scatter.
  size_t count = 0;
};

// What becomes of an element: `scale` multiplies sums and gathered values.
struct Kind {
  DType in = DType::kF32;
  DType out = DType::kF32;
  double scale = 1;
};

// Below this, everybody adds everything. To be set by a measurement on the host's GPUs;
// until then XLA's value for its own one-shot kernel.
constexpr size_t kOneShotBytes = size_t{256} << 10;

Algorithm ChooseAllReduce(size_t bytes, size_t one_shot_bytes = kOneShotBytes);

// The type whose numbers a kernel computes with: a complex element is two of them.
DType KernelType(DType dtype);

// Cuts tensors into lists that fit into one call each, in order. A tensor is cut between
// two units, so every piece starts as well aligned as its tensor.
std::vector<std::vector<Tensor>> CutIntoCalls(const Group& group, Algorithm algorithm,
                                              const Kind& kind,
                                              std::span<const Tensor> tensors);

// Elements of rank `rank`'s part, with those that fill its units up.
size_t PartElements(const Kind& kind, std::span<const Tensor> tensors, uint32_t ranks,
                    uint32_t rank);

// `algorithm` is kOneShot or kTwoShot.
Result<Call> MakeAllReduce(const Group& group, uint64_t number, Algorithm algorithm,
                           const Kind& kind, std::span<const Tensor> tensors);

// The tensors' sums are cut in as many parts as there are ranks. `part`: room for
// PartElements() of mine, of type kind.out.
Result<Call> MakeReduceScatter(const Group& group, uint64_t number, const Kind& kind,
                               std::span<const Tensor> tensors, void* part);

// The way back: `part` holds mine, of type kind.in.
Result<Call> MakeAllGather(const Group& group, uint64_t number, const Kind& kind,
                           const void* part, std::span<const Tensor> tensors);

}  // namespace smddp::device
