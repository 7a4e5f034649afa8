#pragma once
// How levels of the network above nodes are said: `"pods": [{"gpus": 3072, "oversubscription": 7}]`
// in profiles and plan files, "3072:7" on the command line.

#include <string>
#include <string_view>

#include "costmodel/profiles/hardware.h"
#include "models/json.h"
#include "models/pods.h"

namespace qplan {

// All throw Error with one sentence that begins with `where`.
PodLevels read_pods(const Json& list, const std::string& where);
Json pods_to_json(const PodLevels& pods);

// "3072:7", "1024:2:rails,15360:15": GPUs of a pod, oversubscription above it; inner ones first.
PodLevels parse_pods(const std::string& where, std::string_view text);

// The same text back.
std::string pods_text(const PodLevels& pods);

// Pods hold whole nodes and whole NVLink domains.
void check_pods(const Interconnect& link, const std::string& where);

}  // namespace qplan
