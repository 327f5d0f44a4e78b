// SPDX-License-Identifier: Apache-2.0
// What of a call travels between hosts, and as which type.
//
// Pure functions over a Call; no state.
#pragma once

#include <cstddef>
#include <vector>

#include "base/dtype.h"
#include "base/range.h"
#include "collective/call.h"

namespace smddp {

struct WireTypes {
  DType in;   // Of contributions.
  DType out;  // Of sums.
};

// Sums are always made in float32 where these are 16-bit floats, and rounded once. A
// contribution keeps its type if it is a single device's value (`one_each`: every host
// has one device in the group), which loses nothing; a sum of several 16-bit floats
// travels in float32, unless the user asked for another type.
WireTypes WireTypesOf(const Signature& signature, bool one_each);

// Where `positions` of the space lie in the argument, or the result, of the only local
// device; null unless they lie in one piece.
const std::byte* ArgumentAt(const Call& call, Range positions);
std::byte* ResultAt(const Call& call, Range positions);

}  // namespace smddp
