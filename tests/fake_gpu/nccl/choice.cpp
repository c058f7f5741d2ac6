/* NCCL_ALGO and NCCL_PROTO, read when a communicator is made: lists, "^" for all but these. The double offers tree for all-reduce only, and
 * nothing that needs NVLink or a switch that reduces. */
#include "nccl.hpp"

#include <cstdlib>
#include <cstring>
#include <strings.h>
#include <vector>

namespace fake {
namespace {

const std::vector<std::string> kAlgorithms = {"TREE", "RING", "COLLNETDIRECT", "COLLNETCHAIN", "NVLS", "NVLSTREE", "PAT"};
const std::vector<std::string> kProtocols = {"LL", "LL128", "SIMPLE"};

/* What the variable leaves of `known`, in order of `known`; false: it names something else. */
bool left(const char *variable_name, const std::vector<std::string> &known, std::vector<std::string> *found, bool *asked) {
    *found = known;
    const char *text = getenv(variable_name);
    if (!text || !*text) return true;
    *asked = true;
    bool without = *text == '^';
    std::string list(text + without);
    std::vector<bool> named(known.size());
    for (char *word = strtok(&list[0], ","); word; word = strtok(nullptr, ",")) {
        size_t i = 0;
        while (i < known.size() && strcasecmp(word, known[i].c_str())) i++;
        if (i == known.size()) return false;
        named[i] = true;
    }
    found->clear();
    for (size_t i = 0; i < known.size(); i++)
        if (named[i] != without) found->push_back(known[i]);
    return true;
}

bool has(const std::string &list, const std::string &word) { return ("," + list + ",").find("," + word + ",") != std::string::npos; }

std::string listed(const std::vector<std::string> &words) {
    std::string text;
    for (auto &word : words) text += (text.empty() ? "" : ",") + word;
    return text;
}

} // namespace

bool choose(Comm &comm) {
    std::vector<std::string> algorithms, protocols;
    if (!left("NCCL_ALGO", kAlgorithms, &algorithms, &comm.asked) || !left("NCCL_PROTO", kProtocols, &protocols, &comm.asked)) {
        warn(comm.device, "Invalid NCCL_ALGO or NCCL_PROTO: unknown name");
        return false;
    }
    comm.algorithm = listed(algorithms);
    comm.protocol = listed(protocols);
    if (comm.asked) info(comm.device, kEnv, "NCCL_ALGO/NCCL_PROTO leave %s and %s", comm.algorithm.c_str(), comm.protocol.c_str());
    return true;
}

bool chosen(const Comm &comm, const char *call, size_t bytes, std::string *algorithm, std::string *protocol) {
    bool tree = !strcmp(call, "AllReduce") && has(comm.algorithm, "TREE"), ring = has(comm.algorithm, "RING");
    if ((!tree && !ring) || comm.protocol.empty()) return false;
    *algorithm = tree && (!ring || bytes <= 65536) ? "TREE" : "RING";
    const char *best = bytes <= 16384 ? "LL" : bytes <= 1 << 20 ? "LL128" : "SIMPLE";
    *protocol = has(comm.protocol, best) ? best : comm.protocol.substr(0, comm.protocol.find(','));
    return true;
}

} // namespace fake
