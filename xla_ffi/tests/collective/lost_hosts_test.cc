// SPDX-License-Identifier: Apache-2.0
// Workers on other hosts that are gone before a group has anything to do with them.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "tests/collective/job.h"

namespace smddp {
namespace {

TEST(LostHostsTest, AWorkerThatDiesBeforeTheFirstCallIsNamed) {
  for (const int dies : {0, 1}) {
    Job job({2, 1, 2});
    job.Kill(dies);
    OpInstance op = MakeOp(1);
    Buffers<float> buffers(1, {10'000});
    Submit(job, 1 - dies, op, 1, MakeSignature(ReduceOp::kSum, DType::kF32, {10'000}),
           buffers);
    ExpectError(buffers, StatusCode::kPeerLost, Words{"rank " + std::to_string(dies)});
  }
}

TEST(LostHostsTest, AGroupThatIsMadeAfterTheLossIsTold) {
  Job job({4, 1, 2});
  job.Kill(3);
  const auto signature = MakeSignature(ReduceOp::kSum, DType::kF32, {10'000});
  OpInstance of_all = MakeOp(1);
  Buffers<float> buffers(1, {10'000});
  Submit(job, 1, of_all, 1, signature, buffers);
  ExpectError(buffers, StatusCode::kPeerLost, Words{"rank 3"});

  const std::vector<Member> members = {{Job::Device(1, 0), 1}, {Job::Device(3, 0), 3}};
  const auto pair = std::make_shared<const Group>(members, 1);
  OpInstance of_pair = MakeOp(2);
  Buffers<float> more(1, {10'000});
  Participant participant;
  participant.inputs.push_back(more.in[0][0].data());
  participant.outputs.push_back(more.out[0][0].data());
  participant.done = [&](const Status& status) {
    more.status[0] = status;
    more.left.count_down();
  };
  job.engine(1).Submit(of_pair, 2, Job::Device(1, 0), pair, signature,
                       std::move(participant));
  ExpectError(more, StatusCode::kPeerLost, Words{"rank 3"});
}

// Each waits for the other, in a group of its own.
TEST(LostHostsTest, UnlikeGroupsAreFoundBeforeTheDeadline) {
  Job job({2, 1, 2});
  const auto signature = MakeSignature(ReduceOp::kSum, DType::kF32, {100});
  const std::vector<Member> more = {
      {Job::Device(0, 0), 0}, {Job::Device(1, 0), 1}, {Job::Device(1, 1), 1}};
  const auto other = std::make_shared<const Group>(more, 1);
  OpInstance ours = MakeOp(1), theirs = MakeOp(1);
  Buffers<float> mine(1, {100}), elsewhere(2, {100});
  Submit(job, 0, ours, 1, signature, mine);
  for (int d = 0; d < 2; ++d) {
    Participant participant;
    participant.inputs.push_back(elsewhere.in[d][0].data());
    participant.outputs.push_back(elsewhere.out[d][0].data());
    participant.done = [&elsewhere, d](const Status& status) {
      elsewhere.status[d] = status;
      elsewhere.left.count_down();
    };
    job.engine(1).Submit(theirs, 1, Job::Device(1, d), other, signature,
                         std::move(participant));
  }
  ExpectError(mine, StatusCode::kMismatch, Words{"group", "2 devices", "3 devices"});
  ExpectError(elsewhere, StatusCode::kMismatch, Words{"group"});
}

}  // namespace
}  // namespace smddp
