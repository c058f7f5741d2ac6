/* Calls as work for a stream's thread: a call is stages of transfers between boxes, carried on a bit at a time, so that one thread can carry
 * the calls of several ranks. */
#pragma once
#include "nccl.hpp"

#include <vector>

namespace fake {

/* Bytes into a box, or out of it. */
struct Transfer {
    Box *box;
    Place *peer; // whom to ring
    bool sends;
    char *at;
    size_t left;
    bool advance();
};

/* Several at once; two through one box in the same direction one after the other. */
struct Transfers {
    std::vector<Transfer> all;
    bool advance();
    bool done() const;
};

struct Call {
    const char *name;
    const void *send;
    void *recv;
    size_t count;
    int type, op, root; // root: the peer of a send or receive
};

inline bool is_point_to_point(const Call &call) { return call.name[0] == 'S' ? call.name[1] == 'e' : call.name[2] == 'c'; }

/* A collective call of one rank, piece by piece where it reduces. */
class Collective {
  public:
    Collective(const Comm &comm, const Call &call);
    bool advance();
    bool done() const { return begun_ && at_ >= total_; }

  private:
    bool reduces() const;
    void begin();
    void finish();
    void to(int rank, const void *from, size_t bytes);
    void from(int rank, void *to, size_t bytes);
    char *scratch(int rank) { return scratch_.data() + size_t(rank) * piece_ * width_; }

    const Comm &comm_;
    Call call_;
    size_t width_, total_, piece_, at_ = 0, now_ = 0; // elements
    bool begun_ = false;
    Transfers transfers_;
    std::vector<char> scratch_;
};

/* The calls of one rank that one group holds: collectives first and in order, then all sends and receives at once, as NCCL does. */
class Queue {
  public:
    explicit Queue(CommPtr of) : comm(std::move(of)) { comm->held++; }
    ~Queue() { comm->held--; }
    Queue(const Queue &) = delete;
    void begin();
    bool advance(); // whether something moved or ended
    bool done() const { return done_; }

    CommPtr comm;
    std::vector<Call> collectives, messages;

  private:
    bool count_calls();
    Transfers transfers_;
    std::vector<Collective> now_;
    size_t next_ = 0;
    bool done_ = false, stuck_ = false;
};

} // namespace fake
