#include "planner/frameworks/scene.h"

namespace qplan {

const std::string* Scene::find_text(const std::string& file) const {
  for (const ConfigText& text : files.texts) {
    if (text.name == file) return &text.text;
  }
  return nullptr;
}

const std::string& Scene::text_of(const std::string& file) const {
  static const std::string nothing;
  const std::string* const text = find_text(file);
  return text == nullptr ? nothing : *text;
}

}  // namespace qplan
