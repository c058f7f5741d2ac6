/* ncclGroupStart … ncclGroupEnd: calls wait in the thread that made them, then go to their streams. */
#pragma once
#include "work.hpp"

#include <functional>

namespace fake {

/* One call of a rank: now, or at the end of the group that this thread is in. */
ncclResult_t call(const CommPtr &comm, void *stream, const Call &call);

/* Something that must run beside others of a group (making a communicator). */
ncclResult_t together(bool blocking, std::function<ncclResult_t()> work);

ncclResult_t group_start();
ncclResult_t group_end();
bool in_group();

/* Whether a call runs on the GPU now, of whichever communicator. */
bool busy(int device);

} // namespace fake
