// Reading packages: JSON, SHA-256, texts of index expressions, the file and its table.
#ifndef LITZ_READING_H
#define LITZ_READING_H

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "litz.h"
#include "plan.h"

namespace litz {

using i64 = int64_t;
using View = std::string_view;

// --- JSON ------------------------------------------------------------------------------------

struct Json {
    enum Kind { Null, Bool, Int, Float, Text, List, Object } kind = Null;
    i64 number = 0;
    double real = 0;
    std::string text;
    std::vector<Json> items;
    std::map<std::string, Json> fields;

    const Json& operator[](const char* name) const {
        auto found = fields.find(name);
        if (found == fields.end()) throw Error(std::string("litz: a package without ") + name);
        return found->second;
    }
    const Json& operator[](int i) const {
        if ((size_t)i >= items.size()) throw Error("litz: a package with a list that is too short");
        return items[i];
    }
    i64 integer() const {
        if (kind != Int) throw Error("litz: a package with something else where a number stands");
        return number;
    }
    std::vector<i64> integers() const {
        std::vector<i64> all;
        for (const Json& j : items) all.push_back(j.integer());
        return all;
    }
};

class JsonReader {
public:
    explicit JsonReader(View text) : at_(text.data()), end_(at_ + text.size()) {}

    Json all() {
        Json found = value(0);
        space();
        if (at_ != end_) bad();
        return found;
    }

private:
    const char *at_, *end_;

    [[noreturn]] void bad() { throw Error("litz: a package with JSON that cannot be read"); }
    void space() {
        while (at_ != end_ && (*at_ == ' ' || *at_ == '\n' || *at_ == '\t' || *at_ == '\r')) ++at_;
    }
    char next() {
        if (at_ == end_) bad();
        return *at_++;
    }
    bool take(View word) {
        if ((size_t)(end_ - at_) < word.size() || View(at_, word.size()) != word) return false;
        at_ += word.size();
        return true;
    }

    Json value(int depth) {
        Json j;
        space();
        if (depth > 200) bad();
        if (take("{")) {
            j.kind = Json::Object;
            for (space(); !take("}"); space()) {
                if (!j.fields.empty() && next() != ',') bad();
                space();
                std::string name = string();
                space();
                if (next() != ':') bad();
                j.fields[name] = value(depth + 1);
            }
        } else if (take("[")) {
            j.kind = Json::List;
            for (space(); !take("]"); space()) {
                if (!j.items.empty() && next() != ',') bad();
                j.items.push_back(value(depth + 1));
            }
        } else if (at_ != end_ && *at_ == '"') {
            j.kind = Json::Text;
            j.text = string();
        } else if (take("null")) {
        } else if (take("true") || take("false")) {
            j.kind = Json::Bool;
            j.number = at_[-2] == 'u';
        } else {
            number(j);
        }
        return j;
    }

    void number(Json& j) {
        const char* from = at_;
        while (at_ != end_ && strchr("+-.0123456789eEInfiatyN", *at_)) ++at_;
        std::string digits(from, at_);
        bool whole = digits.find_first_of(".eEIN") == std::string::npos;
        char* stop = nullptr;
        j.kind = whole ? Json::Int : Json::Float;
        if (whole) j.number = strtoll(digits.c_str(), &stop, 10);
        else j.real = strtod(digits.c_str(), &stop);
        if (digits.empty() || *stop) bad();
    }

    std::string string() {
        if (next() != '"') bad();
        std::string out;
        for (char c = next(); c != '"'; c = next()) {
            if (c != '\\') {
                out += c;
                continue;
            }
            switch (c = next()) {
                case 'n': out += '\n'; break;
                case 't': out += '\t'; break;
                case 'r': out += '\r'; break;
                case 'b': out += '\b'; break;
                case 'f': out += '\f'; break;
                case 'u': utf8(out); break;
                default: out += c;
            }
        }
        return out;
    }

    unsigned unit() {
        char digits[5] = {next(), next(), next(), next(), 0};
        return (unsigned)strtoul(digits, nullptr, 16);
    }
    void utf8(std::string& out) {
        unsigned c = unit();
        if (c >= 0xD800 && c < 0xDC00 && take("\\u")) c = 0x10000 + ((c - 0xD800) << 10) + unit() - 0xDC00;
        if (c < 0x80) out += (char)c;
        else if (c < 0x800) out += (char)(0xC0 | c >> 6);
        else if (c < 0x10000) out += (char)(0xE0 | c >> 12);
        else {
            out += (char)(0xF0 | c >> 18);
            out += (char)(0x80 | (c >> 12 & 63));
        }
        if (c >= 0x800) out += (char)(0x80 | (c >> 6 & 63));
        if (c >= 0x80) out += (char)(0x80 | (c & 63));
    }
};

// --- SHA-256 (FIPS 180-4) ----------------------------------------------------------------------

inline std::string sha256(View data) {
    static const uint32_t* const k = [] {
        // The first 32 bits of the fractional parts of the cube roots of the first 64 primes.
        static uint32_t table[64];
        int found = 0;
        for (int p = 2; found < 64; ++p) {
            bool prime = true;
            for (int d = 2; d * d <= p; ++d) prime &= p % d != 0;
            if (prime) table[found++] = (uint32_t)(uint64_t)((__builtin_cbrtl(p)) * 4294967296.0L);
        }
        return table;
    }();
    uint32_t h[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                     0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    auto turn = [](uint32_t x, int n) { return x >> n | x << (32 - n); };
    auto block = [&](const unsigned char* p) {
        uint32_t w[64], s[8];
        for (int i = 0; i < 16; ++i)
            w[i] = (uint32_t)p[4 * i] << 24 | p[4 * i + 1] << 16 | p[4 * i + 2] << 8 | p[4 * i + 3];
        for (int i = 16; i < 64; ++i) {
            uint32_t a = w[i - 15], b = w[i - 2];
            w[i] = w[i - 16] + w[i - 7] + (turn(a, 7) ^ turn(a, 18) ^ a >> 3) +
                   (turn(b, 17) ^ turn(b, 19) ^ b >> 10);
        }
        memcpy(s, h, sizeof s);
        for (int i = 0; i < 64; ++i) {
            uint32_t e = s[4], a = s[0];
            uint32_t x = s[7] + (turn(e, 6) ^ turn(e, 11) ^ turn(e, 25)) +
                         ((e & s[5]) ^ (~e & s[6])) + k[i] + w[i];
            uint32_t y = (turn(a, 2) ^ turn(a, 13) ^ turn(a, 22)) +
                         ((a & s[1]) ^ (a & s[2]) ^ (s[1] & s[2]));
            memmove(s + 1, s, 7 * sizeof *s);
            s[4] += x;
            s[0] = x + y;
        }
        for (int i = 0; i < 8; ++i) h[i] += s[i];
    };
    const unsigned char* p = (const unsigned char*)data.data();
    size_t n = data.size();
    for (; n >= 64; n -= 64, p += 64) block(p);
    unsigned char last[128] = {0};
    memcpy(last, p, n);
    last[n] = 0x80;
    size_t end = n < 56 ? 64 : 128;
    for (int i = 0; i < 8; ++i) last[end - 1 - i] = (unsigned char)((uint64_t)data.size() * 8 >> 8 * i);
    for (size_t i = 0; i < end; i += 64) block(last + i);
    std::string out;
    for (uint32_t x : h)
        for (int i = 28; i >= 0; i -= 4) out += "0123456789abcdef"[x >> i & 15];
    return out;
}

// --- index expressions -------------------------------------------------------------------------

inline i64 divide(i64 a, i64 b, bool quotient) {
    if (!b) throw Error("litz: a size is divided by zero");
    return floor_divide(a, b, quotient);
}

// An expression's text (src/litz/index/text.py), read once: steps on a stack.
class Formula {
public:
    // places: of its symbols, among the values that it is computed of.
    Formula(View text, const std::map<std::string, size_t>& places) : at_(text), places_(&places) {
        either();
        if (!skip().empty()) bad();
    }

    i64 value(const std::vector<i64>& known) const {
        i64* top = (i64*)__builtin_alloca(((size_t)highest_ + 1) * sizeof(i64));
        for (const Step& s : steps_) {
            if (s.op == Number) *++top = s.number;
            else if (s.op == Symbol) *++top = known[(size_t)s.number];
            else if (s.op == Minus) *top = -*top;
            else if (s.op == Not) *top = !*top;
            else {
                i64 b = *top--;
                *top = binary(s.op, *top, b);
            }
        }
        return *top;
    }

private:
    enum Op { Number, Symbol, Minus, Not, Or, And, Eq, Ne, Le, Ge, Lt, Gt, Add, Sub, Mul, Div, Mod, Min, Max };
    struct Step {
        Op op;
        i64 number;
    };
    View at_;
    const std::map<std::string, size_t>* places_;
    std::vector<Step> steps_;
    int height_ = 0, highest_ = 0, depth_ = 0;  // of the stack; of what is read

    static i64 binary(Op op, i64 a, i64 b) {
        switch (op) {
            case Or: return a | b;
            case And: return a & b;
            case Eq: return a == b;
            case Ne: return a != b;
            case Le: return a <= b;
            case Ge: return a >= b;
            case Lt: return a < b;
            case Gt: return a > b;
            case Add: return a + b;
            case Sub: return a - b;
            case Mul: return a * b;
            case Min: return b < a ? b : a;
            case Max: return b < a ? a : b;
            default: return divide(a, b, op == Div);
        }
    }

    [[noreturn]] void bad() { throw Error("litz: a package with an expression that cannot be read"); }
    View skip() {
        while (!at_.empty() && at_[0] == ' ') at_.remove_prefix(1);
        return at_;
    }
    bool take(View word) {
        if (skip().substr(0, word.size()) != word) return false;
        at_.remove_prefix(word.size());
        return true;
    }
    void put(Op op, i64 number = 0) {
        steps_.push_back({op, number});
        height_ += op <= Symbol ? 1 : op <= Not ? 0 : -1;
        if (highest_ < height_) highest_ = height_;
    }

    // What stands within something, to a depth at which it fits every thread's stack.
    using Part = void (Formula::*)();
    void within(Part part) {
        if (++depth_ > 200) bad();
        (this->*part)();
        --depth_;
    }

    // Operands between which operators of one rank stand, and whether there was one.
    bool one(Part part, std::initializer_list<std::pair<View, Op>> operators) {
        for (auto& o : operators) {
            if (!take(o.first)) continue;
            (this->*part)();
            put(o.second);
            return true;
        }
        return false;
    }
    void row(Part part, std::initializer_list<std::pair<View, Op>> operators) {
        (this->*part)();
        while (one(part, operators)) {}
    }
    void either() { row(&Formula::both, {{"or ", Or}}); }
    void both() { row(&Formula::test, {{"and ", And}}); }
    void test() {
        bool negated = take("not ");
        if (negated) within(&Formula::test);
        else sum();
        if (negated) put(Not);
        else one(&Formula::sum, {{"==", Eq}, {"!=", Ne}, {"<=", Le}, {">=", Ge}, {"<", Lt}, {">", Gt}});
    }
    void sum() { row(&Formula::term, {{"+", Add}, {"-", Sub}}); }
    void term() { row(&Formula::atom, {{"*", Mul}, {"//", Div}, {"%", Mod}}); }
    void least() { row(&Formula::either, {{",", Min}}); }
    void most() { row(&Formula::either, {{",", Max}}); }
    void atom() {
        if (take("-")) {
            within(&Formula::atom);
            return put(Minus);
        }
        bool least = take("min("), most = !least && take("max(");
        if (least || most || take("(")) {
            within(least ? &Formula::least : most ? &Formula::most : &Formula::either);
            if (!take(")")) bad();
            return;
        }
        size_t n = 0;
        while (n < skip().size() && (isalnum((unsigned char)at_[n]) || at_[n] == '_')) ++n;
        std::string word(at_.substr(0, n));
        at_.remove_prefix(n);
        if (word.empty()) bad();
        if (isdigit((unsigned char)word[0])) return put(Number, strtoll(word.c_str(), nullptr, 10));
        auto found = places_->find(word);
        if (found == places_->end()) bad();
        put(Symbol, (i64)found->second);
    }
};

// --- the file ----------------------------------------------------------------------------------

class File {
public:
    File(const std::string& path, bool check) : path_(path) {
        int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
        struct stat about;
        if (file < 0 || fstat(file, &about) || !about.st_size) {
            if (file >= 0) close(file);
            throw Error("litz: the package " + path + " cannot be read");
        }
        size_ = (size_t)about.st_size;
        map_ = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
        close(file);
        if (map_ == MAP_FAILED) throw Error("litz: the package " + path + " cannot be mapped");
        try {
            table(check);
        } catch (...) {
            munmap(map_, size_);
            throw;
        }
    }
    File(const File&) = delete;
    ~File() { munmap(map_, size_); }

    // An entry whose digest is compared.
    View read(const std::string& name) const {
        View found = view(name);
        if (sha256(found) != entries_[name.c_str()][2].text) damaged("the entry " + name + " is altered");
        return found;
    }
    View view(const std::string& name) const {
        const Json& row = entries_[name.c_str()];
        uint64_t at = (uint64_t)row[0].integer(), n = (uint64_t)row[1].integer();
        if (at > size_ || n > size_ - at) damaged(name + " lies outside of the file");
        return {(const char*)map_ + at, n};
    }
    const std::string& path() const { return path_; }

private:
    std::string path_;
    void* map_;
    size_t size_;
    Json entries_;

    [[noreturn]] void damaged(const std::string& why) const {
        throw Error("litz: the package " + path_ + " is damaged: " + why);
    }
    void table(bool check) {
        View all((const char*)map_, size_), end = all.substr(size_ < 160 ? 0 : size_ - 160);
        size_t start = end.rfind("litz-package ");
        unsigned long long version, at, n;
        char digest[65];
        std::string text(start == View::npos ? View() : end.substr(start));
        int length = 0;
        if (sscanf(text.c_str(), "litz-package %9llu %18llu %18llu %64[0-9a-f]%n", &version, &at, &n,
                   digest, &length) != 4 || (size_t)length != text.size())
            throw Error("litz: " + path_ + " is no package, or its end is missing");
        if (version != 1) throw Error("litz: " + path_ + " is a package of another version");
        if (at > size_ || n > size_ - at || sha256(all.substr(at, n)) != digest)
            damaged("its table of contents is altered");
        entries_ = JsonReader(all.substr(at, n)).all()["entries"];
        if (check)
            for (auto& entry : entries_.fields) read(entry.first);
    }
};

}  // namespace litz

#endif
