// SPDX-License-Identifier: Apache-2.0
// Whether the kernels of one rank give what plain arithmetic gives, to the bit.
//
// All ranks of a group run the same checks, each in its process. One thread uses it.
#pragma once

#include <random>
#include <string>
#include <vector>

#include "tests/cuda/gpu_ranks.h"
#include "tests/reduce/reference.h"

namespace smddp::device::testing {

// Half a staging buffer: less than the largest arrays, which take several calls.
constexpr size_t kCheckedHalfBytes = size_t{4} << 20;

class Correctness {
 public:
  Correctness(Gpu& gpu, const Group& group);

  // How many of `Cases()` are right. `small`: few sizes, for compute-sanitizer.
  size_t CountRight(bool small);
  static std::vector<smddp::testing::Case> Cases();

  // Hundreds of calls behind each other, whose sizes and algorithms change.
  bool CheckQueued(int calls);
  // Puts a sum of one float on the stream; `value` is what each rank adds.
  void Sum(float value);
  // What came of it, as bits.
  uint32_t SumBits();
  Queue& queue() { return queue_; }

 private:
  using Bytes = smddp::testing::Bytes;

  enum class How { kOneShot, kTwoShot, kHalves };

  // Arrays of `count` elements, and how far each starts behind a vector.
  struct Shape {
    std::vector<size_t> counts;
    size_t misalignment;
  };

  // Where an array lies in the arenas, and what all ranks contribute to it.
  struct Array {
    size_t count;
    size_t from;
    size_t to;
    std::vector<Bytes> inputs;
  };

  bool CheckShape(const smddp::testing::Case& c, const Shape& shape);
  void Place(const smddp::testing::Case& c, const Shape& shape);
  void Fill();
  void Enqueue(const smddp::testing::Case& c, How how);
  void EnqueueHalves(const smddp::testing::Case& c, std::span<const Tensor> tensors);
  bool Matches(const smddp::testing::Case& c, How how);
  void Fetch();

  Gpu& gpu_;
  const Group group_;
  Queue queue_;
  uint64_t number_ = 0;
  std::vector<Array> arrays_;
  // On the GPU, and what is copied there and back.
  char* from_;
  char* to_;
  char* part_;
  char* host_from_;
  char* host_to_;
};

}  // namespace smddp::device::testing
