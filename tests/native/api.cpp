// What a test wants of bolt_numba.hpp: api DENSE COUNTER SELECTOR, programs of the models in nets.py.

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>
#include <utility>

#include "bolt_numba.hpp"

namespace bn = bolt_numba;

static void want(bool holds, const char *what) {
    if (holds) return;
    std::cerr << what << '\n';
    std::exit(1);
}

template <typename Call> static void refused(bn_status status, const std::string &text, Call call) {
    try {
        call();
    } catch (const bn::Error &error) {
        want(error.status() == status && std::string(error.what()).find(text) != std::string::npos, error.what());
        return;
    }
    want(false, text.c_str());
}

static void dense(const char *path) {
    bn::Session session(bn::Model(path), 2);
    want(session.inputs() == 1 && session.outputs() == 1, "numbers of inputs and outputs");
    want(session.input_info(0).shape == std::vector<std::int64_t>{64, 256}, "shape");
    session.resize({{1, 256}});
    const bn::Info info = session.output_info(0);
    want(info.name == "y" && info.dtype == BN_FLOAT && info.nbytes == 1024, "info");
    auto x = session.input<float>(0);
    std::fill(x.begin(), x.end(), 0.5f);
    session.run();
    const auto y = session.output<float>(0);
    const std::vector<float> found(y.begin(), y.end());

    session.set_input_shape(0, {64, 256});
    want(session.output_info(0).shape == std::vector<std::int64_t>{64, 256}, "shape of an output");
    refused(BN_NO_PLAN, "got x 3x256", [&] { session.set_input_shape(0, {3, 256}); });
    refused(BN_ARGUMENT, "x: got 1 sizes, wanted 2", [&] { session.set_input_shape(0, {3}); });
    session.set_input_shape(0, {1, 256});

    bn::Session other = session.clone();
    std::vector<float> given(256, 0.5f), taken(256);
    other.set_threads(1);
    other.bind_input(0, bn::Span<float>(given.data(), given.size()));
    other.bind_output(0, bn::Span<float>(taken.data(), taken.size()));
    other.run();
    want(taken == found, "bound memory");

    refused(BN_NO_PLAN, "got x 2x256", [&] { session.resize({{2, 256}}); });
    refused(BN_ARGUMENT, "another rank", [&] { session.resize({{2}}); });
    refused(BN_ARGUMENT, "shape for each input", [&] { session.resize({}); });
    refused(BN_ARGUMENT, "another dtype", [&] { session.input<double>(0); });
    refused(BN_ARGUMENT, "output: got 1", [&] { session.output<float>(1); });
    refused(BN_ARGUMENT, "threads: got 0", [&] { session.set_threads(0); });
    refused(BN_ARGUMENT, "wanted 1024", [&] { session.bind_input(0, bn::Span<float>(given.data(), 3)); });
    refused(BN_FILE, "cannot be opened", [&] { bn::Model("nowhere"); });
}

static void counter(const char *path) {
    std::ifstream file(path, std::ios::binary);
    const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
    bn::Model model(bytes.data(), bytes.size());
    want(model.plans() == 1 && !model.target().empty(), "model");
    bn::Session first(model);
    bn::Session session = std::move(first);
    for (float wanted : {2.0f, 4.0f}) {
        auto x = session.input<float>(0);
        std::fill(x.begin(), x.end(), 1.0f);
        session.run();
        want(session.output<float>(0)[0] == wanted, "states");
    }
    want(session.find<float>("s")[1] == 12.0f, "find");
    refused(BN_ARGUMENT, "got 'nothing'", [&] { session.find<float>("nothing"); });
    session.reset_state();
    want(session.find<float>("s")[1] == 10.0f, "first states");
}

static void selector(const char *path) {
    bn::Session session(bn::Model(path), 1);
    auto x = session.input<float>(0);
    std::vector<std::int64_t> taken(session.output_capacity(0) / sizeof(std::int64_t));
    session.bind_output(0, bn::Span<std::int64_t>(taken.data(), taken.size()));
    for (std::size_t count : {5u, 0u, 12u}) {
        std::fill(x.begin(), x.end(), 0.0f);
        std::fill(x.begin(), x.begin() + count, 1.0f);
        session.run();
        const auto wanted = std::vector<std::int64_t>{2, static_cast<std::int64_t>(count)};
        want(session.output_info(0).shape == wanted && session.output<float>(1).size() == 2 * count, "sizes");
        want(session.output<float>(2).size() == (count > 0 ? 12u : 24u), "branch");
    }
}

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    dense(argv[1]);
    counter(argv[2]);
    selector(argv[3]);
}
