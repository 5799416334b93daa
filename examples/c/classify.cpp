// The same in C++.  examples/c/classify.c says how the model and the library are made.
//
// c++ -std=c++17 examples/c/classify.cpp -Ibuild -Lbuild -lbolt_numba -Wl,-rpath,build -o classify_cpp
// ./classify_cpp digits.bolt < images.raw

#include <algorithm>
#include <cstdio>
#include <iostream>

#include "bolt_numba.hpp"

int main(int argc, char **argv) try {
    if (argc != 2) return std::cerr << "usage: classify MODEL.bolt < IMAGES\n", 2;
    bolt_numba::Session session(bolt_numba::Model{std::string(argv[1])});
    auto pixels = session.input<float>(0);
    while (!pixels.empty() && std::fread(pixels.data(), sizeof(float), pixels.size(), stdin) == pixels.size()) {
        session.run();
        auto scores = session.output<float>(0);
        auto best = std::max_element(scores.begin(), scores.end());
        std::printf("%td %.4f\n", best - scores.begin(), static_cast<double>(*best));
    }
} catch (const bolt_numba::Error &error) {
    std::cerr << error.what() << '\n';
    return 1;
}
