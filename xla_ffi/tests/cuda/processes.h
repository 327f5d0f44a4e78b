// SPDX-License-Identifier: Apache-2.0
// The processes of a check: this program again, once for each rank, and what they share.
//
// CUDA must not be touched by a process that forks, nor by one that is watched by
// compute-sanitizer and forks without exec; so ranks are started anew, with a file of
// memory that is open in all of them. Whatever fails ends the process with a message.
#pragma once

#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "device/gpu.h"

namespace smddp::device::testing {

inline void Check(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "gpu_check: %s\n", status.message().c_str());
  std::exit(2);
}

template <class T>
T Check(Result<T> result) {
  Check(result.status());
  return *result;
}

// What the processes of a group share.
struct Shared {
  pthread_barrier_t barrier;
  MemoryHandle handles[kMaxRanks];

  // In the file `fd`, which others map too.
  static Shared* Map(int fd) {
    void* const memory =
        mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) Check(SystemError("mmap"));
    return static_cast<Shared*>(memory);
  }
  void Meet() { pthread_barrier_wait(&barrier); }
};

// How a process ended: its exit code, or 128 and the signal that ended it.
inline int CodeOf(int status) {
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// Starts `gpu_check arguments...`.
inline pid_t Start(std::vector<std::string> arguments) {
  const pid_t child = fork();
  if (child != 0) return child;
  arguments.insert(arguments.begin(), "gpu_check");
  std::vector<char*> words;
  for (std::string& argument : arguments) words.push_back(argument.data());
  words.push_back(nullptr);
  execv("/proc/self/exe", words.data());
  std::_Exit(127);
}

// The same, to its end; returns its exit code.
inline int Run(std::vector<std::string> arguments) {
  int status = 0;
  waitpid(Start(std::move(arguments)), &status, 0);
  return CodeOf(status);
}

// Waits for the processes of a group. One that ends otherwise than expected ends all,
// since they would wait for it.
inline bool EndAs(std::vector<pid_t> children, const std::vector<int>& expected) {
  bool right = true;
  for (size_t left = children.size(); left > 0; --left) {
    int status = 0;
    const pid_t ended = wait(&status);
    for (size_t r = 0; r < children.size(); ++r) {
      if (children[r] != ended) continue;
      children[r] = 0;
      right = right && CodeOf(status) == expected[r];
    }
    for (pid_t child : children) {
      if (!right && child != 0) kill(child, SIGKILL);
    }
  }
  return right;
}

// Runs `gpu_check what rank ranks fd` for each rank. Whether they end with these codes.
inline bool RunRanks(const std::string& what, const std::vector<int>& expected) {
  const int fd = memfd_create("gpu_check", 0);
  if (fd < 0 || ftruncate(fd, sizeof(Shared)) != 0) Check(SystemError("memfd_create"));
  const std::string ranks = std::to_string(expected.size());
  Shared* const shared = Shared::Map(fd);
  pthread_barrierattr_t attributes;
  pthread_barrierattr_init(&attributes);
  pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_barrier_init(&shared->barrier, &attributes,
                       static_cast<unsigned>(expected.size()));
  std::vector<pid_t> children;
  for (size_t r = 0; r < expected.size(); ++r) {
    children.push_back(Start({what, std::to_string(r), ranks, std::to_string(fd)}));
  }
  const bool right = EndAs(std::move(children), expected);
  munmap(shared, sizeof(Shared));
  close(fd);
  return right;
}

}  // namespace smddp::device::testing
