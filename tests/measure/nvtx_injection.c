/* A tool for NVTX: writes each range of a domain, and its end, to the file that NVTX_SEEN names.
 *
 * NVTX calls InitializeInjectionNvtx2 of the library that NVTX_INJECTION64_PATH names, with a function that returns tables. The table of
 * callbacks returns the table of the functions of a module, in which a tool puts its own. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { CALLBACKS = 1, DOMAINS = 5, PUSH = 4, POP = 5 };

typedef void (*function)(void);

typedef struct {
    size_t size;
    int (*module_functions)(int module, function ***table, unsigned int *count);
} callbacks;

typedef struct { /* nvtxEventAttributes_t */
    uint16_t version, size;
    uint32_t category;
    int32_t color_type;
    uint32_t color;
    int32_t payload_type, reserved;
    uint64_t payload;
    int32_t message_type; /* 1: text; 3: a handle of a registered string */
    const void *message;
} attributes;

enum { REGISTER_A = 10, TEXT = 1, REGISTERED = 3 };

static void note(const char *word, const char *text) {
    FILE *file = fopen(getenv("NVTX_SEEN"), "a");
    if (file) {
        fprintf(file, text ? "%s %s\n" : "%s\n", word, text);
        fclose(file);
    }
}

static int push(void *domain, const attributes *about) {
    (void)domain;
    note("push", about->message_type == TEXT || about->message_type == REGISTERED ? (const char *)about->message : "?");
    return 0;
}

static int pop(void *domain) {
    (void)domain;
    note("pop", NULL);
    return 0;
}

static void *register_text(void *domain, const char *text) { /* the handle is a copy of the text */
    char *copy = malloc(4096);
    (void)domain;
    snprintf(copy, 4096, "%s", text);
    return copy;
}

int InitializeInjectionNvtx2(const void *(*table_of)(uint32_t)) {
    const callbacks *found = table_of(CALLBACKS);
    function **table = NULL;
    unsigned int count = 0;
    if (!found || !found->module_functions(DOMAINS, &table, &count) || count <= REGISTER_A)
        return 0;
    *table[PUSH] = (function)push;
    *table[POP] = (function)pop;
    *table[REGISTER_A] = (function)register_text;
    return 1;
}
