// Calls packages: `run LIST`, a file with a line each, of words between tabs: the package, the prefix of
// what is written, then the inputs: `DTYPE:SIZExSIZE:FILE`, `int:N`, `float:X`, `bool:N`, `text:T`,
// `none`.  PREFIX.out describes results and, behind a line `inputs`, the tensors among the inputs, a line
// each; the elements of the n-th line lie in PREFIX.n, from the first in memory to the last.
#include <litz.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>
#include <sstream>

extern "C" size_t aoti_torch_dtype_element_size(int32_t);

using Strings = std::vector<std::string>;

static Strings split(const std::string& text, char at) {
    Strings found;
    std::istringstream words(text);
    for (std::string word; std::getline(words, word, at);) found.push_back(word);
    return found;
}

static litz::Value given(const std::string& word, std::vector<std::vector<char>>& memory) {
    std::string kind = word.substr(0, word.find(':')), rest = word.substr(std::min(word.size(), kind.size() + 1));
    litz::Value v;
    if (kind == "none") return v;
    if (kind == "int" || kind == "bool") {
        v.kind = kind == "int" ? litz::Value::Int : litz::Value::Bool;
        v.number = std::stoll(rest);
    } else if (kind == "float") {
        v.kind = litz::Value::Float;
        v.real = std::strtod(rest.c_str(), nullptr);
    } else if (kind == "text") {
        v.kind = litz::Value::Text;
        v.text = rest;
    } else {
        std::vector<int64_t> shape;
        for (const std::string& n : split(rest.substr(0, rest.find(':')), 'x')) shape.push_back(std::stoll(n));
        std::ifstream file(rest.substr(rest.find(':') + 1), std::ios::binary);
        memory.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
        memory.back().reserve(1);
        return litz::Tensor::over(memory.back().data(), shape, kind);
    }
    return v;
}

static void say(const litz::Value& v, std::ostream& out, const std::string& path) {
    out.precision(17);
    switch (v.kind) {
        case litz::Value::None: out << "none\n"; return;
        case litz::Value::Text: out << "text " << v.text << "\n"; return;
        case litz::Value::Float: out << "float " << v.real << "\n"; return;
        case litz::Value::Int: out << "int " << v.number << "\n"; return;
        case litz::Value::Bool: out << "bool " << v.number << "\n"; return;
        case litz::Value::IsTensor: break;
    }
    int64_t last = 1, count = 1;
    auto shape = v.tensor.shape(), strides = v.tensor.strides();
    out << "tensor " << v.tensor.dtype();
    for (size_t i = 0; i < shape.size(); ++i) {
        out << " " << shape[i] << ":" << strides[i];
        last += (shape[i] - 1) * strides[i];
        count *= shape[i];
    }
    out << "\n";
    int64_t size = count ? last * (int64_t)aoti_torch_dtype_element_size(v.tensor.dtype()) : 0;
    std::ofstream(path, std::ios::binary).write((const char*)v.tensor.data(), size);
}

static void call(const Strings& words) {
    litz::Program program(words[0]);
    std::vector<std::vector<char>> memory;
    std::vector<litz::Value> inputs;
    memory.reserve(words.size());
    for (size_t i = 2; i < words.size(); ++i) inputs.push_back(given(words[i], memory));
    std::ofstream out(words[1] + ".out");
    int n = 0;
    auto each = [&](const litz::Value& v) { say(v, out, words[1] + "." + std::to_string(n++)); };
    for (const litz::Value& v : program(inputs)) each(v);
    out << "inputs\n", ++n;
    for (const litz::Value& v : inputs)
        if (v.kind == litz::Value::IsTensor) each(v);
}

int main(int count, char** argv) {
    std::ifstream list(argv[count - 1]);
    for (std::string line; std::getline(list, line);) {
        Strings words = split(line, '\t');
        try {
            call(words);
        } catch (const std::exception& e) {
            std::ofstream(words[1] + ".out") << "error " << e.what() << "\n";
        }
    }
}
