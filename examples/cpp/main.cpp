// Runs a package: `run PACKAGE [DTYPE:SIZExSIZE:FILE ...]`.  Inputs are files of plain elements, whole
// numbers as `int:N`; results are written to PACKAGE.0, PACKAGE.1, ..., and described on the way.
#include <litz.h>

#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <sstream>

static std::vector<char> contents(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

int main(int count, char** given) try {
    if (count < 2) return std::puts("usage: run PACKAGE [DTYPE:SIZExSIZE:FILE ...]"), 2;
    litz::Program program(given[1]);
    std::vector<std::vector<char>> memory;
    std::vector<litz::Value> inputs;
    for (int i = 2; i < count; ++i) {
        std::istringstream words(given[i]);
        std::string dtype, sizes, path;
        std::getline(words, dtype, ':');
        std::getline(words, sizes, ':');
        if (dtype == "int") {
            inputs.push_back(std::stoll(sizes));
            continue;
        }
        std::getline(words, path);
        std::vector<int64_t> shape;
        std::istringstream dims(sizes);
        for (std::string n; std::getline(dims, n, 'x');) shape.push_back(std::stoll(n));
        memory.push_back(contents(path));
        auto input = litz::Tensor::over(memory.back().data(), shape, dtype);
        inputs.push_back(input.to(program.devices().at(inputs.size())));
    }
    std::cout << "for " << program.target() << ", " << program.constants().size() << " constants\n";
    int n = 0;
    for (const litz::Value& v : program(inputs)) {
        if (v.kind == litz::Value::IsTensor) {
            int64_t last = 1, count = 1;
            litz::Tensor here = v.tensor.to("cpu");
            auto shape = here.shape(), strides = here.strides();
            std::cout << "tensor " << here.dtype() << " [";
            for (size_t i = 0; i < shape.size(); ++i) {
                std::cout << (i ? ", " : "") << shape[i];
                last += (shape[i] - 1) * strides[i];
                count *= shape[i];
            }
            std::cout << "]\n";
            // float32, or 64-bit integers
            int64_t bytes = here.dtype() == 4 || here.dtype() == 7 ? 8 : 4;
            std::ofstream out(given[1] + ("." + std::to_string(n)), std::ios::binary);
            out.write((const char*)here.data(), count ? last * bytes : 0);
        } else if (v.kind == litz::Value::Int || v.kind == litz::Value::Bool) {
            std::cout << "number " << v.number << "\n";
        } else {
            std::cout << (v.kind == litz::Value::None ? "none" : "text " + v.text) << "\n";
        }
        ++n;
    }
    return 0;
} catch (const std::exception& e) {
    std::cerr << e.what() << "\n";
    return 1;
}
