// SPDX-License-Identifier: Apache-2.0
#include "ffi/work.h"

#include "ffi/operands.h"
#include "ffi/registry.h"

namespace smddp {

namespace ffi = xla::ffi;

namespace {

const void* Argument(ffi::RemainingArgs arguments, size_t index) {
  return arguments.get<ffi::AnyBuffer>(index)->untyped_data();
}

void* ResultBuffer(ffi::RemainingRets results, size_t index) {
  return (*results.get<ffi::AnyBuffer>(index))->untyped_data();
}

}  // namespace

Result<Work> WorkOf(CollectiveOp& op, int64_t member, ffi::RemainingArgs arguments,
                    ffi::RemainingRets results) {
  Work work;
  work.member = member;
  auto group = op.GroupOf(work.member, Registry::Get().place());
  SMDDP_RETURN_IF_ERROR(group.status());
  work.group = *group;
  const size_t tensors = arguments.size() - (op.exported() ? 1 : 0);
  if (results.size() < tensors) {
    return Status(StatusCode::kInternal, "fewer results than arguments");
  }
  auto signature = op.SignatureFor([&](const Request& request) {
    return SignatureOf(request, work.group->members().size(), tensors, arguments,
                       results);
  });
  SMDDP_RETURN_IF_ERROR(signature.status());
  work.signature = *signature;
  for (size_t i = 0; i < tensors; ++i) {
    work.participant.inputs.push_back(Argument(arguments, i));
    work.participant.outputs.push_back(ResultBuffer(results, i));
  }
  for (size_t i = tensors; i < results.size(); ++i) {
    const bool empty = arguments.get<ffi::AnyBuffer>(i - tensors)->element_count() == 0;
    if (!empty && ResultBuffer(results, i) != Argument(arguments, i - tensors)) {
      return Status(StatusCode::kInternal,
                    op.op().label + ": XLA has not aliased an argument with its result");
    }
  }
  return work;
}

const void* AddressOf(ffi::RemainingRets results) {
  for (size_t i = 0; i < results.size(); ++i) {
    const ffi::AnyBuffer buffer = **results.get<ffi::AnyBuffer>(i);
    if (buffer.element_count() > 0) return buffer.untyped_data();
  }
  return nullptr;
}

}  // namespace smddp
