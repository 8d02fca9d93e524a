// Leave to use the tile registers (Intel AMX).
#pragma once

namespace kvasir {

// Whether CPU and operating system let this process use tiles with int8 dots. On Linux it asks for that: a
// process has no tile registers until it does, because they make every frame of a signal 8 KB larger.
bool has_tiles();

}  // namespace kvasir
