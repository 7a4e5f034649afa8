#pragma once
// The parts of a hardware profile, each from its section: the machine in profile_machine.cpp, what
// was fitted to measurements in profile_fits.cpp, what was tabulated in profile_tables.cpp. Private
// to the profile's reader.

#include <map>
#include <vector>

#include "costmodel/profiles/profile_section.h"

namespace qplan::profiles {

Gpu read_gpu(Section in);
Interconnect read_link(Section in);
Host read_host(Section in);
Contention read_contention(Section in);

Errors read_errors(Section in);
GemmFit read_gemm_fit(Section in, const Errors& errors);
std::map<Precision, GemmFit> read_gemm(Section in, const Errors& errors);
void read_attention(Section in, HardwareProfile& profile);
DeltaRuleFit read_delta_rule_fit(Section in, const Errors& errors);
ScanFit read_scan_fit(Section in, const Errors& errors);
Nccl read_nccl(Section in);
ExpertLibrary read_expert_library(Section in);
std::vector<CollectiveFit> read_collectives(Section in, const Errors& errors);
// Kernels that a profile has no figures of are taken to run as on another GPU.
void read_stand_in(Section in, HardwareProfile& profile);

// Measured tables: written into the profile itself (calibration does), or built in, by name.
void read_tables(Section in, HardwareProfile& profile);
void read_built_in_tables(Section& in, HardwareProfile& profile);

}  // namespace qplan::profiles
