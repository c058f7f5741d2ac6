/* A stream: a queue and the thread that works it off. */
#include "core.hpp"

#include <chrono>
#include <ctime>
#include <set>
#include <thread>

namespace fake {
namespace {

constexpr auto kMoment = std::chrono::microseconds(100);
constexpr int kModeGlobal = 0; // CU_STREAM_CAPTURE_MODE_GLOBAL
constexpr int kNonBlocking = 1; // CU_STREAM_NON_BLOCKING
thread_local int strict_captures = 0;

struct Streams { // never destroyed: workers outlive the program's last line
    std::mutex mutex;
    std::set<Stream *> all;
    std::vector<Stream *> of_null;
};

Streams &streams() {
    static auto &streams = *new Streams;
    return streams;
}

} // namespace

int64_t now_ns() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return int64_t(t.tv_sec) * 1000000000 + t.tv_nsec;
}

bool forbidden_in_capture() { return strict_captures > 0; }

Stream::Stream(int device, bool blocking) : device(device), blocking(blocking) {
    std::thread([this] { work(); }).detach();
    std::lock_guard lock(streams().mutex);
    streams().all.insert(this);
}

void Stream::work() {
    std::unique_lock lock(mutex_);
    for (;;) {
        changed_.wait(lock, [&] { return ending_ || !tasks_.empty(); });
        if (tasks_.empty()) return;
        Task next = std::move(tasks_.front());
        tasks_.pop_front();
        running_ = true;
        lock.unlock();
        (*next)();
        next.reset();
        lock.lock();
        running_ = false;
        if (tasks_.empty()) changed_.notify_all();
    }
}

void Stream::enqueue(Task task) {
    std::lock_guard lock(mutex_);
    if (graph_) {
        graph_->tasks.push_back(std::move(task));
        return;
    }
    tasks_.push_back(std::move(task));
    changed_.notify_all();
}

int Stream::query() {
    std::unique_lock lock(mutex_);
    if (graph_) {
        invalid_ = true;
        return kCaptureUnsupported;
    }
    bool done = changed_.wait_for(lock, kMoment, [&] { return tasks_.empty() && !running_; });
    return done ? kSuccess : kNotReady;
}

int Stream::synchronize() {
    std::unique_lock lock(mutex_);
    if (graph_) {
        invalid_ = true;
        return kCaptureUnsupported;
    }
    changed_.wait(lock, [&] { return tasks_.empty() && !running_; });
    return kSuccess;
}

int Stream::begin_capture(int mode) {
    std::lock_guard lock(mutex_);
    if (graph_) return kIllegalState;
    graph_ = new Graph;
    invalid_ = false;
    if (mode == kModeGlobal) strict_captures++;
    return kSuccess;
}

int Stream::end_capture(Graph **graph) {
    std::lock_guard lock(mutex_);
    if (!graph_) return kCaptureUnmatched;
    if (strict_captures) strict_captures--;
    *graph = invalid_ ? nullptr : graph_;
    graph_ = nullptr;
    return invalid_ ? kCaptureInvalidated : kSuccess;
}

bool Stream::capturing() {
    std::lock_guard lock(mutex_);
    return graph_ != nullptr;
}

void Stream::end() {
    magic_ = 0;
    {
        std::lock_guard lock(streams().mutex);
        streams().all.erase(this);
    }
    std::lock_guard lock(mutex_);
    ending_ = true;
    changed_.notify_all();
}

Stream *stream_of(void *handle) {
    if (reinterpret_cast<uintptr_t>(handle) > 2) { // 1 and 2 name the null stream, too
        auto *stream = static_cast<Stream *>(handle);
        return stream->alive() ? stream : nullptr;
    }
    int device = current_device();
    if (device < 0) return nullptr;
    std::unique_lock lock(streams().mutex);
    auto &of_null = streams().of_null;
    of_null.resize(count());
    if (!of_null[device]) {
        lock.unlock();
        auto *made = new Stream(device, true);
        lock.lock();
        if (!of_null[device]) of_null[device] = made;
    }
    return of_null[device];
}

void synchronize_blocking(int device) {
    std::vector<Stream *> waited;
    {
        std::lock_guard lock(streams().mutex);
        for (auto *stream : streams().all)
            if (stream->device == device && stream->blocking && !stream->capturing()) waited.push_back(stream);
    }
    for (auto *stream : waited) stream->synchronize();
}

} // namespace fake

using namespace fake;

EXPORTED int cuStreamCreate(void **stream, unsigned flags) {
    if (current_device() < 0) return kInvalidContext;
    *stream = new Stream(current_device(), !(flags & kNonBlocking));
    return kSuccess;
}

EXPORTED int cuStreamDestroy_v2(void *handle) {
    auto *stream = stream_of(handle);
    if (!stream) return kInvalidHandle;
    stream->end();
    return kSuccess;
}

EXPORTED int cuStreamQuery(void *handle) {
    auto *stream = stream_of(handle);
    return stream ? stream->query() : kInvalidHandle;
}

EXPORTED int cuStreamSynchronize(void *handle) {
    auto *stream = stream_of(handle);
    return stream ? stream->synchronize() : kInvalidHandle;
}

EXPORTED int cuCtxSynchronize() {
    std::vector<Stream *> waited;
    {
        std::lock_guard lock(streams().mutex);
        for (auto *stream : streams().all)
            if (stream->device == current_device()) waited.push_back(stream);
    }
    for (auto *stream : waited)
        if (int error = stream->synchronize()) return error;
    return kSuccess;
}

/* For libnccl.so.2 beside it: `run(argument)` on the stream, `drop(argument)` when nothing can run it again. */
EXPORTED int fakeGpuEnqueue(void *handle, void (*run)(void *), void (*drop)(void *), void *argument) {
    std::shared_ptr<void> held(argument, drop);
    auto *stream = stream_of(handle);
    if (!stream) return kInvalidHandle;
    stream->enqueue(task([run, held] { run(held.get()); }));
    return kSuccess;
}
