// oneCCL's own: an all-reduce of ones on a communicator of its own, called and waited for. oneccl.py compiles and calls it.
#include <cstddef>
#include <exception>
#include <iostream>
#include <string>
#include <vector>

#include <oneapi/ccl.hpp>

static std::vector<float> ours, theirs;
static ccl::communicator *all;

extern "C" int own_open(const char *meeting, int ranks, int rank, size_t count) {
    try {
        ccl::init();
        auto attributes = ccl::create_kvs_attr();
        attributes.set<ccl::kvs_attr_id::ip_port>(ccl::string_class(meeting));
        auto *store = new ccl::shared_ptr_class<ccl::kvs>(ccl::create_main_kvs(attributes));
        all = new ccl::communicator(ccl::create_communicator(ranks, rank, *store));
    } catch (const std::exception &error) {
        std::cerr << error.what() << "\n";
        return 1;
    }
    ours.assign(count, 1.0f);
    theirs.assign(count, 0.0f);
    return 0;
}

extern "C" void own_call() {
    ccl::allreduce(ours.data(), theirs.data(), ours.size(), ccl::datatype::float32, ccl::reduction::sum, *all).wait();
}
