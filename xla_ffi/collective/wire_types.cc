// SPDX-License-Identifier: Apache-2.0
#include "collective/wire_types.h"

namespace smddp {
namespace {

// The piece of one tensor that is all of `positions`, if there is one.
bool OnePiece(const Signature& signature, Range positions, Piece* piece) {
  bool whole = false;
  signature.space.ForEachPiece(positions, [&](const Piece& next) {
    whole = next.in_tensor.size == positions.size;
    *piece = next;
  });
  return whole;
}

}  // namespace

WireTypes WireTypesOf(const Signature& signature, bool one_each) {
  const DType partial = PartialType(signature.dtype, signature.op);
  const bool narrow = partial != signature.dtype;
  if (signature.wire) {
    return {*signature.wire, narrow ? signature.dtype : *signature.wire};
  }
  return {narrow && one_each ? signature.dtype : partial, signature.dtype};
}

const std::byte* ArgumentAt(const Call& call, Range positions) {
  Piece piece;
  if (!OnePiece(*call.signature, positions, &piece)) return nullptr;
  return static_cast<const std::byte*>(call.local[0].inputs[piece.tensor]) +
         piece.in_tensor.offset * SizeOf(call.signature->dtype);
}

std::byte* ResultAt(const Call& call, Range positions) {
  const Signature& s = *call.signature;
  Range of_result = positions;
  if (s.kind == Collective::kReduceScatter) {
    const Range block = call.BlockOf(0);
    if (positions.offset < block.offset || positions.end() > block.end()) return nullptr;
    of_result.offset -= block.offset;
    return static_cast<std::byte*>(call.local[0].outputs[0]) +
           of_result.offset * SizeOf(s.dtype);
  }
  Piece piece;
  if (!OnePiece(s, positions, &piece)) return nullptr;
  return static_cast<std::byte*>(call.local[0].outputs[piece.tensor]) +
         piece.in_tensor.offset * SizeOf(s.dtype);
}

}  // namespace smddp
