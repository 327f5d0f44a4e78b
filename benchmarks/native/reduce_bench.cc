// SPDX-License-Identifier: Apache-2.0
// How fast Reduce() is, beside memcpy over the same memory: a table of medians.
//
//   g++ -std=c++20 -O3 -Ixla_ffi benchmarks/native/reduce_bench.cc
//       BUILD/reduce/libsmddp_reduce.a -pthread && ./a.out [greatest MiB per buffer]
//
// Every buffer is touched before the clock runs: page faults are not measured. The
// rate counts each input read once and each output written once.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "reduce/reduce.h"

namespace {

using smddp::DType;
using smddp::ReduceOp;
using smddp::Store;

struct Free {
  void operator()(void* p) const { std::free(p); }
};
using Buffer = std::unique_ptr<void, Free>;

std::vector<Buffer> MakeBuffers(size_t n, size_t bytes) {
  std::vector<Buffer> buffers;
  for (size_t i = 0; i < n; ++i) {
    buffers.emplace_back(std::aligned_alloc(64, (bytes + 63) / 64 * 64));
    std::memset(buffers.back().get(), 0, bytes);
  }
  return buffers;
}

// Runs body(begin, end) on `threads` threads that share [0, count); the median and
// the least time of one pass in seconds. Short passes are repeated inside a sample.
template <class Body>
std::pair<double, double> Time(int threads, size_t count, size_t bytes, Body body) {
  const int passes = static_cast<int>(std::clamp<size_t>((8 << 20) / bytes, 1, 2000));
  std::vector<double> samples;
  for (int sample = 0; sample < 11; ++sample) {
    const auto start = std::chrono::steady_clock::now();
    std::vector<std::jthread> team;
    for (int t = 0; t < threads; ++t) {
      team.emplace_back([=] {
        for (int p = 0; p < passes; ++p) {
          body(count / threads * t, t + 1 == threads ? count : count / threads * (t + 1));
        }
      });
    }
    team.clear();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    samples.push_back(took.count() / passes);
  }
  std::sort(samples.begin(), samples.end());
  return {samples[samples.size() / 2], samples[0]};
}

void Print(const std::string& what, size_t bytes, int threads, double moved,
           std::pair<double, double> seconds) {
  std::printf("%-26s %8zu KiB  %d thread%s %10.1f us (least %10.1f) %7.2f GB/s\n",
              what.c_str(), bytes >> 10, threads, threads == 1 ? " " : "s",
              seconds.first * 1e6, seconds.second * 1e6, moved / seconds.first * 1e-9);
}

void BenchMemcpy(size_t bytes, int threads) {
  auto buffers = MakeBuffers(2, bytes);
  char* to = static_cast<char*>(buffers[0].get());
  const char* from = static_cast<const char*>(buffers[1].get());
  Print("memcpy", bytes, threads, 2.0 * bytes,
        Time(threads, bytes, 2 * bytes, [=](size_t begin, size_t end) {
          std::memcpy(to + begin, from + begin, end - begin);
        }));
}

void BenchReduce(DType dtype, size_t inputs, size_t outputs, size_t bytes, int threads,
                 Store store) {
  auto in = MakeBuffers(inputs, bytes);
  auto out = MakeBuffers(outputs, bytes);
  const size_t element = SizeOf(dtype);
  const double moved = static_cast<double>((inputs + outputs) * bytes);
  const auto body = [&](size_t begin, size_t end) {
    std::vector<const void*> from;
    std::vector<void*> to;
    for (auto& b : in) from.push_back(static_cast<char*>(b.get()) + begin * element);
    for (auto& b : out) to.push_back(static_cast<char*>(b.get()) + begin * element);
    Reduce(ReduceOp::kSum, dtype, dtype, from, to, end - begin, store);
  };
  const std::string what = std::string(Name(dtype)) + " " + std::to_string(inputs) +
                           "->" + std::to_string(outputs) +
                           (store == Store::kCached ? " cached" : " streaming");
  Print(what, bytes, threads, moved,
        Time(threads, bytes / element, (inputs + outputs) * bytes, body));
}

}  // namespace

int main(int argc, char** argv) {
  const size_t max_bytes = (argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 64) << 20;
  std::printf("instruction set: %s\n", smddp::ReduceInstructionSet());
  for (size_t bytes : {size_t{4} << 10, size_t{64} << 10, size_t{256} << 10,
                       size_t{1} << 20, size_t{16} << 20, size_t{64} << 20}) {
    if (bytes > max_bytes) break;
    for (int threads : {1, 2}) {
      BenchMemcpy(bytes, threads);
      for (Store store : {Store::kCached, Store::kStreaming}) {
        BenchReduce(DType::kF32, 1, 1, bytes, threads, store);
        BenchReduce(DType::kF32, 1, 8, bytes, threads, store);
        BenchReduce(DType::kF32, 2, 1, bytes, threads, store);
        BenchReduce(DType::kF32, 2, 2, bytes, threads, store);
        BenchReduce(DType::kF32, 4, 1, bytes, threads, store);
        BenchReduce(DType::kF32, 8, 8, bytes, threads, store);
        BenchReduce(DType::kBF16, 8, 8, bytes, threads, store);
        BenchReduce(DType::kF16, 8, 8, bytes, threads, store);
      }
    }
  }
}
