/* NCCL_DEBUG, NCCL_DEBUG_SUBSYS and NCCL_DEBUG_FILE (%h the host, %p the process), read at first and again after ncclResetDebugInit; and
 * lines as NCCL writes them. */
#include "nccl.hpp"

#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <mutex>
#include <strings.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace fake {
namespace {

constexpr struct {
    const char *name;
    int bit;
} kParts[] = {{"INIT", kInit}, {"COLL", kColl}, {"P2P", kP2p}, {"TUNING", kTuning}, {"ENV", kEnv}, {"ALL", ~0}};

struct Log {
    std::mutex mutex;
    FILE *file = stdout;
    std::atomic<int> level{0}; // 0 nothing, 1 version, 2 warnings, 3 information
    std::atomic<int> subsystems{0};
    char host[64] = "";

    Log() {
        gethostname(host, sizeof host - 1);
        if (char *dot = strchr(host, '.')) *dot = 0;
        read_settings();
    }

    /* NCCL opens its file anew, and empties it, whenever it reads its settings. */
    void read_settings() {
        if (file != stdout) fclose(file);
        file = stdout;
        level = 0;
        subsystems = kInit | kEnv;
        const char *asked = getenv("NCCL_DEBUG"), *named = getenv("NCCL_DEBUG_FILE"), *parts = getenv("NCCL_DEBUG_SUBSYS");
        if (asked) level = !strcasecmp(asked, "VERSION") ? 1 : !strcasecmp(asked, "WARN") ? 2 : 3;
        if (parts && *parts) subsystems = read_parts(parts);
        if (level && named && *named) open(named);
    }

    static int read_parts(std::string text) {
        bool without = text[0] == '^';
        int mask = 0;
        for (char *word = strtok(&text[without], ","); word; word = strtok(nullptr, ","))
            for (auto &part : kParts)
                if (!strcasecmp(word, part.name)) mask |= part.bit;
        return without ? ~mask : mask;
    }

    void open(const char *pattern) {
        std::string path;
        for (const char *c = pattern; *c; c++) {
            if (*c != '%') path += *c;
            else if (*++c == 'h') path += host;
            else if (*c == 'p') path += std::to_string(getpid());
            else if (*c) (path += '%') += *c;
            else break;
        }
        if (FILE *opened = fopen(path.c_str(), "w")) file = opened;
    }
};

Log &log() {
    static auto &log = *new Log;
    return log;
}

char latest[512];

void write(int device, const char *level, const char *text) {
    std::lock_guard lock(log().mutex);
    static bool first = true;
    auto head = [&] { fprintf(log().file, "%s:%d:%ld [%d] ", log().host, getpid(), long(syscall(SYS_gettid)), device); };
    int v = version();
    if (first) fprintf(log().file, "NCCL version %d.%d.%d+FAKE\n", v / 10000, v / 100 % 100, v % 100);
    first = false;
    if (text) {
        head();
        fprintf(log().file, "NCCL %s %s\n", level, text);
    }
    fflush(log().file);
}

} // namespace

void info(int device, int subsystem, const char *format, ...) {
    if (log().level == 1) return write(device, "", nullptr);
    if (log().level < 3 || !(subsystem & log().subsystems)) return;
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    write(device, "INFO", text);
}

void warn(int device, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(latest, sizeof latest, format, arguments);
    va_end(arguments);
    if (log().level >= 2) write(device, "WARN", latest);
}

const char *last_warning() { return latest; }

void read_debug_settings() {
    std::lock_guard lock(log().mutex);
    log().read_settings();
}

} // namespace fake

EXPORTED void ncclResetDebugInit() { fake::read_debug_settings(); }
