// SPDX-License-Identifier: Apache-2.0
#include "ffi/handlers_cpu.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ffi/collective_op.h"
#include "ffi/operands.h"
#include "ffi/registry.h"
#include "xla/ffi/api/ffi.h"

namespace smddp {
namespace {

namespace ffi = xla::ffi;

// The one place where a Status becomes an XLA error; JAX raises it as JaxRuntimeError.
ffi::Error ToError(const Status& status) {
  const auto code = [&] {
    switch (status.code()) {
      case StatusCode::kInvalidArgument:
      case StatusCode::kMismatch:
        return ffi::ErrorCode::kInvalidArgument;
      case StatusCode::kPeerLost:
        return ffi::ErrorCode::kUnavailable;
      case StatusCode::kDeadline:
        return ffi::ErrorCode::kDeadlineExceeded;
      case StatusCode::kAborted:
        return ffi::ErrorCode::kAborted;
      default:
        return ffi::ErrorCode::kInternal;
    }
  }();
  return ffi::Error(
      code, "smddp_jax: " + std::string(Name(status.code())) + ": " + status.message());
}

// Blocks of a reduce-scatter or an all-gather are as many in every group.
bool AlikeGroups(ffi::Span<const int64_t> sizes) {
  return std::all_of(sizes.begin(), sizes.end(),
                     [&](int64_t size) { return size == *sizes.begin(); });
}

template <Collective kind>
ffi::ErrorOr<std::unique_ptr<CollectiveOp>> Instantiate(
    int64_t key, int64_t op, int64_t wire, int64_t exported,
    ffi::Span<const int64_t> groups, ffi::Span<const int64_t> group_sizes,
    ffi::Span<const int64_t> devices, ffi::Span<const int64_t> processes,
    std::string_view label) {
  if (kind != Collective::kAllReduce && !AlikeGroups(group_sizes)) {
    return ffi::Unexpected(ffi::Error(
        ffi::ErrorCode::kInvalidArgument,
        "smddp_jax: " + std::string(label) + ": replica groups of unlike sizes"));
  }
  CollectiveAttributes attributes;
  attributes.key = key;
  attributes.request = {kind, op, wire};
  attributes.exported = exported != 0;
  attributes.groups.assign(groups.begin(), groups.end());
  attributes.group_sizes.assign(group_sizes.begin(), group_sizes.end());
  attributes.devices.assign(devices.begin(), devices.end());
  attributes.processes.assign(processes.begin(), processes.end());
  attributes.label = std::string(label);
  return std::make_unique<CollectiveOp>(std::move(attributes));
}

// Who this device is in the op's groups: its global id, or for an exported program its
// partition id, which comes as the last operand.
int64_t MemberId(const CollectiveOp& op, int32_t device, ffi::RemainingArgs arguments) {
  if (!op.exported()) return device;
  const ffi::AnyBuffer last = *arguments.get<ffi::AnyBuffer>(arguments.size() - 1);
  return *static_cast<const uint32_t*>(last.untyped_data());
}

ffi::Future Execute(CollectiveOp* op, ffi::RunId run, int32_t device,
                    ffi::RemainingArgs arguments, ffi::RemainingRets results) {
  ffi::Promise promise;
  ffi::Future future(promise);
  Registry& registry = Registry::Get();
  const Place place = registry.place();

  const int64_t member = MemberId(*op, device, arguments);
  auto group = op->GroupOf(member, place);
  if (!group.ok()) {
    promise.SetError(ToError(group.status()));
    return future;
  }
  auto signature = op->SignatureFor([&](const Request& request) {
    return SignatureOf(request, (*group)->members().size(), arguments, results);
  });
  if (!signature.ok()) {
    promise.SetError(ToError(signature.status()));
    return future;
  }

  Participant participant;
  for (size_t i = 0; i < results.size(); ++i) {
    participant.inputs.push_back(arguments.get<ffi::AnyBuffer>(i)->untyped_data());
    participant.outputs.push_back((*results.get<ffi::AnyBuffer>(i))->untyped_data());
  }
  participant.done = [promise](const Status& status) mutable {
    if (status.ok()) {
      promise.SetAvailable();
    } else {
      promise.SetError(ToError(status));
    }
  };
  registry.engine().Submit(op->op(), run.run_id, member, *group, *signature,
                           std::move(participant));
  return future;
}

auto Attributes() {
  return ffi::Ffi::BindInstantiate()
      .Attr<int64_t>("key")
      .Attr<int64_t>("op")
      .Attr<int64_t>("wire")
      .Attr<int64_t>("exported")
      .Attr<ffi::Span<const int64_t>>("groups")
      .Attr<ffi::Span<const int64_t>>("group_sizes")
      .Attr<ffi::Span<const int64_t>>("devices")
      .Attr<ffi::Span<const int64_t>>("processes")
      .Attr<std::string_view>("label");
}

XLA_FFI_DEFINE_HANDLER(kAllReduce, Instantiate<Collective::kAllReduce>, Attributes());
XLA_FFI_DEFINE_HANDLER(kReduceScatter, Instantiate<Collective::kReduceScatter>,
                       Attributes());
XLA_FFI_DEFINE_HANDLER(kAllGather, Instantiate<Collective::kAllGather>, Attributes());

XLA_FFI_DEFINE_HANDLER(kExecute, Execute,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::State<CollectiveOp>>()
                           .Ctx<ffi::RunId>()
                           .Ctx<ffi::DeviceOrdinal>()
                           .RemainingArgs()
                           .RemainingRets());

}  // namespace

std::vector<Target> Targets() {
  return {{"smddp_all_reduce", reinterpret_cast<void*>(+kAllReduce)},
          {"smddp_reduce_scatter", reinterpret_cast<void*>(+kReduceScatter)},
          {"smddp_all_gather", reinterpret_cast<void*>(+kAllGather)}};
}

void* CollectiveExecute() { return reinterpret_cast<void*>(+kExecute); }
void* CollectiveStateId() { return &CollectiveOp::id; }

void* CollectiveStateInfo() {
  static auto info = ffi::MakeTypeInfo<CollectiveOp>();
  return &info;
}

}  // namespace smddp
