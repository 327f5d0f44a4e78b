// SPDX-License-Identifier: Apache-2.0
// A process that does nothing but sum: `smddp-jax reducer`.
//
// Listens, and serves one job at a time: as many lanes as its workers have connections,
// made when the first worker comes and given up, with all memory, when the last is gone.
// Whatever one job does wrong ends that job's use of this reducer, which its workers
// survive, and not the process. Needs neither Python nor JAX. Any thread may call.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/thread.h"
#include "reducer/served_lane.h"
#include "transport/greeter.h"

namespace smddp {

class ReducerServer {
 public:
  struct Options {
    std::string listen;                      // "host:port"; port 0: any free one.
    std::string secret;                      // Of the jobs that may come.
    int threads = 0;                         // At most; 0: one per core.
    size_t staging_bytes = size_t{1} << 30;  // Of all lanes together.
    bool once = false;                       // Ends with its first job.
    double silence_seconds = 30;             // A mute worker is lost.
  };
  struct Stats {
    Reducer::Counters summed;   // `staging_bytes`: now; the rest: of all jobs.
    uint64_t jobs = 0;          // That came to their end.
    uint64_t connections = 0;   // Now.
    uint64_t refused = 0;       // Connections.
    uint64_t memory_bytes = 0;  // Of the process, resident.
    double cpu_seconds = 0;     // Of the process.
  };

  static Result<std::unique_ptr<ReducerServer>> Start(const Options& options);
  ~ReducerServer();

  // Where it listens, with the port.
  std::string address() const { return greeter_->address().Text(); }
  // Whether it has ended: stopped, or after its job. Waits for that at most `seconds`.
  bool Wait(double seconds);
  // Tells the workers, who go on without it, and ends. Returns at once.
  void Stop();
  Stats stats();

 private:
  struct Job;

  explicit ReducerServer(const Options& options);

  Status Admit(const Identity& peer);
  void OnPeer(const Identity& peer, UniqueFd socket);
  Result<std::shared_ptr<Job>> JobOf(const Identity& peer);
  Result<std::shared_ptr<Job>> MakeJob(const Identity& peer);
  void Gone(Job& job, uint32_t process, const std::string& why);
  void Fail(Job& job, const Status& why);
  void Keep();
  void End(std::unique_lock<std::mutex>& lock);

  const Options options_;
  std::mutex mutex_;  // Taken after a lane's lock, never before it.
  std::condition_variable changed_;
  std::shared_ptr<Job> job_;
  bool ending_ = false;  // The last job is being cleared away.
  bool stopping_ = false;
  bool ended_ = false;
  uint64_t jobs_ = 0;
  Reducer::Counters past_;  // Of jobs that are over.
  // The job that went wrong last, which is not let in again.
  uint64_t failed_job_ = 0;
  Status failure_;
  std::unique_ptr<Greeter> greeter_;
  Thread keeper_;  // Ends jobs, since no lane can end its own thread.
};

}  // namespace smddp
