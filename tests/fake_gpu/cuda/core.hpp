/* The parts of the fake GPU: tasks, streams whose worker is a thread, events, graphs, and the GPUs that a process sees.
 *
 * A test double of libcuda.so.1: memory is the host's, kernels are functions that g++ compiled, times say nothing. Written against the
 * behaviour that CUDA's documentation describes, for the calls that collbench makes. Objects are marked dead and never freed, so that a
 * handle used after its end is an error and not a crash. */
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#define EXPORTED extern "C" __attribute__((visibility("default")))

namespace fake {

// cuda.h, enum cudaError_enum
enum Error : int {
    kSuccess = 0,
    kInvalidValue = 1,
    kOutOfMemory = 2,
    kDeviceUnavailable = 46,
    kNoDevice = 100,
    kInvalidDevice = 101,
    kInvalidContext = 201,
    kPeerAlreadyEnabled = 704,
    kFileNotFound = 301,
    kInvalidHandle = 400,
    kNotFound = 500,
    kNotReady = 600,
    kCaptureUnsupported = 900,
    kCaptureInvalidated = 901,
    kCaptureUnmatched = 903,
    kIllegalState = 401,
    kCapturedEvent = 907,
};

using Task = std::shared_ptr<std::function<void()>>;

inline Task task(std::function<void()> work) { return std::make_shared<std::function<void()>>(std::move(work)); }

struct Graph {
    std::vector<Task> tasks;
};

class Stream {
  public:
    Stream(int device, bool blocking);

    const int device;
    const bool blocking; // waits for the null stream, and that one for it
    bool alive() const { return magic_ == kMagic; }
    void enqueue(Task task); // a captured task is kept for the graph instead
    int query();             // gives the worker a moment first: pollers must not starve it where cores are few
    int synchronize();
    int begin_capture(int mode);
    int end_capture(Graph **graph);
    bool capturing();
    void end(); // finishes what is enqueued, then the thread ends

  private:
    static constexpr uint64_t kMagic = 0x66616b6573747265;
    void work();

    std::atomic<uint64_t> magic_{kMagic};
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<Task> tasks_;
    bool running_ = false, ending_ = false, invalid_ = false;
    Graph *graph_ = nullptr; // while capturing
};

struct Event {
    static constexpr uint64_t kMagic = 0x66616b656576656e;
    uint64_t magic = kMagic;
    bool timed = true;
    std::mutex mutex;
    std::condition_variable changed;
    uint64_t recorded = 0, reached = 0; // how often enqueued, how often passed
    int64_t at_ns = 0;
    bool captured = false;
};

/* A stream or null for the default stream of the current GPU; null if the handle is dead. */
Stream *stream_of(void *handle);

/* Waits for the streams of a GPU that are in step with the null stream. */
void synchronize_blocking(int device);

/* Whether this thread captures in the mode that forbids calls which would wait. */
bool forbidden_in_capture();

int64_t now_ns();

/* --- GPUs --- */
int count();                  // visible ones
int physical(int device);     // the host's number of a visible one
std::string bus_id(int device);
uint64_t memory_limit();
int current_device();         // of this thread; -1: none
int use_device(int device);   // an Error: the mode or another process may forbid
int64_t variable(const char *name, int64_t otherwise);
std::string text_variable(const char *name, const char *otherwise);

} // namespace fake
