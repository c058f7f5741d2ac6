/* Events and graphs. */
#include "core.hpp"

using namespace fake;

namespace {

constexpr unsigned kDisableTiming = 2; // CU_EVENT_DISABLE_TIMING

Event *event_of(void *handle) {
    auto *event = static_cast<Event *>(handle);
    return event && event->magic == Event::kMagic ? event : nullptr;
}

void pass(Event *event, uint64_t turn) {
    std::lock_guard lock(event->mutex);
    event->at_ns = now_ns();
    event->reached = turn;
    event->changed.notify_all();
}

} // namespace

EXPORTED int cuEventCreate(void **handle, unsigned flags) {
    if (current_device() < 0) return kInvalidContext;
    auto *event = new Event;
    event->timed = !(flags & kDisableTiming);
    *handle = event;
    return kSuccess;
}

EXPORTED int cuEventDestroy_v2(void *handle) {
    auto *event = event_of(handle);
    if (!event) return kInvalidHandle;
    event->magic = 0;
    return kSuccess;
}

EXPORTED int cuEventRecord(void *handle, void *stream_handle) {
    auto *event = event_of(handle);
    auto *stream = stream_of(stream_handle);
    if (!event || !stream) return kInvalidHandle;
    bool captured = stream->capturing();
    std::unique_lock lock(event->mutex);
    event->captured = captured;
    uint64_t turn = captured ? event->recorded : ++event->recorded;
    lock.unlock();
    stream->enqueue(task([event, turn] { pass(event, turn); }));
    return kSuccess;
}

EXPORTED int cuEventQuery(void *handle) {
    auto *event = event_of(handle);
    if (!event) return kInvalidHandle;
    std::lock_guard lock(event->mutex);
    if (event->captured) return kCapturedEvent;
    return event->reached == event->recorded ? kSuccess : kNotReady;
}

EXPORTED int cuEventSynchronize(void *handle) {
    auto *event = event_of(handle);
    if (!event) return kInvalidHandle;
    std::unique_lock lock(event->mutex);
    if (event->captured) return kCapturedEvent;
    event->changed.wait(lock, [&] { return event->reached == event->recorded; });
    return kSuccess;
}

EXPORTED int cuEventElapsedTime(float *ms, void *start_handle, void *end_handle) {
    auto *start = event_of(start_handle);
    auto *end = event_of(end_handle);
    if (!start || !end || !start->timed || !end->timed || !start->recorded || !end->recorded) return kInvalidHandle;
    int64_t at[2], i = 0;
    for (auto *event : {start, end}) {
        std::lock_guard lock(event->mutex);
        if (event->captured) return kCapturedEvent;
        if (event->reached != event->recorded) return kNotReady;
        at[i++] = event->at_ns;
    }
    *ms = float((at[1] - at[0]) * 1e-6);
    return kSuccess;
}

EXPORTED int cuStreamWaitEvent(void *stream_handle, void *handle, unsigned) {
    auto *event = event_of(handle);
    auto *stream = stream_of(stream_handle);
    if (!event || !stream) return kInvalidHandle;
    if (event->captured || stream->capturing()) return kCaptureUnsupported; // forks inside a capture: the double has none
    uint64_t turn = event->recorded;
    stream->enqueue(task([event, turn] {
        std::unique_lock lock(event->mutex);
        event->changed.wait(lock, [&] { return event->reached >= turn; });
    }));
    return kSuccess;
}

EXPORTED int cuStreamBeginCapture_v2(void *handle, int mode) {
    auto *stream = stream_of(handle);
    if (!stream) return kInvalidHandle;
    return reinterpret_cast<uintptr_t>(handle) > 2 ? stream->begin_capture(mode) : int(kCaptureUnsupported);
}

EXPORTED int cuStreamEndCapture(void *handle, void **graph) {
    auto *stream = stream_of(handle);
    return stream ? stream->end_capture(reinterpret_cast<Graph **>(graph)) : kInvalidHandle;
}

EXPORTED int cuStreamIsCapturing(void *handle, int *status) {
    auto *stream = stream_of(handle);
    if (!stream) return kInvalidHandle;
    *status = stream->capturing();
    return kSuccess;
}

EXPORTED int cuGraphInstantiateWithFlags(void **executable, void *graph, unsigned long long) {
    if (!graph) return kInvalidValue;
    *executable = new Graph(*static_cast<Graph *>(graph));
    return kSuccess;
}

EXPORTED int cuGraphUpload(void *executable, void *stream) { return executable && stream_of(stream) ? kSuccess : kInvalidHandle; }

EXPORTED int cuGraphLaunch(void *executable, void *handle) {
    auto *stream = stream_of(handle);
    if (!executable || !stream) return kInvalidHandle;
    for (auto &task : static_cast<Graph *>(executable)->tasks) stream->enqueue(task);
    return kSuccess;
}

EXPORTED int cuGraphExecDestroy(void *executable) {
    delete static_cast<Graph *>(executable);
    return kSuccess;
}

EXPORTED int cuGraphDestroy(void *graph) {
    delete static_cast<Graph *>(graph);
    return kSuccess;
}
