// SPDX-License-Identifier: Apache-2.0
// Bytes that mean nothing, to find out how fast a link is: a burst of kProbe frames, of
// which the peer answers the last one.
//
// Functions over a transport, with its lane's lock. Who sends measures the time until
// the answer, so that the peer keeps nothing.
#pragma once

#include <cstddef>
#include <cstdint>

#include "transport/transport.h"

namespace smddp {

// Gives the peer about `bytes` at once. `burst`, not 0, comes back in the answer.
void SendProbe(Transport& transport, int peer, size_t bytes, uint64_t burst);

// What to do with a kProbe frame.
void AnswerProbe(Transport& transport, int peer, const FrameHeader& probe);

}  // namespace smddp
