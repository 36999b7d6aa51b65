// Calls a second of threads that share a package: `throughput PACKAGE SIZExSIZE COUNT THREADS ...` prints
// a line for each number of threads.
#include <litz.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <thread>

int main(int count, char** given) try {
    litz::Program program(given[1]);
    std::vector<int64_t> shape;
    std::istringstream sizes(given[2]);
    int64_t elements = 1;
    for (std::string n; std::getline(sizes, n, 'x'); elements *= shape.back()) shape.push_back(std::stoll(n));
    std::vector<float> memory((size_t)elements);
    for (float& x : memory) x = (float)std::rand() / (float)RAND_MAX - 0.5f;
    std::vector<litz::Value> inputs{litz::Tensor::over(memory.data(), shape, "float32")};
    program(inputs);
    for (int i = 4; i < count; ++i) {
        int threads = std::atoi(given[i]), each = std::atoi(given[3]) / threads + 1;
        auto start = std::chrono::steady_clock::now();
        std::vector<std::thread> all;
        for (int t = 0; t < threads; ++t)
            all.emplace_back([&] { for (int k = 0; k < each; ++k) program(inputs); });
        for (std::thread& t : all) t.join();
        std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start;
        std::printf("%.1f\n", threads * each / passed.count());
    }
} catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
}
