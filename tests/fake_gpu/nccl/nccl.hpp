/* The enumerations of NCCL's header, as far as the double knows them (tests/fake_gpu/test_conformity.py holds them against the real one),
 * and what its files share. */
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#define EXPORTED extern "C" __attribute__((visibility("default")))

typedef enum {
    ncclSuccess = 0, ncclUnhandledCudaError = 1, ncclSystemError = 2, ncclInternalError = 3, ncclInvalidArgument = 4,
    ncclInvalidUsage = 5, ncclRemoteError = 6, ncclInProgress = 7, ncclTimeout = 8, ncclNumResults = 9
} ncclResult_t;

typedef enum { ncclSum = 0, ncclProd = 1, ncclMax = 2, ncclMin = 3, ncclAvg = 4, ncclNumOps = 5 } ncclRedOp_t;

typedef enum {
    ncclInt8 = 0, ncclUint8 = 1, ncclInt32 = 2, ncclUint32 = 3, ncclInt64 = 4, ncclUint64 = 5, ncclFloat16 = 6, ncclFloat32 = 7,
    ncclFloat64 = 8, ncclBfloat16 = 9, ncclFloat8e4m3 = 10, ncclFloat8e5m2 = 11, ncclNumTypes = 12
} ncclDataType_t;

#define NCCL_WIN_REQUIRED_ALIGNMENT 4096
#define NCCL_UNIQUE_ID_BYTES 128
#define NCCL_API_MAGIC 0xcafebeef
typedef struct { char internal[NCCL_UNIQUE_ID_BYTES]; } ncclUniqueId;

namespace fake {

constexpr int kMaxRanks = 16, kMaxGpus = 64;
constexpr const char *kCollectives[] = {"AllReduce", "Broadcast", "Reduce", "AllGather", "ReduceScatter", "AlltoAll", "Gather", "Scatter"};
constexpr size_t kBoxBytes = 128 << 10;

/* Bytes on their way from one rank to another: written by one thread, read by one. */
struct Box {
    std::atomic<uint64_t> written, read;
    char data[kBoxBytes];
};

/* A rank as the others see it. */
struct Place {
    std::atomic<uint32_t> bell;     // futex: rings when something came or became free
    std::atomic<uint32_t> sleeping; // somebody waits for it
    std::atomic<uint64_t> launched, finished; // calls
    std::atomic<uint64_t> launched_of[8];     // by kCollectives
    std::atomic<int32_t> async_error;
    std::atomic<int32_t> brought, taken; // splits whose color and key this rank brought, and took from the others
    int32_t color, key;
    int32_t pid, device;
    uint64_t host;
    char host_name[64], bus[16];
};

/* One communicator's shared memory; all zero when it is made. */
struct Shared {
    std::atomic<int32_t> came, joined, failed, met;
    Place places[kMaxRanks];
    Box boxes[1]; // from × ranks + to
};

struct Comm {
    Shared *shared = nullptr;
    size_t mapped = 0;
    std::string name; // of the shared memory
    uint64_t hash = 0;
    int rank = 0, ranks = 0, device = -1;
    bool blocking = true;
    std::string algorithm = "RING", protocol = "SIMPLE"; // the only or first choice left; "" none
    bool asked = false;                                  // NCCL_ALGO or NCCL_PROTO
    uint64_t calls = 0;
    int children = 0, shrunk = 0; // made from it by a split, and by leaving ranks out
    std::atomic<int> async_error{ncclSuccess}, held{0}; // held: by calls on streams and in graphs
    std::atomic<bool> aborted{false}, connected{false}, met{false};
    ~Comm();

    Place &mine() const { return shared->places[rank]; }
    Box &box(int from, int to) const { return shared->boxes[from * ranks + to]; }
};
using CommPtr = std::shared_ptr<Comm>;

/* --- shared memory and waiting (shared.cpp) --- */
std::string new_name(); // and removes what dead processes left
/* Meets the other ranks; `why` says why not. */
ncclResult_t attach(Comm &comm, const std::string &bus, std::string *why);
/* Waits until every rank has come here. */
ncclResult_t meet(Comm &comm);
void ring(Place &place);
void wait(Place &place, uint32_t seen, int milliseconds);

/* --- numbers (numbers.cpp) --- */
size_t width(int type);
/* out[i] = parts[0][i] op parts[1][i] …; `ranks` divides an average. */
void reduce(char *out, const char *const *parts, int n_parts, size_t count, int type, int op, int ranks);

/* --- the log (log.cpp) --- */
enum Subsystem { kInit = 1, kColl = 2, kP2p = 4, kTuning = 64, kEnv = 128 };
void info(int device, int subsystem, const char *format, ...) __attribute__((format(printf, 3, 4)));
void warn(int device, const char *format, ...) __attribute__((format(printf, 2, 3)));
const char *last_warning();

/* --- variables of the double (faults.cpp) --- */
int64_t variable(const char *name, int64_t otherwise);
int version();
bool dropped(int rank);
/* Whether this call of this rank is told never to end; `error` gets the asynchronous error that it reports. */
bool hangs(int rank, uint64_t call, int *error);
int init_error(int rank);

/* --- NCCL_ALGO, NCCL_PROTO (choice.cpp) --- */
bool choose(Comm &comm);
/* The algorithm and protocol of a call; false: nothing is left for it. */
bool chosen(const Comm &comm, const char *call, size_t bytes, std::string *algorithm, std::string *protocol);

/* --- RAS (ras.cpp) --- */
void start_ras(const CommPtr &comm);

} // namespace fake
