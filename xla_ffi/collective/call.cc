// SPDX-License-Identifier: Apache-2.0
#include "collective/call.h"

#include "base/hash.h"

namespace smddp {

Signature::Signature(ReduceOp op, DType dtype, const std::vector<size_t>& counts,
                     const std::vector<std::string>& shapes)
    : op(op), dtype(dtype), space(counts) {
  constexpr size_t kShown = 3;
  Hash64 all;
  all.Add(static_cast<uint64_t>(op)).Add(static_cast<uint64_t>(dtype));
  text = std::string(Name(op)) + " " + Name(dtype);
  for (size_t i = 0; i < shapes.size(); ++i) {
    all.Add(shapes[i]);
    if (i < kShown) text += (i == 0 ? "" : "+") + shapes[i];
  }
  if (shapes.size() > kShown) {
    text += "+... (" + std::to_string(shapes.size()) + " tensors, " +
            std::to_string(space.total()) + " elements)";
  }
  hash = all.value();
}

std::string Call::Describe() const {
  return label + ": " + signature->text + " (" + std::to_string(signature->bytes()) +
         " bytes), " + group->Describe() + ", step " + std::to_string(step) +
         (before.empty() ? "" : " (the step before went over " + before + ")");
}

}  // namespace smddp
