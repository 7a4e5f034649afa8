#include "costmodel/profiles/profile_section.h"

namespace qplan::profiles {

void read_source(Section& in) {
  if (in.lacks("source")) return;
  const Json& source = in.value("source");
  const auto is_sentence = [](const Json& v) {
    return v.is_string() && !v.get_ref<const std::string&>().empty();
  };
  if (is_sentence(source)) return;
  const bool by_key = source.is_object() && !source.empty() &&
                      std::all_of(source.begin(), source.end(), is_sentence);
  if (!by_key) in.fail("source", "must be a sentence, or an object with a sentence for each key");
}

}  // namespace qplan::profiles
