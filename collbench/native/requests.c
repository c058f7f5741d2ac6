/* Collectives of a library whose requests are tested, not waited for: UCC. The caller passes the library's functions.
 *
 * A request begins with its status: 0 is done, a positive number is in progress, a negative one is an error (ucc_def.h: ucc_coll_req_t;
 * ucc_collective_test, inline there, reads it). The progress function may return an error, too. */
#include <stdint.h>

typedef uint64_t word;
typedef struct {
    volatile int32_t status;
} request_t;

/* Also in backends/ucc/library.py. */
typedef struct {
    int (*init)(void *arguments, request_t **request, void *team);
    int (*post)(request_t *request);
    int (*progress)(void *context);
    int (*finalize)(request_t *request);
    void *context;
} library_t;

static int completed(const library_t *library, const request_t *request) {
    int code;
    while ((code = request->status) > 0)
        if ((code = library->progress(library->context)) < 0) break;
    return code;
}

/* Starts a request that is made once, and waits for it. */
int collbench_request_run(const library_t *library, request_t **request) {
    int code = library->post(*request);
    return code < 0 ? code : completed(library, *request);
}

/* Makes a request and starts it. */
int collbench_request_start(const library_t *library, void *arguments, request_t **request, void *team) {
    int code = library->init(arguments, request, team);
    if (code >= 0) code = library->post(*request);
    return code < 0 ? code : 0;
}

/* Waits for a request, and frees it. */
int collbench_request_finish(const library_t *library, request_t **request) {
    int code = completed(library, *request);
    if (code < 0) return code;
    code = library->finalize(*request);
    *request = 0;
    return code;
}

/* Makes a request, starts it, waits for it and frees it: what a blocking call of another library does. */
int collbench_request_call(const library_t *library, void *arguments, request_t **request, void *team) {
    int code = collbench_request_start(library, arguments, request, team);
    return code < 0 ? code : collbench_request_finish(library, request);
}
