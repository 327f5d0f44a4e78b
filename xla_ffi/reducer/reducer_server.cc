// SPDX-License-Identifier: Apache-2.0
#include "reducer/reducer_server.h"

#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <set>
#include <thread>
#include <utility>

#include "base/deadline.h"
#include "base/log.h"

namespace smddp {
namespace {

// For a last word to workers that have stopped reading.
constexpr double kFarewellSeconds = 1.0;
// More would be a mistake, or mischief.
constexpr uint32_t kMostLanes = 256;
constexpr uint32_t kMostProcesses = 1 << 20;

std::string JobName(uint64_t job) {
  char name[32];
  std::snprintf(name, sizeof(name), "job %016llx", static_cast<unsigned long long>(job));
  return name;
}

Status RefuseForGood(const std::string& why) {
  return Status(StatusCode::kInvalidArgument, why);
}

Status RefuseForNow(const std::string& why) { return Status(StatusCode::kAborted, why); }

void Add(const Reducer::Counters& more, Reducer::Counters& sum) {
  sum.segments += more.segments;
  sum.bytes_summed += more.bytes_summed;
  sum.seconds += more.seconds;
  sum.stale += more.stale;
}

uint64_t ResidentBytes() {
  unsigned long long pages = 0;
  if (std::FILE* file = std::fopen("/proc/self/statm", "re")) {
    if (std::fscanf(file, "%*u %llu", &pages) != 1) pages = 0;
    std::fclose(file);
  }
  return pages * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
}

double CpuSeconds() {
  rusage usage = {};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

}  // namespace

struct ReducerServer::Job {
  // A worker has one connection per lane, and each is a peer of its own.
  int PeerOf(const Identity& peer) const {
    return static_cast<int>(peer.lane * worker.processes + peer.process);
  }
  uint32_t ProcessOf(int peer) const {
    return static_cast<uint32_t>(peer) % worker.processes;
  }

  Identity worker;  // The first that came.
  uint64_t connections = 0;
  std::optional<Status> failure;
  std::set<uint32_t> missed;  // Processes that were lost and have not come back.
  std::vector<std::unique_ptr<ServedLane>> lanes;
};

ReducerServer::ReducerServer(const Options& options) : options_(options) {}

Result<std::unique_ptr<ReducerServer>> ReducerServer::Start(const Options& options) {
  if (options.secret.empty()) {
    return RefuseForGood("a reducer needs the secret of its jobs, and got an empty one");
  }
  const Result<Address> address = ResolveAddress(options.listen);
  SMDDP_RETURN_IF_ERROR(address.status());
  std::unique_ptr<ReducerServer> made(new ReducerServer(options));
  ReducerServer* const server = made.get();
  server->keeper_ = Thread(
      "smddp-keeper", [server] { server->Keep(); }, [server](Status) { server->Stop(); });
  Greeter::Options of_greeter;
  of_greeter.me.role = Identity::Role::kReducer;
  of_greeter.secret = options.secret;
  Greeter::Events events;
  events.admit = [server](const Identity& peer) {
    const std::lock_guard lock(server->mutex_);
    return server->Admit(peer);
  };
  events.on_peer = [server](const Identity& peer, uint64_t, UniqueFd socket) {
    server->OnPeer(peer, std::move(socket));
  };
  events.on_failed = [](uint64_t, const Status&) {};  // We connect to nobody.
  auto greeter = Greeter::Start(*address, std::move(of_greeter), std::move(events));
  SMDDP_RETURN_IF_ERROR(greeter.status());
  server->greeter_ = std::move(*greeter);
  return made;
}

ReducerServer::~ReducerServer() {
  greeter_.reset();  // No worker comes in any more.
  Stop();
  keeper_.Join();
}

bool ReducerServer::Wait(double seconds) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, std::chrono::duration<double>(seconds),
                           [this] { return ended_; });
}

void ReducerServer::Stop() {
  const std::lock_guard lock(mutex_);
  stopping_ = true;
  changed_.notify_all();
}

// With the mutex.
Status ReducerServer::Admit(const Identity& peer) {
  if (peer.role != Identity::Role::kWorker || peer.processes > kMostProcesses ||
      peer.process >= peer.processes || peer.lanes > kMostLanes ||
      peer.lane >= peer.lanes) {
    return RefuseForGood("a reducer serves workers only");
  }
  if (stopping_ || ended_) return RefuseForNow("the reducer is being stopped");
  if (peer.job == failed_job_ && !failure_.ok()) return failure_;
  if (ending_) return RefuseForNow("the reducer is busy with the end of another job");
  if (job_ == nullptr) return Status();
  const Identity& first = job_->worker;
  if (first.job != peer.job) {
    return RefuseForNow("the reducer is busy with " + JobName(first.job) + " of " +
                        std::to_string(first.processes) + " processes until it ends");
  }
  if (first.processes != peer.processes || first.lanes != peer.lanes) {
    return RefuseForGood(
        "rank " + std::to_string(peer.process) + " says that its job has " +
        std::to_string(peer.processes) + " processes and " + std::to_string(peer.lanes) +
        " connections, rank " + std::to_string(first.process) + " says " +
        std::to_string(first.processes) + " and " + std::to_string(first.lanes) +
        "; SMDDP_CONNECTIONS must be the same on all");
  }
  return Status();
}

// The job that a peer belongs to, with the peer's connection counted.
Result<std::shared_ptr<ReducerServer::Job>> ReducerServer::JobOf(const Identity& peer) {
  const std::lock_guard lock(mutex_);
  // Things may have changed since the peer was admitted.
  SMDDP_RETURN_IF_ERROR(Admit(peer));
  if (job_ == nullptr) {
    auto made = MakeJob(peer);
    SMDDP_RETURN_IF_ERROR(made.status());
    job_ = std::move(*made);
  }
  ++job_->connections;
  job_->missed.erase(peer.process);
  return job_;
}

Result<std::shared_ptr<ReducerServer::Job>> ReducerServer::MakeJob(const Identity& peer) {
  auto job = std::make_shared<Job>();
  job->worker = peer;
  Job* const raw = job.get();
  const auto cores = static_cast<int>(std::thread::hardware_concurrency());
  const int threads = options_.threads > 0 ? options_.threads : std::max(1, cores);
  const size_t lanes = std::min(static_cast<size_t>(threads), size_t{peer.lanes});
  for (size_t index = 0; index < lanes; ++index) {
    ServedLane::Events events;
    events.on_lost = [this, raw](int number, const std::string& why) {
      Gone(*raw, raw->ProcessOf(number), why);
    };
    events.on_failed = [this, raw](const Status& why) { Fail(*raw, why); };
    auto lane = ServedLane::Start(index, options_.staging_bytes / lanes,
                                  options_.silence_seconds, std::move(events));
    SMDDP_RETURN_IF_ERROR(lane.status());
    job->lanes.push_back(std::move(*lane));
  }
  return job;
}

void ReducerServer::OnPeer(const Identity& peer, UniqueFd socket) {
  const auto job = JobOf(peer);
  if (!job.ok()) {
    // Closing the socket makes the worker try again.
    return LogWarning("reducer: rank " + std::to_string(peer.process) +
                      " has to try again: " + job.status().message());
  }
  auto& lanes = (*job)->lanes;
  ServedLane& lane = *lanes[peer.lane % lanes.size()];
  if (lane.AddPeer((*job)->PeerOf(peer), std::move(socket))) {
    const std::lock_guard lock(mutex_);
    --(*job)->connections;
  }
}

void ReducerServer::Gone(Job& job, uint32_t process, const std::string& why) {
  const std::lock_guard lock(mutex_);
  --job.connections;
  changed_.notify_all();
  if (job_.get() != &job || why.starts_with("left the job")) return;
  // Once for all its connections.
  if (job.missed.insert(process).second) {
    LogWarning("reducer: rank " + std::to_string(process) + " " + why);
  }
}

void ReducerServer::Fail(Job& job, const Status& why) {
  const std::lock_guard lock(mutex_);
  if (!job.failure) job.failure = why;
  changed_.notify_all();
}

void ReducerServer::Keep() {
  std::unique_lock lock(mutex_);
  while (!stopping_ && !(options_.once && jobs_ > 0)) {
    changed_.wait(lock, [this] {
      return stopping_ || (job_ && (job_->connections == 0 || job_->failure));
    });
    if (job_) End(lock);
  }
  ended_ = true;
  changed_.notify_all();
}

// Clears the job away, without the lock, which its lanes' threads may need.
void ReducerServer::End(std::unique_lock<std::mutex>& lock) {
  std::shared_ptr<Job> job = std::exchange(job_, nullptr);
  const uint64_t id = job->worker.job;
  const std::optional<Status> failure = job->failure;
  ending_ = true;
  lock.unlock();
  const std::string why =
      failure ? "it can't serve this job: " + failure->message() : "it was stopped";
  Reducer::Counters summed;
  const Deadline deadline = Deadline::After(kFarewellSeconds);
  for (auto& lane : job->lanes) {
    lane->Stop(why, deadline.SecondsLeft());
    Add(lane->counters(), summed);
  }
  job.reset();
  ::malloc_trim(0);
  lock.lock();
  Add(summed, past_);
  ++jobs_;
  ending_ = false;
  if (failure) {
    failed_job_ = id;
    failure_ = RefuseForGood("the reducer can't serve this job: " + failure->message());
  }
}

ReducerServer::Stats ReducerServer::stats() {
  Stats stats;
  std::shared_ptr<Job> job;
  {
    const std::lock_guard lock(mutex_);
    stats.summed = past_;
    stats.jobs = jobs_;
    job = job_;
    if (job) stats.connections = job->connections;
  }
  if (job) {
    for (auto& lane : job->lanes) {
      const Reducer::Counters counters = lane->counters();
      Add(counters, stats.summed);
      stats.summed.staging_bytes += counters.staging_bytes;
    }
  }
  stats.refused = greeter_->refused();
  stats.memory_bytes = ResidentBytes();
  stats.cpu_seconds = CpuSeconds();
  return stats;
}

}  // namespace smddp
