// SPDX-License-Identifier: Apache-2.0
#include "ffi/handlers_cuda.h"

#include <utility>

#include "ffi/bindings.h"
#include "ffi/errors.h"
#include "ffi/registry.h"
#include "ffi/work.h"
#include "xla/ffi/api/ffi.h"

namespace smddp {
namespace {

namespace ffi = xla::ffi;

struct CudaOp : CollectiveOp {
  using CollectiveOp::CollectiveOp;
  static ffi::TypeId id;  // Assigned by XLA's CUDA plugin at registration.
};
ffi::TypeId CudaOp::id = {};

// XLA counts this process's GPUs; groups have global device ids.
Result<int64_t> MemberId(CudaOp& op, const GpuEngine& gpus, int32_t ordinal) {
  if (!op.exported()) return gpus.DeviceOf(ordinal);
  return Status(StatusCode::kInvalidArgument,
                op.op().label +
                    ": an exported program does not say on which device it runs until "
                    "it runs; on GPUs lower it where it runs, or export it with stock "
                    "lax.psum");
}

// May wait for the peers, the first time.
Status Prepare(CudaOp& op, int32_t ordinal) {
  auto gpus = Registry::Get().gpu_engine();
  SMDDP_RETURN_IF_ERROR(gpus.status());
  auto member = MemberId(op, **gpus, ordinal);
  SMDDP_RETURN_IF_ERROR(member.status());
  auto group = op.GroupOf(*member, Registry::Get().place());
  SMDDP_RETURN_IF_ERROR(group.status());
  return (*gpus)->Prepare(*group);
}

// Where XLA does not say yet on which GPU this is, the first call prepares the group.
ffi::Error Initialize(CudaOp* op, int32_t ordinal, ffi::RemainingArgs,
                      ffi::RemainingRets) {
  return ordinal < 0 ? ffi::Error::Success() : ToError(Prepare(*op, ordinal));
}

// Gives a call to `enqueue`, a method of GpuEngine.
template <class Method>
Status Enqueue(CudaOp& op, void* stream, int32_t ordinal, ffi::RemainingArgs arguments,
               ffi::RemainingRets results, Method enqueue) {
  auto gpus = Registry::Get().gpu_engine();
  SMDDP_RETURN_IF_ERROR(gpus.status());
  auto member = MemberId(op, **gpus, ordinal);
  SMDDP_RETURN_IF_ERROR(member.status());
  auto work = WorkOf(op, *member, arguments, results);
  SMDDP_RETURN_IF_ERROR(work.status());
  GpuCall call;
  call.signature = std::move(work->signature);
  call.label = op.op().label;
  call.key = op.op().key;
  call.from = std::move(work->participant.inputs);
  call.to = std::move(work->participant.outputs);
  return ((*gpus)->*enqueue)(ordinal, work->group, call, stream);
}

ffi::Error Execute(CudaOp* op, void* stream, int32_t ordinal,
                   ffi::RemainingArgs arguments, ffi::RemainingRets results) {
  return ToError(
      Enqueue(*op, stream, ordinal, arguments, results, &GpuEngine::AllReduce));
}

ffi::Error Start(CudaOp* op, void* stream, int32_t ordinal, ffi::RemainingArgs arguments,
                 ffi::RemainingRets results) {
  return ToError(Enqueue(*op, stream, ordinal, arguments, results, &GpuEngine::Start));
}

ffi::Error Done(CudaOp* op, void* stream, int32_t ordinal, ffi::RemainingArgs,
                ffi::RemainingRets results) {
  auto gpus = Registry::Get().gpu_engine();
  if (!gpus.ok()) return ToError(gpus.status());
  return ToError((*gpus)->Done(ordinal, op->op().label, AddressOf(results), stream));
}

constexpr auto kInstantiate = Instantiate<CudaOp, Collective::kAllReduce>;
XLA_FFI_DEFINE_HANDLER(kAllReduce, kInstantiate, Attributes());

XLA_FFI_DEFINE_HANDLER(kInitialize, Initialize,
                       ffi::Ffi::BindInitialize()
                           .Ctx<ffi::State<CudaOp>>()
                           .Ctx<ffi::DeviceOrdinal>()
                           .RemainingArgs()
                           .RemainingRets());

constexpr auto kExecution = Execution<CudaOp, ffi::PlatformStream<void*>>;
XLA_FFI_DEFINE_HANDLER(kExecute, Execute, kExecution());
XLA_FFI_DEFINE_HANDLER(kStart, Start, kExecution());
XLA_FFI_DEFINE_HANDLER(kDone, Done, kExecution());

}  // namespace

std::vector<CudaTarget> CudaTargets() {
  const auto target = [](const char* name, XLA_FFI_Handler* execute) {
    return CudaTarget{name, reinterpret_cast<void*>(+kAllReduce),
                      reinterpret_cast<void*>(+kInitialize),
                      reinterpret_cast<void*>(execute)};
  };
  return {target("smddp_all_reduce", kExecute), target("smddp_all_reduce_start", kStart),
          target("smddp_all_reduce_done", kDone)};
}

void* CudaStateId() { return &CudaOp::id; }

void* CudaStateInfo() {
  static auto info = ffi::MakeTypeInfo<CudaOp>();
  return &info;
}

}  // namespace smddp
