// SPDX-License-Identifier: Apache-2.0
// A job whose processes have GPUs, all in one process: engines as in job.h, GPUs as in
// host_gpus.h, and arrays to reduce.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gpu/gpu_engine.h"
#include "tests/collective/job.h"
#include "tests/device/host_gpus.h"
#include "tests/reduce/reference.h"

namespace smddp {

using device::testing::HostGpu;
using device::testing::HostGpus;
using testing::Bytes;
using testing::Case;

inline Settings SmallGpuSettings() {
  Settings settings = SmallSettings();
  settings.gpu_staging_bytes = size_t{1} << 18;
  return settings;
}

class GpuJob {
 public:
  // Layout::devices are GPUs.
  explicit GpuJob(Layout layout, Settings settings = SmallGpuSettings(),
                  HostGpu::Shape shape = {1, 2})
      : layout_(layout), job_(layout, settings) {
    for (int p = 0; p < layout.processes; ++p) {
      gpus_.push_back(std::make_unique<HostGpus>(layout.devices, shape));
      engines_.push_back(std::make_unique<GpuEngine>(job_.engine(p), *gpus_.back()));
      std::map<int, int64_t> ids;
      streams_.emplace_back();
      for (int o = 0; o < layout.devices; ++o) {
        ids.emplace(o, Job::Device(p, o));
        streams_.back().push_back(*gpus_.back()->gpu(o).NewStream());
      }
      engines_.back()->Name(ids);
    }
  }

  // Kernels of one process write to the memory of others: all end before any memory goes.
  ~GpuJob() {
    for (auto& engine : engines_) engine->Leave("the test is over");
    Finish();
    for (int p = 0; p < processes(); ++p) job_.Kill(p);
  }

  Job& job() { return job_; }
  int processes() const { return layout_.processes; }
  int gpus() const { return layout_.devices; }
  int hosts() const { return layout_.hosts; }
  GpuEngine& engine(int process) { return *engines_[static_cast<size_t>(process)]; }
  HostGpus& gpus(int process) { return *gpus_[static_cast<size_t>(process)]; }
  device::StreamHandle stream(int process, int ordinal) {
    return streams_[static_cast<size_t>(process)][static_cast<size_t>(ordinal)];
  }

  // A process that ends, as its peers see it.
  void Kill(int process) {
    engine(process).Leave("killed");
    job_.Kill(process);
  }

  void Finish() {
    for (auto& gpus : gpus_) gpus->FinishAll();
  }

  template <typename Body>
  void EachProcess(Body&& body) {
    job_.EachProcess(body);
  }
  // body(process, ordinal, member), on a thread for every GPU, as XLA has.
  template <typename Body>
  void EachGpu(Body&& body) {
    std::vector<std::thread> threads;
    for (int p = 0; p < processes(); ++p) {
      for (int o = 0; o < gpus(); ++o) {
        threads.emplace_back([&, p, o] { body(p, o, size_t(p * gpus() + o)); });
      }
    }
    for (std::thread& thread : threads) thread.join();
  }

 private:
  const Layout layout_;
  // GPUs go last, behind engines that may owe them something.
  std::vector<std::unique_ptr<HostGpus>> gpus_;
  std::vector<std::vector<device::StreamHandle>> streams_;
  std::vector<std::unique_ptr<GpuEngine>> engines_;
  Job job_;
};

// One collective over all GPUs of a job, or of a group: what goes in and what comes out.
class GpuReduction {
 public:
  // `members` are indices of GPUs of the job in rank order.
  GpuReduction(const Case& c, std::vector<size_t> counts, size_t members, uint64_t key,
               std::optional<DType> wire = std::nullopt)
      : case_(c), counts_(std::move(counts)), key_(key) {
    std::mt19937_64 random(key);
    std::vector<std::string> shapes;
    for (size_t count : counts_) shapes.push_back("[" + std::to_string(count) + "]");
    signature_ = std::make_shared<const Signature>(c.op, c.in, counts_, shapes, wire);
    for (size_t m = 0; m < members; ++m) {
      from_.emplace_back();
      to_.emplace_back();
      for (size_t count : counts_) {
        from_.back().push_back(testing::RandomArray(c.in, count, random));
        to_.back().emplace_back(count * SizeOf(c.in), uint8_t{0xa5});
      }
    }
  }

  // Over everything that fits: small whole numbers, so that any order gives the sum.
  GpuReduction& FillWithWholeNumbers() {
    for (size_t m = 0; m < from_.size(); ++m) {
      for (Bytes& tensor : from_[m]) {
        for (size_t e = 0; e < tensor.size() / sizeof(float); ++e) {
          testing::Put(tensor, e, static_cast<float>((e * 7 + m * 13 + key_) % 1021));
        }
      }
    }
    return *this;
  }

  GpuCall Call(size_t member) {
    GpuCall call;
    call.signature = signature_;
    call.label = "psum #" + std::to_string(key_);
    call.key = key_;
    for (const Bytes& tensor : from_[member]) call.from.push_back(tensor.data());
    for (Bytes& tensor : to_[member]) call.to.push_back(tensor.data());
    return call;
  }

  // Whether every member has exactly that.
  void Check(size_t hosts) const {
    for (size_t t = 0; t < counts_.size(); ++t) {
      const Bytes expected = Exact(t, hosts);
      for (size_t m = 0; m < to_.size(); ++m) {
        const size_t same =
            testing::FirstDifference(case_.in, to_[m][t], expected, counts_[t]);
        ASSERT_EQ(same, counts_[t])
            << Name(case_.op) << " of " << Name(case_.in) << ", key " << key_
            << ", tensor " << t << " of member " << m << ": element " << same;
      }
    }
  }

  // What plain arithmetic gives: hosts add up their own first.
  Bytes Exact(size_t tensor, size_t hosts) const {
    const DType partial = PartialType(case_.in, case_.op);
    const size_t each = from_.size() / hosts;
    std::vector<Bytes> sums;
    for (size_t h = 0; h < hosts; ++h) {
      std::vector<Bytes> inputs;
      for (size_t m = h * each; m < (h + 1) * each; ++m) {
        inputs.push_back(from_[m][tensor]);
      }
      sums.push_back(
          testing::Expected(case_.op, case_.in, partial, inputs, counts_[tensor]));
    }
    return testing::Expected(case_.op, partial, case_.in, sums, counts_[tensor]);
  }

  // Whether all of `member`'s results are 0xFF.
  bool Poisoned(size_t member) const {
    for (const Bytes& tensor : to_[member]) {
      if (tensor != Bytes(tensor.size(), 0xff)) return false;
    }
    return true;
  }
  // Whether every number of `member`'s results is right or 0xFF in all its bytes.
  bool RightOrPoisoned(size_t member, size_t hosts) const {
    const size_t size = SizeOf(case_.in);
    for (size_t t = 0; t < counts_.size(); ++t) {
      const Bytes exact = Exact(t, hosts);
      const Bytes& got = to_[member][t];
      for (size_t e = 0; e < counts_[t]; ++e) {
        const auto at = static_cast<ptrdiff_t>(e * size);
        const Bytes number(got.begin() + at, got.begin() + at + ptrdiff_t(size));
        const Bytes right(exact.begin() + at, exact.begin() + at + ptrdiff_t(size));
        if (number != right && number != Bytes(size, 0xff)) return false;
      }
    }
    return true;
  }
  Bytes& result(size_t member, size_t tensor) { return to_[member][tensor]; }

 private:
  const Case case_;
  const std::vector<size_t> counts_;
  const uint64_t key_;
  std::shared_ptr<const Signature> signature_;
  std::vector<std::vector<Bytes>> from_, to_;  // By member, by tensor.
};

// Enqueues `reduction` on all GPUs of a process, in its group of all.
inline void Enqueue(GpuJob& job, int process, GpuReduction& reduction) {
  for (int o = 0; o < job.gpus(); ++o) {
    const auto member = static_cast<size_t>(process * job.gpus() + o);
    const Status status = job.engine(process).AllReduce(
        o, job.job().group(process), reduction.Call(member), job.stream(process, o));
    ASSERT_TRUE(status.ok()) << status.message();
  }
}

inline GpuReduction MakeReduction(GpuJob& job, const Case& c, std::vector<size_t> counts,
                                  uint64_t key, std::optional<DType> wire = {}) {
  return GpuReduction(c, std::move(counts),
                      static_cast<size_t>(job.processes() * job.gpus()), key, wire);
}

constexpr Case kFloatSum{ReduceOp::kSum, DType::kF32, DType::kF32};

inline std::deque<GpuReduction> ReductionsOfEveryType(GpuJob& job) {
  std::deque<GpuReduction> reductions;
  for (const Case& c : testing::UncastCases()) {
    reductions.push_back(MakeReduction(job, c, {129, 1, 30}, reductions.size()));
  }
  return reductions;
}

// Up to several times what the staging takes, and the ring of pinned memory.
inline std::deque<GpuReduction> ReductionsOfAnySize(GpuJob& job) {
  std::deque<GpuReduction> reductions;
  for (const size_t count : {1, 5, 4096, 70'001, 300'000, 0, 3}) {
    reductions.push_back(MakeReduction(job, kFloatSum, {count, 3}, reductions.size()));
  }
  const Case halves{ReduceOp::kSum, DType::kBF16, DType::kBF16};
  reductions.push_back(MakeReduction(job, halves, {200'001, 0, 7}, 99));
  return reductions;
}

// Each GPU on a thread of its own; nobody waits in between.
inline void RunAndCheck(GpuJob& job, std::deque<GpuReduction> reductions) {
  job.EachGpu([&](int p, int o, size_t member) {
    for (GpuReduction& reduction : reductions) {
      const Status status = job.engine(p).AllReduce(
          o, job.job().group(p), reduction.Call(member), job.stream(p, o));
      ASSERT_TRUE(status.ok()) << status.message();
    }
  });
  job.Finish();
  for (const GpuReduction& reduction : reductions) {
    reduction.Check(static_cast<size_t>(job.hosts()));
  }
}

}  // namespace smddp
