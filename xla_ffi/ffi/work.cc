// SPDX-License-Identifier: Apache-2.0
#include "ffi/work.h"

#include "ffi/operands.h"
#include "ffi/registry.h"

namespace smddp {

namespace ffi = xla::ffi;

Result<Work> WorkOf(CollectiveOp& op, int64_t member, ffi::RemainingArgs arguments,
                    ffi::RemainingRets results) {
  Work work;
  work.member = member;
  auto group = op.GroupOf(work.member, Registry::Get().place());
  SMDDP_RETURN_IF_ERROR(group.status());
  work.group = *group;
  auto signature = op.SignatureFor([&](const Request& request) {
    return SignatureOf(request, work.group->members().size(), arguments, results);
  });
  SMDDP_RETURN_IF_ERROR(signature.status());
  work.signature = *signature;
  for (size_t i = 0; i < results.size(); ++i) {
    work.participant.inputs.push_back(arguments.get<ffi::AnyBuffer>(i)->untyped_data());
    work.participant.outputs.push_back((*results.get<ffi::AnyBuffer>(i))->untyped_data());
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
