// SPDX-License-Identifier: Apache-2.0
#include "collective/local_all_reduce.h"

#include <algorithm>
#include <span>
#include <vector>

namespace smddp {
namespace {

// Borders of tasks lie on whole cache lines for every element size.
constexpr size_t kAlignElements = 64;
// Bytes of results per task and device: enough to drown the cost of taking a task.
constexpr size_t kTaskBytes = size_t{64} << 10;
// A few tasks per thread even out threads that lose their core for a while.
constexpr size_t kTasksPerThread = 8;

const std::byte* At(const void* base, size_t index, DType dtype) {
  return static_cast<const std::byte*>(base) + index * SizeOf(dtype);
}

std::byte* At(void* base, size_t index, DType dtype) {
  return static_cast<std::byte*>(base) + index * SizeOf(dtype);
}

// Where a piece lies in each local device's arguments, and in its results. Valid until
// the thread asks again: a segment is too little work to pay for an allocation.
std::span<const void* const> InputsOf(const Call& call, const Piece& piece) {
  thread_local std::vector<const void*> inputs;
  inputs.clear();
  for (const Participant& device : call.local) {
    inputs.push_back(
        At(device.inputs[piece.tensor], piece.in_tensor.offset, call.signature->dtype));
  }
  return inputs;
}

std::span<void* const> OutputsOf(const Call& call, const Piece& piece) {
  thread_local std::vector<void*> outputs;
  outputs.clear();
  for (const Participant& device : call.local) {
    outputs.push_back(
        At(device.outputs[piece.tensor], piece.in_tensor.offset, call.signature->dtype));
  }
  return outputs;
}

}  // namespace

Store StoreFor(const Call& call) {
  const bool large =
      call.signature->bytes() * call.group->members().size() >= kStreamingBytes;
  return large ? Store::kStreaming : Store::kCached;
}

void CombineLocal(const Call& call, Range range, void* out) {
  const Signature& s = *call.signature;
  const DType partial = PartialType(s.dtype, s.op);
  s.space.ForEachPiece(range, [&](const Piece& piece) {
    void* const target = At(out, piece.in_range, partial);
    Reduce(s.op, s.dtype, partial, InputsOf(call, piece), std::span(&target, 1),
           piece.in_tensor.size, Store::kCached);
  });
}

void CombineSources(const Call& call, Range range, std::span<const void* const> sources,
                    void* out) {
  const Signature& s = *call.signature;
  const DType partial = PartialType(s.dtype, s.op);
  thread_local std::vector<const void*> inputs;
  inputs.resize(sources.size());
  s.space.ForEachPiece(range, [&](const Piece& piece) {
    for (size_t i = 0; i < sources.size(); ++i) {
      inputs[i] = sources[i] != nullptr ? At(sources[i], piece.in_range, partial)
                                        : At(call.local[0].inputs[piece.tensor],
                                             piece.in_tensor.offset, partial);
    }
    void* const target = At(out, piece.in_range, partial);
    Reduce(s.op, partial, partial, inputs, std::span(&target, 1), piece.in_tensor.size,
           Store::kCached);
  });
}

void SpreadLocal(const Call& call, Range range, std::span<const void* const> sources) {
  const Signature& s = *call.signature;
  const DType partial = PartialType(s.dtype, s.op);
  const Store store = StoreFor(call);
  thread_local std::vector<const void*> inputs;
  inputs.resize(sources.size());
  s.space.ForEachPiece(range, [&](const Piece& piece) {
    for (size_t i = 0; i < sources.size(); ++i) {
      inputs[i] = At(sources[i], piece.in_range, partial);
    }
    Reduce(s.op, partial, s.dtype, inputs, OutputsOf(call, piece), piece.in_tensor.size,
           store);
  });
}

void AllReduceLocal(const Call& call, Range range) {
  const Signature& s = *call.signature;
  const Store store = StoreFor(call);
  s.space.ForEachPiece(range, [&](const Piece& piece) {
    Reduce(s.op, s.dtype, s.dtype, InputsOf(call, piece), OutputsOf(call, piece),
           piece.in_tensor.size, store);
  });
}

size_t LocalTasks(const Call& call, size_t threads) {
  const size_t worth = call.signature->bytes() / kTaskBytes;
  return std::clamp<size_t>(worth, 1, threads * kTasksPerThread);
}

Range LocalTask(const Call& call, size_t tasks, size_t index) {
  return PartOf(call.signature->space.total(), tasks, index, kAlignElements);
}

}  // namespace smddp
