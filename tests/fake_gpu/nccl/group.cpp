/* Groups, and the way to a stream. */
#include "group.hpp"
#include "driver.hpp"

#include <algorithm>
#include <list>
#include <map>
#include <thread>

namespace fake {
namespace {

std::atomic<int> &works_on(int device) {
    static std::atomic<int> works[kMaxGpus];
    return works[device];
}

/* What one group gives to one stream. A graph may run it again. */
struct Work {
    std::list<Queue> queues; // one per communicator

    Queue &of(const CommPtr &comm) {
        for (auto &queue : queues)
            if (queue.comm == comm) return queue;
        return queues.emplace_back(comm);
    }

    void run() {
        auto &running = works_on(queues.front().comm->device);
        running++;
        for (auto &queue : queues) queue.begin();
        auto &bell = queues.front().comm->mine();
        for (;;) {
            uint32_t seen = bell.bell.load();
            bool moved = false, done = true;
            for (auto &queue : queues) {
                moved |= queue.advance();
                done &= queue.done();
            }
            if (done) break;
            if (!moved) wait(bell, seen, queues.size() > 1 ? 1 : 20); // one bell is waited for: others are looked after
        }
        running--;
    }
};

struct Group {
    int depth = 0;
    ncclResult_t error = ncclSuccess;
    bool blocking = true;
    std::vector<std::pair<void *, std::shared_ptr<Work>>> streams;
    std::vector<std::function<ncclResult_t()>> beside;
};

thread_local Group group;

ncclResult_t enqueue(void *stream, const std::shared_ptr<Work> &work) {
    auto run = [](void *argument) { (*static_cast<std::shared_ptr<Work> *>(argument))->run(); };
    auto drop = [](void *argument) { delete static_cast<std::shared_ptr<Work> *>(argument); };
    return driver().enqueue(stream, run, drop, new std::shared_ptr<Work>(work)) ? ncclUnhandledCudaError : ncclSuccess;
}

Work &work_for(void *stream) {
    for (auto &[known, work] : group.streams)
        if (known == stream) return *work;
    return *group.streams.emplace_back(stream, std::make_shared<Work>()).second;
}

ncclResult_t all_beside(std::vector<std::function<ncclResult_t()>> works, bool blocking) {
    std::vector<ncclResult_t> results(works.size());
    std::vector<std::thread> threads;
    if (!blocking) {
        for (auto &work : works) std::thread(work).detach();
        return ncclInProgress;
    }
    for (size_t i = 0; i < works.size(); i++) threads.emplace_back([&, i] { results[i] = works[i](); });
    for (auto &thread : threads) thread.join();
    return *std::max_element(results.begin(), results.end());
}

/* A communicator's first collective call connects its ranks: the caller waits until all others have called, too (captured or not). */
ncclResult_t connect(const Group &ended) {
    std::map<Comm *, std::function<ncclResult_t()>> first;
    for (auto &[stream, work] : ended.streams)
        for (auto &queue : work->queues)
            if (!queue.collectives.empty() && !queue.comm->met) first[queue.comm.get()] = [comm = queue.comm] { return meet(*comm); };
    std::vector<std::function<ncclResult_t()>> works;
    for (auto &[comm, work] : first) works.push_back(work);
    return works.empty() ? ncclSuccess : all_beside(works, true);
}

void take(Queue &queue, const Call &call) { (is_point_to_point(call) ? queue.messages : queue.collectives).push_back(call); }

} // namespace

bool in_group() { return group.depth > 0; }

bool busy(int device) { return device >= 0 && works_on(device); }

ncclResult_t group_start() {
    group.depth++;
    return ncclSuccess;
}

ncclResult_t group_end() {
    if (!group.depth) {
        warn(-1, "ncclGroupEnd: not in a group call.");
        return ncclInvalidUsage;
    }
    if (--group.depth) return ncclSuccess;
    Group ended;
    std::swap(ended, group);
    if (ended.error) return ended.error;
    if (!ended.beside.empty()) return all_beside(ended.beside, ended.blocking);
    if (auto error = connect(ended)) return error;
    for (auto &[stream, work] : ended.streams)
        if (auto error = enqueue(stream, work)) return error;
    return ended.blocking ? ncclSuccess : ncclInProgress;
}

ncclResult_t call(const CommPtr &comm, void *stream, const Call &call) {
    bool alone = !in_group();
    if (alone) group_start();
    take(work_for(stream).of(comm), call);
    group.blocking &= comm->blocking;
    return alone ? group_end() : ncclSuccess;
}

ncclResult_t together(bool blocking, std::function<ncclResult_t()> work) {
    bool alone = !in_group();
    if (alone) group_start();
    group.beside.push_back(std::move(work));
    group.blocking &= blocking;
    return alone ? group_end() : ncclSuccess;
}

} // namespace fake
