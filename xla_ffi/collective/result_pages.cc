// SPDX-License-Identifier: Apache-2.0
#include "collective/result_pages.h"

#include <sys/mman.h>

#include <cstdint>

#include "plan/partition.h"

namespace smddp {
namespace {

constexpr uintptr_t kHugePage = uintptr_t{2} << 20;

}  // namespace

void AdviseHugePages(const Call& call) {
  const Signature& s = *call.signature;
  if (s.bytes() < kHugePage) return;
  const size_t blocks =
      s.kind == Collective::kReduceScatter ? call.group->members().size() : 1;
  s.space.ForEachPiece({0, s.space.total()}, [&](const Piece& piece) {
    const uintptr_t bytes = piece.in_tensor.size / blocks * SizeOf(s.dtype);
    if (bytes < kHugePage) return;
    for (const Participant& device : call.local) {
      const auto begin = reinterpret_cast<uintptr_t>(device.outputs[piece.tensor]);
      // Only whole huge pages inside the buffer: what lies around it is not ours.
      const uintptr_t first = (begin + kHugePage - 1) / kHugePage * kHugePage;
      const uintptr_t last = (begin + bytes) / kHugePage * kHugePage;
      if (first < last) {
        ::madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
      }
    }
  });
}

}  // namespace smddp
