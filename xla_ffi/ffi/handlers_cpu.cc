// SPDX-License-Identifier: Apache-2.0
#include "ffi/handlers_cpu.h"

#include <utility>
#include <vector>

#include "ffi/bindings.h"
#include "ffi/errors.h"
#include "ffi/registry.h"
#include "ffi/work.h"
#include "xla/ffi/api/ffi.h"

namespace smddp {
namespace {

namespace ffi = xla::ffi;

// Who this device is in the op's groups: its global id, or for an exported program its
// partition id, which comes as the last operand.
int64_t MemberId(const CollectiveOp& op, int32_t device, ffi::RemainingArgs arguments) {
  if (!op.exported()) return device;
  const ffi::AnyBuffer last = *arguments.get<ffi::AnyBuffer>(arguments.size() - 1);
  return *static_cast<const uint32_t*>(last.untyped_data());
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

ffi::Future Execute(CollectiveOp* op, ffi::RunId run_id, int32_t device,
                    ffi::RemainingArgs arguments, ffi::RemainingRets results) {
  ffi::Promise promise;
  ffi::Future future(promise);
  const DeviceRun run = {device, run_id.run_id};
  const PendingCalls::Then settle = SettleRun(run, promise);
  auto work = WorkOf(*op, MemberId(*op, device, arguments), arguments, results);
  if (work.ok()) {
    Submit(*op, run, std::move(*work), settle);
  } else {
    settle(work.status());
  }
  return future;
}

// Where arguments lie; those without elements may lie anywhere.
PendingCalls::Addresses AddressesOf(ffi::RemainingArgs arguments, size_t first,
                                    size_t count) {
  PendingCalls::Addresses addresses;
  for (size_t i = first; i < first + count; ++i) {
    const ffi::AnyBuffer buffer = *arguments.get<ffi::AnyBuffer>(i);
    addresses.push_back(buffer.element_count() > 0 ? buffer.untyped_data() : nullptr);
  }
  return addresses;
}

// Returns at once; the call goes on, see collective/pending_calls.h.
ffi::Future Start(CollectiveOp* op, ffi::RunId run_id, int32_t device,
                  ffi::RemainingArgs arguments, ffi::RemainingRets results) {
  ffi::Promise promise;
  ffi::Future future(promise);
  const DeviceRun run = {device, run_id.run_id};
  const PendingCalls::Then settle = SettleRun(run, promise);
  auto work = WorkOf(*op, MemberId(*op, device, arguments), arguments, results);
  if (!work.ok()) {
    settle(work.status());
    return future;
  }
  const auto inputs = AddressesOf(arguments, 0, work->participant.inputs.size());
  auto over =
      Registry::Get().pending().Begin(run, AddressOf(results), inputs, op->op().label);
  if (over.ok()) Submit(*op, run, std::move(*work), std::move(*over));
  settle(over.status());
  return future;
}

// Its results are its first operands, the next are what its start has passed on, and the
// others only come before it.
ffi::Future Done(CollectiveOp* op, ffi::RunId run_id, int32_t device,
                 ffi::RemainingArgs arguments, ffi::RemainingRets results) {
  ffi::Promise promise;
  ffi::Future future(promise);
  const auto inputs = AddressesOf(arguments, results.size(), results.size());
  Registry::Get().pending().End({device, run_id.run_id}, AddressOf(results), inputs,
                                op->op().label, Settle(promise));
  return future;
}

template <Collective kind>
constexpr auto kInstantiate = Instantiate<CollectiveOp, kind>;

XLA_FFI_DEFINE_HANDLER(kAllReduce, kInstantiate<Collective::kAllReduce>, Attributes());
XLA_FFI_DEFINE_HANDLER(kReduceScatter, kInstantiate<Collective::kReduceScatter>,
                       Attributes());
XLA_FFI_DEFINE_HANDLER(kAllGather, kInstantiate<Collective::kAllGather>, Attributes());

constexpr auto kExecution = Execution<CollectiveOp, ffi::RunId>;
XLA_FFI_DEFINE_HANDLER(kExecute, Execute, kExecution());
XLA_FFI_DEFINE_HANDLER(kStart, Start, kExecution());
XLA_FFI_DEFINE_HANDLER(kDone, Done, kExecution());

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
