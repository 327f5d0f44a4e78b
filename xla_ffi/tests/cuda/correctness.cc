// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda/correctness.h"

#include <algorithm>

#include "device/unit.h"

namespace smddp::device::testing {
namespace {

using smddp::testing::Case;
using smddp::testing::Expected;
using smddp::testing::FirstDifference;
using smddp::testing::RandomArray;

constexpr size_t kArenaBytes = size_t{8} << 20;
constexpr int kGuard = 0xa5;
constexpr size_t kGuardBytes = 64;

}  // namespace

std::vector<Case> Correctness::Cases() {
  std::vector<Case> cases = smddp::testing::UncastCases();
  smddp::testing::AddCastCases(ReduceOp::kSum, cases);
  return cases;
}

Correctness::Correctness(Gpu& gpu, const Group& group)
    : gpu_(gpu),
      group_(group),
      queue_(gpu),
      from_(Check(gpu.Allocate(kArenaBytes))),
      to_(Check(gpu.Allocate(kArenaBytes))),
      part_(Check(gpu.Allocate(kArenaBytes))),
      host_from_(Check(gpu.AllocateHost(kArenaBytes))),
      host_to_(Check(gpu.AllocateHost(kArenaBytes))) {}

size_t Correctness::CountRight(bool small) {
  size_t right = 0;
  for (const Case& c : Cases()) {
    const size_t element = std::min(SizeOf(c.in), SizeOf(c.out));
    std::vector<Shape> shapes = {{{3, 0, 16, 129}, 0}};
    if (!small) {
      shapes.push_back({{1}, 0});
      shapes.push_back({{4096}, 0});
      shapes.push_back({{30011, 5, 5, 5, 5, 5, 5, 5}, 0});
      shapes.push_back({{1025, 7}, element % sizeof(Vector)});
    }
    // The float32 sum alone, for the time it takes: an array of several calls.
    if (!small && c.in == DType::kF32 && c.out == c.in && c.op == ReduceOp::kSum) {
      shapes.push_back({{1'500'003}, 0});
    }
    right += std::all_of(shapes.begin(), shapes.end(),
                         [&](const Shape& shape) { return CheckShape(c, shape); })
                 ? 1
                 : 0;
  }
  return right;
}

bool Correctness::CheckShape(const Case& c, const Shape& shape) {
  Place(c, shape);
  bool right = true;
  for (How how : {How::kOneShot, How::kTwoShot, How::kHalves}) {
    // Halves meet in a partial result, which is then of the arrays' own type.
    if (how == How::kHalves && c.in != c.out) continue;
    Fill();
    Enqueue(c, how);
    Fetch();
    right = Matches(c, how) && right;
  }
  return right;
}

// All ranks draw all inputs, from the same seed.
void Correctness::Place(const Case& c, const Shape& shape) {
  std::mt19937_64 random(shape.counts[0] + static_cast<size_t>(c.in));
  arrays_.clear();
  size_t from = 0;
  size_t to = 0;
  for (size_t count : shape.counts) {
    const auto next = [&](size_t at) {
      return (at + kGuardBytes) / sizeof(Vector) * sizeof(Vector) + sizeof(Vector) +
             shape.misalignment;
    };
    Array array{count, next(from), next(to), {}};
    for (uint32_t r = 0; r < group_.ranks; ++r) {
      array.inputs.push_back(RandomArray(c.in, count, random));
    }
    from = array.from + count * SizeOf(c.in);
    to = array.to + count * SizeOf(c.out);
    arrays_.push_back(std::move(array));
  }
}

void Correctness::Fill() {
  for (const Array& array : arrays_) {
    const Bytes& mine = array.inputs[group_.rank];
    std::copy(mine.begin(), mine.end(), host_from_ + array.from);
  }
  std::memset(host_to_, kGuard, kArenaBytes);
  Check(gpu_.Copy(from_, host_from_, kArenaBytes, queue_.stream()));
  Check(gpu_.Copy(to_, host_to_, kArenaBytes, queue_.stream()));
}

void Correctness::Enqueue(const Case& c, How how) {
  const Kind kind{c.in, c.out};
  const auto algorithm = how == How::kOneShot ? Algorithm::kOneShot : Algorithm::kTwoShot;
  std::vector<Tensor> tensors;
  for (const Array& array : arrays_) {
    tensors.push_back({from_ + array.from, to_ + array.to, array.count});
  }
  for (const auto& list : CutIntoCalls(group_, algorithm, kind, tensors)) {
    if (how == How::kHalves) {
      EnqueueHalves(c, list);
    } else {
      const Call call = Check(MakeAllReduce(group_, ++number_, algorithm, kind, list));
      Check(gpu_.Reduce(c.op, c.in, c.out, call, queue_.stream()));
    }
  }
}

// What stands on both sides of the network.
void Correctness::EnqueueHalves(const Case& c, std::span<const Tensor> tensors) {
  const Kind there{c.in, PartialType(c.in, c.op)};
  const Kind back{there.out, c.out};
  const Call scatter = Check(MakeReduceScatter(group_, ++number_, there, tensors, part_));
  Check(gpu_.Reduce(c.op, there.in, there.out, scatter, queue_.stream()));
  const Call gather = Check(MakeAllGather(group_, ++number_, back, part_, tensors));
  Check(gpu_.AllGather(back.in, back.out, gather, queue_.stream()));
}

void Correctness::Fetch() {
  Check(gpu_.Copy(host_to_, to_, kArenaBytes, queue_.stream()));
  queue_.Finish();
  if (group_.watch->gave_up == 0) return;
  std::fprintf(stderr, "gpu_check: rank %u gave up a call\n", group_.rank);
  std::exit(2);
}

bool Correctness::Matches(const Case& c, How how) {
  static constexpr const char* kNames[] = {"one-shot", "two-shot", "halves"};
  bool right = true;
  const char* at = host_to_;
  const char* const end = host_to_ + kArenaBytes;
  const auto is_guard = [](char byte) { return byte == static_cast<char>(kGuard); };
  for (size_t i = 0; i < arrays_.size(); ++i) {
    const Array& array = arrays_[i];
    const char* const begin = host_to_ + array.to;
    const size_t bytes = array.count * SizeOf(c.out);
    const Bytes expected = Expected(c.op, c.in, c.out, array.inputs, array.count);
    const size_t same =
        FirstDifference(c.out, Bytes(begin, begin + bytes), expected, array.count);
    const bool guarded = std::all_of(at, begin, is_guard);
    at = begin + bytes;
    if (same == array.count && guarded) continue;
    right = false;
    std::fprintf(stderr,
                 "rank %u of %u: %s %s of %s to %s, array %zu of %zu: element %zu is "
                 "wrong%s\n",
                 group_.rank, group_.ranks, kNames[static_cast<int>(how)], Name(c.op),
                 Name(c.in), Name(c.out), i, array.count, same,
                 guarded ? "" : ", and what lies before it");
  }
  return right && std::all_of(at, end, is_guard);
}

bool Correctness::CheckQueued(int calls) {
  constexpr size_t kStride = 1024;  // Between the arrays of two calls, in floats.
  auto* const values = reinterpret_cast<float*>(host_from_);
  const auto share = [](size_t i) { return static_cast<float>(i % 1009); };
  const auto count_of = [](size_t call) { return 1 + call * 37 % 1000; };
  for (size_t i = 0; i < calls * kStride; ++i) {
    values[i] = share(i) * static_cast<float>(group_.rank + 1);
  }
  arrays_.clear();
  Fill();
  for (size_t k = 0; k < static_cast<size_t>(calls); ++k) {
    const size_t offset = k * kStride * sizeof(float);
    const Tensor tensor{from_ + offset, to_ + offset, count_of(k)};
    const Call call = Check(MakeAllReduce(
        group_, ++number_, k % 3 == 0 ? Algorithm::kTwoShot : Algorithm::kOneShot, {},
        {&tensor, 1}));
    Check(gpu_.Reduce(ReduceOp::kSum, DType::kF32, DType::kF32, call, queue_.stream()));
  }
  Fetch();
  const auto* const sums = reinterpret_cast<const float*>(host_to_);
  const float shares = static_cast<float>(group_.ranks * (group_.ranks + 1) / 2);
  for (size_t k = 0; k < static_cast<size_t>(calls); ++k) {
    for (size_t i = k * kStride; i < k * kStride + count_of(k); ++i) {
      if (sums[i] == share(i) * shares) continue;
      std::fprintf(stderr, "rank %u of %u: queued call %zu is wrong\n", group_.rank,
                   group_.ranks, k);
      return false;
    }
  }
  return true;
}

void Correctness::Sum(float value) {
  std::memcpy(host_from_, &value, sizeof(value));
  Check(gpu_.Copy(from_, host_from_, sizeof(value), queue_.stream()));
  const Tensor tensor{from_, to_, 1};
  const Call call =
      Check(MakeAllReduce(group_, ++number_, Algorithm::kTwoShot, {}, {&tensor, 1}));
  Check(gpu_.Reduce(ReduceOp::kSum, DType::kF32, DType::kF32, call, queue_.stream()));
  Check(gpu_.Copy(host_to_, to_, sizeof(value), queue_.stream()));
  queue_.Mark();
}

uint32_t Correctness::SumBits() {
  uint32_t bits = 0;
  queue_.Finish();
  std::memcpy(&bits, host_to_, sizeof(bits));
  return bits;
}

}  // namespace smddp::device::testing
