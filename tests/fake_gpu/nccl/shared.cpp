/* Shared memory between the ranks of a communicator, and sleeping until another rank rings. */
#include "nccl.hpp"

#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <dirent.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace fake {
namespace {

constexpr char kPrefix[] = "collbench-fake-nccl-"; // the tests' clean-up knows it, too

size_t bytes_for(int ranks) { return offsetof(Shared, boxes) + size_t(ranks) * ranks * sizeof(Box); }

void remove_stale() { // named after the process that made the id; ranks unlink it once all have joined
    DIR *folder = opendir("/dev/shm");
    if (!folder) return;
    while (dirent *entry = readdir(folder)) {
        if (strncmp(entry->d_name, kPrefix, sizeof kPrefix - 1)) continue;
        int pid = atoi(entry->d_name + sizeof kPrefix - 1);
        if (pid > 0 && kill(pid, 0) < 0 && errno == ESRCH) shm_unlink(entry->d_name);
    }
    closedir(folder);
}

uint64_t host_hash() { // as NCCL: NCCL_HOSTID stands for the host where it is set
    char text[256] = "";
    const char *asked = getenv("NCCL_HOSTID");
    if (asked) snprintf(text, sizeof text, "%s", asked);
    else gethostname(text, sizeof text - 1);
    uint64_t hash = 5381;
    for (const char *c = text; *c; c++) hash = hash * 33 + uint8_t(*c);
    return hash;
}

void describe(Comm &comm, const std::string &bus) {
    auto &mine = comm.mine();
    mine.pid = getpid();
    mine.device = comm.device;
    mine.host = host_hash();
    gethostname(mine.host_name, sizeof mine.host_name - 1);
    strncpy(mine.bus, bus.c_str(), sizeof mine.bus - 1);
}

bool map(Comm &comm, std::string *why) {
    comm.mapped = bytes_for(comm.ranks);
    int fd = shm_open(("/" + comm.name).c_str(), O_CREAT | O_RDWR, 0600);
    if (fd < 0 || ftruncate(fd, off_t(comm.mapped))) {
        *why = std::string("no shared memory: ") + strerror(errno);
        return false;
    }
    void *at = mmap(nullptr, comm.mapped, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    comm.shared = at == MAP_FAILED ? nullptr : static_cast<Shared *>(at);
    if (!comm.shared) *why = "shared memory cannot be mapped";
    return comm.shared;
}

bool one_gpu_each(const Comm &comm, std::string *why) {
    for (int i = 0; i < comm.ranks; i++)
        for (int j = 0; j < i; j++) {
            auto &one = comm.shared->places[i], &other = comm.shared->places[j];
            if (one.host != other.host || strcmp(one.bus, other.bus)) continue;
            char text[200];
            const char *refusal = version() < 23000 ? "Duplicate GPU detected : rank %d and rank %d both on CUDA device %s"
                                                    : "Multiple Ranks are using the same GPU/Partition. "
                                                      "Set NCCL_MULTI_RANK_GPU_ENABLE=1 to enable this configuration.";
            snprintf(text, sizeof text, refusal, j, i, one.bus);
            *why = text;
            return false;
        }
    return true;
}

} // namespace

std::string new_name() {
    remove_stale();
    uint64_t random;
    if (getrandom(&random, sizeof random, 0) != sizeof random) random = uint64_t(time(nullptr));
    char text[64];
    snprintf(text, sizeof text, "%s%d-%016lx", kPrefix, getpid(), random);
    return text;
}

ncclResult_t attach(Comm &comm, const std::string &bus, std::string *why) {
    if (!map(comm, why)) return ncclSystemError;
    describe(comm, bus);
    auto &shared = *comm.shared;
    // Not before the last one has come, be it to fail: it would find new memory under the name, and wait there alone.
    if (++shared.came == comm.ranks) shm_unlink(("/" + comm.name).c_str());
    if (int error = init_error(comm.rank)) {
        shared.failed = 1;
        *why = "the double was told to fail here (FAKE_NCCL_INIT_ERROR)";
        return ncclResult_t(error);
    }
    shared.joined++;
    timespec moment{0, 1000000};
    while (shared.joined < comm.ranks && !shared.failed && !comm.aborted) nanosleep(&moment, nullptr);
    if (shared.joined < comm.ranks) {
        *why = comm.aborted ? "aborted" : "another rank could not join";
        return ncclRemoteError;
    }
    bool shareable = version() >= 23000 && variable("NCCL_MULTI_RANK_GPU_ENABLE", 0);
    return shareable || one_gpu_each(comm, why) ? ncclSuccess : ncclInvalidUsage;
}

ncclResult_t meet(Comm &comm) {
    comm.met = true;
    comm.shared->met++;
    timespec moment{0, 200000};
    while (comm.shared->met < comm.ranks && !comm.aborted) nanosleep(&moment, nullptr);
    return comm.aborted ? ncclInternalError : ncclSuccess;
}

void ring(Place &place) {
    place.bell.fetch_add(1);
    if (place.sleeping.load()) syscall(SYS_futex, &place.bell, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void wait(Place &place, uint32_t seen, int milliseconds) {
    timespec limit{0, milliseconds * 1000000L};
    place.sleeping.fetch_add(1);
    syscall(SYS_futex, &place.bell, FUTEX_WAIT, seen, &limit, nullptr, 0);
    place.sleeping.fetch_sub(1);
}

Comm::~Comm() {
    if (shared) munmap(shared, mapped);
}

} // namespace fake
