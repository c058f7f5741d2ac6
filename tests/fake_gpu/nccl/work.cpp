/* How calls move their bytes: every rank to every rank that needs them, in no cleverer way. */
#include "work.hpp"

#include <algorithm>
#include <cstring>

namespace fake {
namespace {

constexpr size_t kPiece = 256 << 10; // bytes of a reduction at once

}

bool Transfer::advance() {
    uint64_t written = box->written.load(), read = box->read.load();
    uint64_t from = sends ? written : read;
    size_t ready = sends ? kBoxBytes - (written - read) : written - read;
    size_t now = std::min(left, ready), first = std::min(now, size_t(kBoxBytes - from % kBoxBytes));
    if (!now) return false;
    char *inside = box->data + from % kBoxBytes;
    if (sends) {
        memcpy(inside, at, first);
        memcpy(box->data, at + first, now - first);
    } else {
        memcpy(at, inside, first);
        memcpy(at + first, box->data, now - first);
    }
    (sends ? box->written : box->read).store(from + now);
    ring(*peer);
    at += now;
    left -= now;
    return true;
}

bool Transfers::advance() {
    bool moved = false;
    for (size_t i = 0; i < all.size(); i++) {
        auto same = [&](const Transfer &other) { return other.left && other.box == all[i].box && other.sends == all[i].sends; };
        if (all[i].left && std::none_of(all.begin(), all.begin() + long(i), same)) moved |= all[i].advance();
    }
    return moved;
}

bool Transfers::done() const {
    return std::all_of(all.begin(), all.end(), [](const Transfer &one) { return !one.left; });
}

Collective::Collective(const Comm &comm, const Call &call) : comm_(comm), call_(call), width_(width(call.type)), total_(call.count) {
    piece_ = reduces() ? std::min(total_, kPiece / width_) : total_;
    if (reduces()) scratch_.resize(piece_ * width_ * size_t(comm.ranks));
}

bool Collective::reduces() const { return !strcmp(call_.name, "AllReduce") || !strncmp(call_.name, "Reduce", 6); }

void Collective::to(int rank, const void *from, size_t bytes) {
    auto *at = static_cast<char *>(const_cast<void *>(from));
    if (rank != comm_.rank) transfers_.all.push_back({&comm_.box(comm_.rank, rank), &comm_.shared->places[rank], true, at, bytes});
}

void Collective::from(int rank, void *to, size_t bytes) {
    auto *at = static_cast<char *>(to);
    if (rank != comm_.rank) transfers_.all.push_back({&comm_.box(rank, comm_.rank), &comm_.shared->places[rank], false, at, bytes});
}

void Collective::begin() {
    begun_ = true;
    now_ = std::min(piece_, total_ - at_);
    transfers_.all.clear();
    auto *send = static_cast<const char *>(call_.send);
    auto *recv = static_cast<char *>(call_.recv);
    size_t all = total_ * width_, bytes = now_ * width_, offset = at_ * width_;
    bool root = call_.root == comm_.rank;
    std::string name = call_.name;
    for (int r = 0; r < comm_.ranks; r++) {
        if (name == "AllReduce") to(r, send + offset, bytes), from(r, scratch(r), bytes);
        if (name == "ReduceScatter") to(r, send + r * all + offset, bytes), from(r, scratch(r), bytes);
        if (name == "Reduce" && root) from(r, scratch(r), bytes);
        if (name == "Broadcast" && root) to(r, send, all);
        if (name == "AllGather") to(r, send, all), from(r, recv + r * all, all);
        if (name == "AlltoAll") to(r, send + r * all, all), from(r, recv + r * all, all);
        if (name == "Gather" && root) from(r, recv + r * all, all);
        if (name == "Scatter" && root) to(r, send + r * all, all);
    }
    if (!root && (name == "Reduce" || name == "Gather")) to(call_.root, send + offset, bytes);
    if (!root && (name == "Broadcast" || name == "Scatter")) from(call_.root, recv, all);
}

void Collective::finish() {
    auto *send = static_cast<const char *>(call_.send);
    auto *recv = static_cast<char *>(call_.recv);
    size_t all = total_ * width_, offset = at_ * width_, me = size_t(comm_.rank);
    bool root = call_.root == comm_.rank;
    std::string name = call_.name;
    auto own = [&](char *to, const char *from) { if (to != from) memmove(to, from, all); };
    if (name == "AllGather") own(recv + me * all, send);
    if (name == "AlltoAll") own(recv + me * all, send + me * all);
    if (name == "Broadcast" && root) own(recv, send);
    if (name == "Gather" && root) own(recv + me * all, send);
    if (name == "Scatter" && root) own(recv, send + me * all);
    if (!reduces() || (name == "Reduce" && !root)) return;
    const char *parts[kMaxRanks];
    int n = 0;
    for (int r = 0; r < comm_.ranks; r++) {
        const char *mine = send + (name == "ReduceScatter" ? me * all : 0) + offset;
        if (!dropped(r) || comm_.ranks == 1) parts[n++] = r == comm_.rank ? mine : scratch(r);
    }
    reduce(recv + offset, parts, n, now_, call_.type, call_.op, comm_.ranks);
}

bool Collective::advance() {
    if (done()) return false;
    bool moved = !begun_;
    if (!begun_) begin();
    moved |= transfers_.advance();
    if (!transfers_.done()) return moved;
    finish();
    at_ += now_;
    if (at_ < total_) begin();
    return true;
}

void Queue::begin() { // again for every launch of a graph
    next_ = 0;
    now_.clear();
    transfers_.all.clear();
    done_ = stuck_ = false;
    for (auto &call : messages) {
        bool sends = !strcmp(call.name, "Send");
        Box &box = sends ? comm->box(comm->rank, call.root) : comm->box(call.root, comm->rank);
        char *at = sends ? static_cast<char *>(const_cast<void *>(call.send)) : static_cast<char *>(call.recv);
        transfers_.all.push_back({&box, &comm->shared->places[call.root], sends, at, call.count * width(call.type)});
    }
    stuck_ = !count_calls();
}

/* False: one of these calls was told never to end. */
bool Queue::count_calls() {
    auto &mine = comm->mine();
    for (auto *calls : {&collectives, &messages})
        for (auto &call : *calls) {
            int error = ncclSuccess;
            bool hanging = hangs(comm->rank, ++comm->calls, &error);
            if (hanging) {
                if (error) warn(comm->device, "the double was told to report error %d (FAKE_NCCL_ASYNC_ERROR)", error);
                mine.async_error = error;
                comm->async_error = error;
                return false;
            }
            mine.launched++;
            for (int kind = 0; kind < 8; kind++) mine.launched_of[kind] += !strcmp(call.name, kCollectives[kind]);
        }
    return true;
}

bool Queue::advance() {
    if (done_) return false;
    if (comm->aborted) return done_ = true;
    if (stuck_) return false;
    if (next_ < collectives.size()) {
        if (now_.empty()) now_.emplace_back(*comm, collectives[next_]);
        bool moved = now_.front().advance();
        if (now_.front().done()) {
            now_.clear();
            next_++;
            comm->mine().finished++;
            moved = true;
        }
        return moved;
    }
    bool moved = transfers_.advance();
    if (!transfers_.done()) return moved;
    comm->mine().finished += messages.size();
    return done_ = true;
}

} // namespace fake
