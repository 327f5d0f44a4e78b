// SPDX-License-Identifier: Apache-2.0
#include "collective/call.h"

#include "base/hash.h"

namespace smddp {

namespace {

// What stands before the shapes.
std::string Words(Collective kind, ReduceOp op, DType dtype) {
  if (kind == Collective::kAllGather) return "all-gather ";  // The shape names the type.
  const std::string reduction = std::string(Name(op)) + " " + Name(dtype);
  return kind == Collective::kAllReduce ? reduction : "reduce-scatter " + reduction;
}

}  // namespace

Signature::Signature(Collective kind, ReduceOp op, DType dtype,
                     const std::vector<size_t>& counts,
                     const std::vector<std::string>& shapes, std::optional<DType> wire)
    : kind(kind), op(op), dtype(dtype), wire(wire), space(counts) {
  constexpr size_t kShown = 3;
  Hash64 all;
  all.Add(static_cast<uint64_t>(kind))
      .Add(static_cast<uint64_t>(op))
      .Add(static_cast<uint64_t>(dtype))
      .Add(wire ? static_cast<uint64_t>(*wire) + 1 : 0);
  text = Words(kind, op, dtype);
  for (size_t i = 0; i < shapes.size(); ++i) {
    all.Add(shapes[i]);
    if (i < kShown) text += (i == 0 ? "" : "+") + shapes[i];
  }
  if (shapes.size() > kShown) {
    text += "+... (" + std::to_string(shapes.size()) + " tensors, " +
            std::to_string(space.total()) + " elements)";
  }
  if (wire) text += std::string(" as ") + Name(*wire) + " on the wire";
  hash = all.value();
}

Signature::Signature(ReduceOp op, DType dtype, const std::vector<size_t>& counts,
                     const std::vector<std::string>& shapes, std::optional<DType> wire)
    : Signature(Collective::kAllReduce, op, dtype, counts, shapes, wire) {}

Signature Signature::ReduceScatter(ReduceOp op, DType dtype, size_t count,
                                   const std::string& shape, std::optional<DType> wire) {
  return {Collective::kReduceScatter, op, dtype, {count}, {shape}, wire};
}

Signature Signature::AllGather(size_t bytes, const std::string& type) {
  return {Collective::kAllGather, ReduceOp::kSum, DType::kU8, {bytes}, {type}, {}};
}

Range Call::BlockOf(size_t index) const {
  const size_t size = signature->space.total() / group->members().size();
  return {group->LocalPosition(index) * size, size};
}

std::string Call::Describe() const {
  return label + ": " + signature->text + " (" + std::to_string(signature->bytes()) +
         " bytes), " + group->Describe() + ", step " + std::to_string(step) +
         (before.empty() ? "" : " (the step before went over " + before + ")");
}

}  // namespace smddp
