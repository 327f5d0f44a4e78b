// SPDX-License-Identifier: Apache-2.0
// Fresh result buffers: asking the kernel for huge pages before the first touch.
//
// XLA allocates results anew for every execution, and large ones come straight from the
// kernel: with 4 KiB pages their first touch costs more than the reduction itself. A
// free function; any thread.
#pragma once

#include "collective/call.h"

namespace smddp {

// Advises huge pages for the large results of all local devices. A hint: where huge
// pages are off, nothing changes.
void AdviseHugePages(const Call& call);

}  // namespace smddp
