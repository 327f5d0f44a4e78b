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

// What a handler gives to the engine.
struct Work {
  int64_t member = 0;
  std::shared_ptr<const Group> group;
  std::shared_ptr<const Signature> signature;
  Participant participant;  // Whom to tell is still to be said.
};

Result<Work> WorkOf(CollectiveOp& op, int32_t device, ffi::RemainingArgs arguments,
                    ffi::RemainingRets results) {
  Work work;
  work.member = MemberId(op, device, arguments);
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

void Submit(CollectiveOp& op, const DeviceRun& run, Work work, PendingCalls::Then done) {
  work.participant.done = std::move(done);
  Registry::Get().engine().Submit(op.op(), run.run_id, work.member, work.group,
                                  work.signature, std::move(work.participant));
}

PendingCalls::Then Settle(ffi::Promise promise) {
  return [promise](const Status& status) mutable {
    if (status.ok()) {
      promise.SetAvailable();
    } else {
      promise.SetError(ToError(status));
    }
  };
}

// The same for what need not be the end of a done: what fails the run waits for all that
// it has started.
PendingCalls::Then SettleRun(const DeviceRun& run, ffi::Promise promise) {
  return [run, settle = Settle(promise)](const Status& status) {
    status.ok() ? settle(status) : Registry::Get().pending().Fail(run, status, settle);
  };
}

// Where the first result lies that has elements; null if none has.
const void* AddressOf(ffi::RemainingRets results) {
  for (size_t i = 0; i < results.size(); ++i) {
    const ffi::AnyBuffer buffer = **results.get<ffi::AnyBuffer>(i);
    if (buffer.element_count() > 0) return buffer.untyped_data();
  }
  return nullptr;
}

ffi::Future Execute(CollectiveOp* op, ffi::RunId run_id, int32_t device,
                    ffi::RemainingArgs arguments, ffi::RemainingRets results) {
  ffi::Promise promise;
  ffi::Future future(promise);
  const DeviceRun run = {device, run_id.run_id};
  const PendingCalls::Then settle = SettleRun(run, promise);
  auto work = WorkOf(*op, device, arguments, results);
  if (work.ok()) {
    Submit(*op, run, std::move(*work), settle);
  } else {
    settle(work.status());
  }
  return future;
}

// Returns at once; the call goes on, see collective/pending_calls.h.
ffi::Future Start(CollectiveOp* op, ffi::RunId run_id, int32_t device,
                  ffi::RemainingArgs arguments, ffi::RemainingRets results) {
  ffi::Promise promise;
  ffi::Future future(promise);
  const DeviceRun run = {device, run_id.run_id};
  const PendingCalls::Then settle = SettleRun(run, promise);
  auto work = WorkOf(*op, device, arguments, results);
  if (!work.ok()) {
    settle(work.status());
    return future;
  }
  auto over = Registry::Get().pending().Begin(run, AddressOf(results), op->op().label);
  if (over.ok()) Submit(*op, run, std::move(*work), std::move(*over));
  settle(over.status());
  return future;
}

// Its results are its first operands; the others live as long as the call, or come first.
ffi::Future Done(CollectiveOp* op, ffi::RunId run_id, int32_t device, ffi::RemainingArgs,
                 ffi::RemainingRets results) {
  ffi::Promise promise;
  ffi::Future future(promise);
  Registry::Get().pending().End({device, run_id.run_id}, AddressOf(results),
                                op->op().label, Settle(promise));
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

auto Execution() {
  return ffi::Ffi::Bind()
      .Ctx<ffi::State<CollectiveOp>>()
      .Ctx<ffi::RunId>()
      .Ctx<ffi::DeviceOrdinal>()
      .RemainingArgs()
      .RemainingRets();
}

XLA_FFI_DEFINE_HANDLER(kExecute, Execute, Execution());
XLA_FFI_DEFINE_HANDLER(kStart, Start, Execution());
XLA_FFI_DEFINE_HANDLER(kDone, Done, Execution());

}  // namespace

std::vector<Target> Targets() {
  const auto address = [](XLA_FFI_Handler* handler) {
    return reinterpret_cast<void*>(handler);
  };
  void* const all_reduce = address(kAllReduce);
  void* const execute = address(kExecute);
  return {{"smddp_all_reduce", all_reduce, execute},
          {"smddp_all_reduce_start", all_reduce, address(kStart)},
          {"smddp_all_reduce_done", all_reduce, address(kDone)},
          {"smddp_reduce_scatter", address(kReduceScatter), execute},
          {"smddp_all_gather", address(kAllGather), execute}};
}

void* CollectiveStateId() { return &CollectiveOp::id; }

void* CollectiveStateInfo() {
  static auto info = ffi::MakeTypeInfo<CollectiveOp>();
  return &info;
}

}  // namespace smddp
