// SPDX-License-Identifier: Apache-2.0
//
// A model and prompts out of a KDTR file, as kdt_engine_create() wants them: what a C++ program takes where Python
// reads a Hugging Face directory. Format: native/tests/README.md, "Model bundles".
#ifndef KDTREE_DEMO_MODEL_BUNDLE_H
#define KDTREE_DEMO_MODEL_BUNDLE_H

#include <cstdint>
#include <string>
#include <vector>

#include "core/kdtr.h"
#include "kdtree/engine.h"

// One prompt and, where the file has them, the tokens that must follow.
struct BundleCase {
    std::vector<int32_t> prompt;
    std::vector<int32_t> tokens;
    std::vector<int32_t> stop_tokens;
    int32_t max_new_tokens = 0;
    float temperature = 0.0f;
    uint64_t seed = 0;

    kdt_engine_request request() const;
};

class ModelBundle {
  public:
    // Throws kdt::Error with a sentence that starts with the path.
    explicit ModelBundle(const std::string& path);
    ModelBundle(const ModelBundle&) = delete;
    ModelBundle& operator=(const ModelBundle&) = delete;

    // For one slot, f32, and the longest case; valid as long as the bundle. Change what is to be different.
    kdt_engine_params params() const;
    bool has_drafter() const { return has_drafter_; }
    const std::vector<BundleCase>& cases() const { return cases_; }

  private:
    void read_target();
    void read_drafter();
    void read_tensors();
    void read_cases();
    // The one value of an array; `missing` where there is none.
    int32_t whole(const std::string& name) const;
    int32_t whole_or(const std::string& name, int32_t missing) const;
    float real(const std::string& name) const;
    std::vector<int32_t> wholes(const std::string& name) const;

    kdt::KdtrFile file_;
    kdt_target_config target_ = {};
    kdt_drafter_config drafter_ = {};
    bool has_drafter_ = false;
    std::vector<std::string> names_;
    std::vector<kdt_tensor> tensors_;
    std::vector<BundleCase> cases_;
};

#endif  // KDTREE_DEMO_MODEL_BUNDLE_H
