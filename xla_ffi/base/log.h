// SPDX-License-Identifier: Apache-2.0
// One line to stderr, whole, for what the user must see or asked to see, and no caller
// can be told.
//
// Any thread may call it. Errors that reach a caller are returned, not logged.
#pragma once

#include <string_view>

namespace smddp {

void LogInfo(std::string_view message);
void LogWarning(std::string_view message);

}  // namespace smddp
