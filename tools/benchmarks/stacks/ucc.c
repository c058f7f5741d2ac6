/* UCC's own: an all-reduce of floats on a team of its own, made, posted, progressed and freed in each call. ucc.py compiles and calls it.

Ranks meet over TCP at rank 0's address. Every function returns 0, or UCC's (negative) or this file's (1) error. */
#include <arpa/inet.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <ucc/api/ucc.h>

static int ranks, rank, *peers; /* peers: at rank 0 the connection to each rank, elsewhere peers[0] to rank 0 */
static ucc_context_h context;
static ucc_team_h team;
static ucc_coll_args_t arguments;

static int moved(int peer, char *bytes, size_t left, int sends) {
    while (left) {
        ssize_t done = sends ? send(peer, bytes, left, 0) : recv(peer, bytes, left, 0);
        if (done <= 0)
            return 1;
        bytes += done;
        left -= (size_t)done;
    }
    return 0;
}

static int meet(const char *host, int port) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int one = 1, each;
    inet_pton(AF_INET, host, &at.sin_addr);
    peers = calloc((size_t)ranks, sizeof *peers);
    int own = socket(AF_INET, SOCK_STREAM, 0);
    if (rank) {
        int tries = 0;
        while (connect(own, (struct sockaddr *)&at, sizeof at)) {
            if (++tries > 1000)
                return 1;
            usleep(10000);
        }
        peers[0] = own;
        return moved(own, (char *)&rank, sizeof rank, 1);
    }
    setsockopt(own, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(own, (struct sockaddr *)&at, sizeof at) || listen(own, ranks))
        return 1;
    for (int i = 1; i < ranks; i++) {
        int peer = accept(own, NULL, NULL);
        if (peer < 0 || moved(peer, (char *)&each, sizeof each, 0) || each < 1 || each >= ranks)
            return 1;
        peers[each] = peer;
    }
    close(own);
    return 0;
}

static ucc_status_t allgather(void *source, void *target, size_t n, void *info, void **request) {
    char *all = target;
    (void)info;
    *request = all;
    memcpy(all + (size_t)rank * n, source, n);
    if (rank)
        return moved(peers[0], source, n, 1) || moved(peers[0], all, (size_t)ranks * n, 0) ? UCC_ERR_NO_MESSAGE : UCC_OK;
    for (int i = 1; i < ranks; i++)
        if (moved(peers[i], all + (size_t)i * n, n, 0))
            return UCC_ERR_NO_MESSAGE;
    for (int i = 1; i < ranks; i++)
        if (moved(peers[i], all, (size_t)ranks * n, 1))
            return UCC_ERR_NO_MESSAGE;
    return UCC_OK;
}

static ucc_status_t done(void *request) {
    (void)request;
    return UCC_OK;
}

int own_open(const char *host, int port, int of, int number, size_t count) {
    ucc_lib_params_t how = {.mask = UCC_LIB_PARAM_FIELD_THREAD_MODE, .thread_mode = UCC_THREAD_SINGLE};
    ucc_lib_config_h settings;
    ucc_lib_h library;
    ucc_context_config_h chosen;
    ucc_status_t code;
    ranks = of, rank = number;
    if (meet(host, port))
        return 1;
    if ((code = ucc_lib_config_read(NULL, NULL, &settings)) || (code = ucc_init(&how, settings, &library)))
        return code;
    ucc_lib_config_release(settings);
    ucc_oob_coll_t meeting = {
        .allgather = allgather, .req_test = done, .req_free = done, .n_oob_eps = (uint32_t)ranks, .oob_ep = (uint32_t)rank,
    };
    ucc_context_params_t where = {.mask = UCC_CONTEXT_PARAM_FIELD_OOB, .oob = meeting};
    if ((code = ucc_context_config_read(library, NULL, &chosen)) || (code = ucc_context_create(library, &where, chosen, &context)))
        return code;
    ucc_context_config_release(chosen);
    ucc_team_params_t who = {
        .mask = UCC_TEAM_PARAM_FIELD_OOB | UCC_TEAM_PARAM_FIELD_EP | UCC_TEAM_PARAM_FIELD_EP_RANGE,
        .oob = meeting, .ep = (uint64_t)rank, .ep_range = UCC_COLLECTIVE_EP_RANGE_CONTIG,
    };
    if ((code = ucc_team_create_post(&context, 1, &who, &team)))
        return code;
    while ((code = ucc_team_create_test(team)) == UCC_INPROGRESS)
        ucc_context_progress(context);
    float *ours = aligned_alloc(4096, count * sizeof *ours), *theirs = aligned_alloc(4096, count * sizeof *theirs);
    for (size_t i = 0; i < count; i++)
        ours[i] = theirs[i] = 1; /* else all pages would be one page of zeros, which stays in the cache */
    ucc_coll_buffer_info_t source = {ours, count, UCC_DT_FLOAT32, UCC_MEMORY_TYPE_HOST};
    ucc_coll_buffer_info_t target = {theirs, count, UCC_DT_FLOAT32, UCC_MEMORY_TYPE_HOST};
    arguments = (ucc_coll_args_t){.coll_type = UCC_COLL_TYPE_ALLREDUCE, .src.info = source, .dst.info = target, .op = UCC_OP_SUM};
    return code;
}

int own_call(void) {
    ucc_coll_req_h request;
    ucc_status_t code;
    if ((code = ucc_collective_init(&arguments, &request, team)) || (code = ucc_collective_post(request)))
        return code;
    while ((code = ucc_collective_test(request)) == UCC_INPROGRESS)
        if ((code = ucc_context_progress(context)) < 0)
            return code;
    return code ? code : ucc_collective_finalize(request);
}
