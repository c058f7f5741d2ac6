/* C functions over oneCCL's C++ interface, for calls by pointer: backends/oneccl/library.py compiles them with the headers of the installed
 * oneCCL, and the native loop calls them.
 *
 * Each function returns 0, or 1 after an exception of the library, whose text collbench_oneccl_error returns. */
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include <oneapi/ccl.hpp>

namespace {

thread_local std::string error_text;

template <typename Body>
int guarded(Body body) {
    try {
        body();
        return 0;
    } catch (const std::exception &error) {
        error_text = error.what();
    } catch (...) {
        error_text = "an exception of an unknown type";
    }
    return 1;
}

/* The operations, as numbered in backends/oneccl/library.py. */
enum operation : int32_t {
    ALLREDUCE, REDUCE, BROADCAST, ALLGATHER, ALLGATHERV, ALLTOALL, ALLTOALLV, REDUCE_SCATTER, BARRIER, SEND, RECEIVE
};

/* What a call does; also in backends/oneccl/library.py. `sent` and `received` have one count for each rank, or are null. */
struct arguments {
    int32_t operation;
    int32_t type;
    int32_t reduction;
    int32_t rank; /* the root, or the other rank of a message */
    const void *send;
    void *receive;
    uint64_t count;
    const uint64_t *sent;
    const uint64_t *received;
    uint64_t ranks;
    void *communicator;
    const char *cached; /* the name under which the library keeps the prepared operation; null: it prepares each call */
};

/* An operation with all that its calls need; its attributes are made once. */
struct request {
    std::function<ccl::event()> begin;
    ccl::event event;
};

/* The attributes of calls: with a name, the library keeps what it prepares for the first call, and uses it for the later ones. */
template <typename Attributes>
Attributes attributes(const char *name) {
    auto made = ccl::create_operation_attr<Attributes>();
    if (name) {
        made.template set<ccl::operation_attr_id::to_cache>(true);
        made.template set<ccl::operation_attr_id::match_id>(ccl::string_class(name));
    }
    return made;
}

std::vector<size_t> counts(const uint64_t *first, uint64_t n) { return std::vector<size_t>(first, first + (first ? n : 0)); }

std::function<ccl::event()> calls(const arguments &a) {
    const auto &comm = *static_cast<ccl::communicator *>(a.communicator);
    const auto type = static_cast<ccl::datatype>(a.type);
    const auto reduction = static_cast<ccl::reduction>(a.reduction);
    const auto sent = counts(a.sent, a.ranks), received = counts(a.received, a.ranks);
    switch (a.operation) {
        case ALLREDUCE:
            return [=, &comm, attr = attributes<ccl::allreduce_attr>(a.cached)] {
                return ccl::allreduce(a.send, a.receive, a.count, type, reduction, comm, attr);
            };
        case REDUCE:
            return [=, &comm, attr = attributes<ccl::reduce_attr>(a.cached)] {
                return ccl::reduce(a.send, a.receive, a.count, type, reduction, a.rank, comm, attr);
            };
        case BROADCAST:
            return [=, &comm, attr = attributes<ccl::broadcast_attr>(a.cached)] {
                void *send = const_cast<void *>(a.send);
                return send ? ccl::broadcast(send, a.receive, a.count, type, a.rank, comm, attr)
                            : ccl::broadcast(a.receive, a.count, type, a.rank, comm, attr);
            };
        case ALLGATHER:
            return [=, &comm, attr = attributes<ccl::allgather_attr>(a.cached)] {
                return ccl::allgather(a.send, a.receive, a.count, type, comm, attr);
            };
        case ALLGATHERV:
            return [=, &comm, attr = attributes<ccl::allgatherv_attr>(a.cached)] {
                return ccl::allgatherv(a.send, a.count, a.receive, received, type, comm, attr);
            };
        case ALLTOALL:
            return [=, &comm, attr = attributes<ccl::alltoall_attr>(a.cached)] {
                return ccl::alltoall(a.send, a.receive, a.count, type, comm, attr);
            };
        case ALLTOALLV:
            return [=, &comm, attr = attributes<ccl::alltoallv_attr>(a.cached)] {
                return ccl::alltoallv(a.send, sent, a.receive, received, type, comm, attr);
            };
        case REDUCE_SCATTER:
            return [=, &comm, attr = attributes<ccl::reduce_scatter_attr>(a.cached)] {
                return ccl::reduce_scatter(a.send, a.receive, a.count, type, reduction, comm, attr);
            };
        case BARRIER:
            return [=, &comm, attr = attributes<ccl::barrier_attr>(a.cached)] { return ccl::barrier(comm, attr); };
        case SEND:
            return [=, &comm, attr = attributes<ccl::pt2pt_attr>(nullptr)] {
                return ccl::send(const_cast<void *>(a.send), a.count, type, a.rank, comm, attr);
            };
        case RECEIVE:
            return [=, &comm, attr = attributes<ccl::pt2pt_attr>(nullptr)] {
                return ccl::recv(a.receive, a.count, type, a.rank, comm, attr);
            };
    }
    throw std::invalid_argument("operation " + std::to_string(a.operation) + " is unknown");
}

} // namespace

#define EXPORTED extern "C" __attribute__((visibility("default")))

EXPORTED const char *collbench_oneccl_error() { return error_text.c_str(); }

/* Returns the library's version as text, which lives as long as the process. */
EXPORTED const char *collbench_oneccl_version() {
    static std::string text;
    auto version = ccl::get_library_version();
    text = std::to_string(version.major) + "." + std::to_string(version.minor) + "." + std::to_string(version.update);
    return text.c_str();
}

EXPORTED int collbench_oneccl_init() {
    return guarded([] { ccl::init(); });
}

/* The key-value store at which the ranks of a communicator meet. It must exist as long as the communicators made with it. */
EXPORTED int collbench_oneccl_open_store(char *address, void **store) {
    return guarded([=] {
        auto made = ccl::create_main_kvs();
        auto found = made->get_address();
        std::memcpy(address, found.data(), found.size());
        *store = new ccl::shared_ptr_class<ccl::kvs>(made);
    });
}

EXPORTED int collbench_oneccl_join_store(const char *address, void **store) {
    return guarded([=] {
        ccl::kvs::address_type wanted;
        std::memcpy(wanted.data(), address, wanted.size());
        *store = new ccl::shared_ptr_class<ccl::kvs>(ccl::create_kvs(wanted));
    });
}

EXPORTED int collbench_oneccl_close_store(void *store) {
    return guarded([=] { delete static_cast<ccl::shared_ptr_class<ccl::kvs> *>(store); });
}

EXPORTED int collbench_oneccl_make_communicator(int64_t ranks, int64_t rank, void *store, void **communicator) {
    return guarded([=] {
        auto &kvs = *static_cast<ccl::shared_ptr_class<ccl::kvs> *>(store);
        *communicator = new ccl::communicator(ccl::create_communicator(static_cast<int>(ranks), static_cast<int>(rank), kvs));
    });
}

EXPORTED int collbench_oneccl_free_communicator(void *communicator) {
    return guarded([=] { delete static_cast<ccl::communicator *>(communicator); });
}

/* Makes a request from the arguments, which are copied. The buffers and the communicator must exist as long as the request. */
EXPORTED int collbench_oneccl_make_request(const arguments *given, void **made) {
    return guarded([=] { *made = new request{calls(*given), {}}; });
}

EXPORTED int collbench_oneccl_free_request(void *made) {
    return guarded([=] { delete static_cast<request *>(made); });
}

/* Starts the operation. */
EXPORTED int collbench_oneccl_start(request *r) {
    return guarded([=] { r->event = r->begin(); });
}

/* Starts the operation and waits for it: what a blocking call of another library does. */
EXPORTED int collbench_oneccl_call(request *r) {
    return guarded([=] { r->begin().wait(); });
}

/* Waits for n started operations. */
EXPORTED int collbench_oneccl_wait(request **requests, int64_t n) {
    return guarded([=] {
        for (int64_t i = 0; i < n; i++) requests[i]->event.wait();
    });
}

/* Makes progress of n started operations where the library has no threads for it, and does not wait. */
EXPORTED int collbench_oneccl_test(request **requests, int64_t n) {
    return guarded([=] {
        for (int64_t i = 0; i < n; i++) requests[i]->event.test();
    });
}
