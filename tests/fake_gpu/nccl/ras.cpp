/* NCCL's RAS, off unless NCCL_RAS_ADDR names a place: a protocol of lines that tells which ranks lag behind, in text or JSON. The first
 * process of a host to take the port answers for all, since every rank's counters are in shared memory. */
#include "nccl.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <netdb.h>
#include <strings.h>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace fake {
namespace {

struct Known {
    std::mutex mutex;
    std::vector<std::weak_ptr<Comm>> comms;
};

Known &known() {
    static auto &known = *new Known;
    return known;
}

/* Each communicator once, though this process may drive several of its ranks. */
std::vector<CommPtr> alive() {
    std::vector<CommPtr> found;
    std::lock_guard lock(known().mutex);
    for (auto &weak : known().comms)
        if (auto comm = weak.lock())
            if (std::none_of(found.begin(), found.end(), [&](auto &other) { return other->hash == comm->hash; })) found.push_back(comm);
    return found;
}

template <class... Arguments> std::string line(const char *format, Arguments... arguments) {
    char text[512];
    snprintf(text, sizeof text, format, arguments...);
    return text;
}

std::string whole_rank(const Place &place, int rank, const char *format, uint64_t launched) {
    std::string end = line(" -- GPU %d managed by process %d on node %s\n", place.device, place.pid, place.host_name);
    return line(format, rank, long(launched)) + end;
}

/* The most frequent state in one line, then the ranks that are elsewhere. */
std::string counts(const Comm &comm) {
    std::map<uint64_t, int> at;
    for (int r = 0; r < comm.ranks; r++) at[comm.shared->places[r].launched]++;
    if (at.size() < 2) return "";
    uint64_t usual = std::max_element(at.begin(), at.end(), [](auto &a, auto &b) { return a.second <= b.second; })->first;
    std::string text = line("#0-0 (%016lx) MISMATCH\n  Communicator ranks have different collective operation counts\n", comm.hash);
    text += line("  %d ranks have launched up to operation %ld\n", at[usual], long(usual));
    for (int r = 0; r < comm.ranks; r++) {
        auto &place = comm.shared->places[r];
        const char *format = place.launched ? "  Rank %d has launched up to operation %ld" : "  Rank %d has not launched any operations";
        if (place.launched != usual) text += whole_rank(place, r, format, place.launched);
    }
    return text + "\n";
}

std::string errors(const Comm &comm) {
    std::string text;
    for (int r = 0; r < comm.ranks; r++) {
        auto &place = comm.shared->places[r];
        if (place.async_error) text += whole_rank(place, r, "  Rank %d reported asynchronous error %ld", uint64_t(place.async_error));
    }
    return text.empty() ? text : line("#0-0 (%016lx) ERROR\n", comm.hash) + text + "\n";
}

std::string status() {
    int v = version(), group = 0;
    std::string text = line("NCCL version %d.%d.%d+FAKE compiled with CUDA 13.0\n", v / 10000, v / 100 % 100, v % 100);
    text += "CUDA runtime version 13020, driver version 13020\n\n";
    std::string table, wrong, warned;
    for (auto &comm : alive()) {
        auto problems = errors(*comm), lags = counts(*comm);
        table += line("%5d  %8d  %8d  %8d  %8d  %8d  %8s  %6s\n", group++, 1, 1, comm->ranks, comm->ranks, comm->ranks, "RUNNING",
                      !problems.empty() ? "ERROR" : !lags.empty() ? "MISMATCH" : "OK");
        wrong += problems;
        warned += lags;
    }
    text += "Communicators... (0.00s)\n=============\n\n";
    text += "Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors\n";
    text += "    #  in group  per comm  per node  per comm  in group\n" + table;
    return text + "\nErrors\n======\n\n" + wrong + "Warnings\n========\n\n" + warned;
}

std::string json_of(const Comm &comm, int rank) {
    auto &place = comm.shared->places[rank];
    std::string counts;
    for (int kind = 0; kind < 8; kind++)
        counts += line("%s\"%s\": %lu", kind ? ", " : "", kCollectives[kind], (unsigned long)(place.launched_of[kind]));
    return line("{\"rank\": %d, \"host\": \"%s\", \"pid\": %d, \"cuda_dev\": %d, ", rank, place.host_name, place.pid, place.device) +
           line("\"nvml_dev\": %d, \"status\": {\"init_state\": 0, \"async_error\": %d, ", place.device, int(place.async_error)) +
           "\"finalize_called\": false, \"destroy_flag\": false, \"abort_flag\": false}, \"collective_counts\": {" + counts + "}}";
}

std::string json() {
    std::string comms;
    for (auto &comm : alive()) {
        std::string ranks;
        for (int r = 0; r < comm->ranks; r++) ranks += (r ? ", " : "") + json_of(*comm, r);
        comms += (comms.empty() ? "" : ", ") + line("{\"hash\": \"0x%lx\", \"size\": %d, ", comm->hash, comm->ranks) +
                 line("\"ranks_count\": %d, \"ranks\": [", comm->ranks) + ranks + "], \"missing_ranks_count\": 0, \"missing_ranks\": []}";
    }
    return "{\"nccl_version\": \"FAKE\", \"communicators\": [" + comms + "]}\n";
}

bool reply(int client, const std::string &text) { return send(client, text.data(), text.size(), MSG_NOSIGNAL) == ssize_t(text.size()); }

struct Client {
    int socket;
    bool wants_json = false;

    bool obey(const std::string &command) { // false: the conversation is over
        auto says = [&](const char *words) { return !strncasecmp(command.c_str(), words, strlen(words)); };
        if (says("client protocol ")) return reply(socket, "SERVER PROTOCOL 2\n");
        if (says("timeout ")) return reply(socket, "OK\n");
        if (says("set format ") && version() >= 22807) {
            wants_json = says("set format json");
            return reply(socket, "OK\n");
        }
        if (!says("verbose status") && !says("status")) return reply(socket, "ERROR: Unknown command " + command + "\n");
        reply(socket, wants_json ? json() : status());
        return false;
    }
};

void serve(int socket) {
    Client client{socket};
    std::string text;
    char got[256];
    bool open = true;
    while (open) {
        ssize_t n = recv(socket, got, sizeof got, 0);
        if (n <= 0) break;
        text.append(got, size_t(n));
        for (size_t end; open && (end = text.find('\n')) != std::string::npos; text.erase(0, end + 1))
            open = client.obey(text.substr(0, end));
    }
    close(socket);
}

int listening(std::string where) {
    size_t colon = where.rfind(':');
    if (colon == std::string::npos) return -1;
    addrinfo hints{}, *found;
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_family = AF_INET;
    if (getaddrinfo(where.substr(0, colon).c_str(), where.c_str() + colon + 1, &hints, &found)) return -1;
    int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0), yes = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    bool ready = !bind(fd, found->ai_addr, found->ai_addrlen) && !listen(fd, 8);
    freeaddrinfo(found);
    if (!ready) close(fd);
    return ready ? fd : -1;
}

} // namespace

void start_ras(const CommPtr &comm) {
    const char *where = getenv("NCCL_RAS_ADDR");
    if (!where || !*where || variable("NCCL_RAS_ENABLE", 1) == 0) return;
    std::lock_guard lock(known().mutex);
    known().comms.push_back(comm);
    static int fd = listening(where);
    static bool started = false;
    if (fd < 0 || started) return;
    started = true;
    std::thread([] {
        for (int client; (client = accept(fd, nullptr, nullptr)) >= 0;) std::thread(serve, client).detach();
    }).detach();
}

} // namespace fake
