// SPDX-License-Identifier: Apache-2.0
#include "collective/local_stage.h"

#include <algorithm>
#include <cstring>
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

Range Intersection(Range a, Range b) {
  const size_t begin = std::max(a.offset, b.offset);
  const size_t end = std::min(a.end(), b.end());
  return {begin, end > begin ? end - begin : 0};
}

// What a range has in common with the block of one local device.
struct BlockPiece {
  const Participant& device;
  Range in_space;
  size_t in_block = 0;  // Where it starts, counted from the block's start.
};

// Calls visit(const BlockPiece&) for each local device whose block meets `range`, in the
// order of the blocks.
template <typename Visit>
void ForEachBlock(const Call& call, Range range, Visit&& visit) {
  for (size_t i = 0; i < call.local.size(); ++i) {
    const Range block = call.BlockOf(i);
    const Range part = Intersection(block, range);
    if (part.empty()) continue;
    visit(BlockPiece{call.local[i], part, part.offset - block.offset});
  }
}

// Bytes of all devices' results.
size_t ResultBytes(const Call& call) {
  const size_t bytes = call.signature->bytes();
  const bool scattered = call.signature->kind == Collective::kReduceScatter;
  return scattered ? bytes : bytes * call.group->members().size();
}

// The local devices' blocks of an all-gather, and zeros for the others'.
void PlaceBlocks(const Call& call, Range range, std::byte* out) {
  size_t filled = range.offset;
  const auto zeros_until = [&](size_t end) {
    std::memset(out + (filled - range.offset), 0, end - filled);
  };
  ForEachBlock(call, range, [&](const BlockPiece& piece) {
    zeros_until(piece.in_space.offset);
    std::memcpy(out + (piece.in_space.offset - range.offset),
                At(piece.device.inputs[0], piece.in_block, DType::kU8),
                piece.in_space.size);
    filled = piece.in_space.end();
  });
  zeros_until(range.end());
}

// Combines the arguments of all devices into each one's block.
void ScatterLocal(const Call& call, Range range) {
  const Signature& s = *call.signature;
  ForEachBlock(call, range, [&](const BlockPiece& piece) {
    void* const target = At(piece.device.outputs[0], piece.in_block, s.dtype);
    Reduce(s.op, s.dtype, s.dtype, InputsOf(call, {0, piece.in_space, 0}),
           std::span(&target, 1), piece.in_space.size, StoreFor(call));
  });
}

// Copies each device's block to all.
void GatherLocal(const Call& call, Range range) {
  const Signature& s = *call.signature;
  ForEachBlock(call, range, [&](const BlockPiece& piece) {
    const void* const source = At(piece.device.inputs[0], piece.in_block, s.dtype);
    Reduce(s.op, s.dtype, s.dtype, std::span(&source, 1),
           OutputsOf(call, {0, piece.in_space, 0}), piece.in_space.size, StoreFor(call));
  });
}

// `sources` start at the range's start; each device gets what lies in its block.
void SpreadBlocks(const Call& call, Range range, std::span<const void* const> sources,
                  DType type) {
  const Signature& s = *call.signature;
  thread_local std::vector<const void*> inputs;
  inputs.resize(sources.size());
  ForEachBlock(call, range, [&](const BlockPiece& piece) {
    for (size_t i = 0; i < sources.size(); ++i) {
      inputs[i] = At(sources[i], piece.in_space.offset - range.offset, type);
    }
    void* const target = At(piece.device.outputs[0], piece.in_block, s.dtype);
    Reduce(s.op, type, s.dtype, inputs, std::span(&target, 1), piece.in_space.size,
           StoreFor(call));
  });
}

}  // namespace

Store StoreFor(const Call& call) {
  return ResultBytes(call) >= kStreamingBytes ? Store::kStreaming : Store::kCached;
}

void CombineLocal(const Call& call, Range range, void* out, DType type) {
  const Signature& s = *call.signature;
  if (s.kind == Collective::kAllGather) {
    PlaceBlocks(call, range, static_cast<std::byte*>(out));
    return;
  }
  s.space.ForEachPiece(range, [&](const Piece& piece) {
    void* const target = At(out, piece.in_range, type);
    Reduce(s.op, s.dtype, type, InputsOf(call, piece), std::span(&target, 1),
           piece.in_tensor.size, Store::kCached);
  });
}

void CombineSources(const Call& call, Range range, std::span<const void* const> sources,
                    void* out, DType type) {
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
    void* const target = At(out, piece.in_range, type);
    Reduce(s.op, partial, type, inputs, std::span(&target, 1), piece.in_tensor.size,
           Store::kCached);
  });
}

void SpreadLocal(const Call& call, Range range, std::span<const void* const> sources,
                 DType type) {
  const Signature& s = *call.signature;
  if (s.kind == Collective::kReduceScatter) {
    SpreadBlocks(call, range, sources, type);
    return;
  }
  thread_local std::vector<const void*> inputs;
  inputs.resize(sources.size());
  s.space.ForEachPiece(range, [&](const Piece& piece) {
    for (size_t i = 0; i < sources.size(); ++i) {
      inputs[i] = At(sources[i], piece.in_range, type);
    }
    Reduce(s.op, type, s.dtype, inputs, OutputsOf(call, piece), piece.in_tensor.size,
           StoreFor(call));
  });
}

void ExchangeLocal(const Call& call, Range range) {
  const Signature& s = *call.signature;
  switch (s.kind) {
    case Collective::kAllReduce:
      s.space.ForEachPiece(range, [&](const Piece& piece) {
        Reduce(s.op, s.dtype, s.dtype, InputsOf(call, piece), OutputsOf(call, piece),
               piece.in_tensor.size, StoreFor(call));
      });
      return;
    case Collective::kReduceScatter:
      return ScatterLocal(call, range);
    case Collective::kAllGather:
      return GatherLocal(call, range);
  }
}

size_t LocalTasks(const Call& call, size_t threads) {
  const size_t worth = call.signature->bytes() / kTaskBytes;
  return std::clamp<size_t>(worth, 1, threads * kTasksPerThread);
}

Range LocalTask(const Call& call, size_t tasks, size_t index) {
  return PartOf(call.signature->space.total(), tasks, index, kAlignElements);
}

}  // namespace smddp
