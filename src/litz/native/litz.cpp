// Loading packages, and checking what they are called with.

#include "litz.h"

#include <cstdio>
#include <fstream>
#include <set>
#include <sstream>

#include "reading.h"
#include "run.h"
#include "torch.h"

namespace litz {
namespace {

void* load_library(View data) {
    const char* base = getenv("TMPDIR");
    std::string folder = std::string(base && *base ? base : "/tmp") + "/litz-XXXXXX";
    if (!mkdtemp(folder.data())) throw Error("litz: no folder for a package's kernels: set TMPDIR");
    std::string path = folder + "/" + sha256(data).substr(0, 16) + ".so";
    std::ofstream(path, std::ios::binary).write(data.data(), (std::streamsize)data.size());
    void* found = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    std::string why = found ? "" : dlerror();
    unlink(path.c_str());
    rmdir(folder.c_str());
    if (!found) throw Error("litz: a package's kernels cannot be loaded: " + why);
    return found;
}

void* symbol(void* library, const std::string& name) {
    void* found = dlsym(library, name.c_str());
    if (!found) throw Error("litz: a package has no kernel " + name);
    return found;
}

std::set<std::string> cpu_flags() {
    std::ifstream file("/proc/cpuinfo");
    for (std::string line, word; std::getline(file, line);) {
        if (line.compare(0, 5, "flags") && line.compare(0, 8, "Features")) continue;
        std::istringstream words(line.substr(line.find(':') + 1));
        std::set<std::string> found;
        while (words >> word) found.insert(word);
        return found;
    }
    return {};
}

struct Input {
    std::string name, type, device;
    int32_t dtype = 0;
    Device on{};
    std::vector<Formula> shape, strides;  // of a number, itself in the place of a shape
    bool written = false;
    Json fixed;
};

// Where a symbol is read: factor * symbol + rest, from low to high.
struct Binding {
    i64 input, dim, factor, rest, low, high;
    size_t symbol;
};

struct Guard {
    std::string text;
    Formula holds;
};

struct Output {
    enum Kind { Result, Argument, Fixed } kind;
    size_t position;
    Value value;
};

// A tensor's sizes or strides, where it keeps them.
struct Dims {
    i64 n;
    const i64* at;

    Dims(const Tensor& t, int32_t (*get)(Handle, int64_t**)) {
        i64* all;
        must(aoti_torch_get_dim(t.get(), &n));
        must(get(t.get(), &all));
        at = all;
    }
};

struct Constant {
    std::string name, entry;
    Tensor tensor;
};

bool is_fixed(const Json& j, const Value& v) {
    switch (j.kind) {
        case Json::Null: return v.kind == Value::None;
        case Json::Bool: return v.kind == Value::Bool && v.number == j.number;
        case Json::Int: return v.kind == Value::Int && v.number == j.number;
        case Json::Float: return v.kind == Value::Float && v.real == j.real;
        default: return v.kind == Value::Text && v.text == j.text;
    }
}

}  // namespace

// --- tensors -----------------------------------------------------------------------------------

Tensor::Tensor(AtenTensorOpaque* owned)
    : handle_(owned, [](Handle h) { aoti_torch_delete_tensor_object(h); }) {}

static Tensor blob(void* data, const std::vector<i64>& shape, const std::vector<i64>& strides,
                   int32_t dtype, Device on = Device::cpu()) {
    Handle made;
    must(aoti_torch_create_tensor_from_blob(data, (i64)shape.size(), shape.data(), strides.data(), 0,
                                            dtype, on.type, on.index, &made));
    return Tensor(made);
}
Tensor Tensor::over(void* data, const std::vector<int64_t>& shape, const std::string& dtype,
                    const std::string& device) {
    std::vector<i64> strides(shape.size(), 1);
    for (size_t i = shape.size(); i-- > 1;) strides[i - 1] = strides[i] * shape[i];
    return blob(data, shape, strides, dtype_code(dtype), Device::of(device));
}
Tensor Tensor::to(const std::string& device) const {
    Device on = Device::of(device);
    return Device::of(*this) == on ? *this : copied(*this, shape(), strides(), dtype(), on);
}

static std::vector<i64> dims(const Tensor& t, int32_t (*get)(Handle, int64_t**)) {
    Dims d(t, get);
    return {d.at, d.at + d.n};
}
std::vector<int64_t> Tensor::shape() const { return dims(*this, aoti_torch_get_sizes); }
std::vector<int64_t> Tensor::strides() const { return dims(*this, aoti_torch_get_strides); }
int32_t Tensor::dtype() const {
    int32_t found;
    must(aoti_torch_get_dtype(get(), &found));
    return found;
}
void* Tensor::data() const {
    void* found;
    must(aoti_torch_get_data_ptr(get(), &found));
    return found;
}

// --- a loaded package --------------------------------------------------------------------------

struct Program::State {
    std::unique_ptr<File> file;
    Json record;
    std::string target;
    i64 abi = 0;
    std::vector<Input> inputs;
    std::vector<Constant> constants;
    std::vector<Binding> bindings;
    std::vector<Guard> guards;
    std::vector<Output> outputs;
    std::vector<View> sections;  // of the artifact
    i64 (*run_segment)(void**) = nullptr;
    std::map<i64, std::unique_ptr<Gpu>> gpus;
    Products products;
    std::unique_ptr<Module> module;

    void load();
    void load_artifact(const Json& target);
    void load_symbols(std::map<std::string, size_t>& places);
    void load_inputs(const std::map<std::string, size_t>& places);
    void load_outputs();
    void load_constants();
    void resolve(Json& j);
    std::unique_ptr<Module> bound(const Json& artifact, const Json& built);
    Object object(const Json& entry, const Json& values, const Module& of);
    Tensor constant(View data, const Json& record, const std::string& device, bool own);
    Kernel* kernel(const Json& built, const std::string& name);
    std::vector<Value> checked(const std::vector<Value>& values) const;
};

namespace {

struct NoGradients {
    bool before = aoti_torch_grad_mode_is_enabled();
    NoGradients() { aoti_torch_grad_mode_set_enabled(false); }
    ~NoGradients() { aoti_torch_grad_mode_set_enabled(before); }
};

}  // namespace

// --- loading -----------------------------------------------------------------------------------

Program::Program(const std::string& path, bool check) : state_(new State) {
    state_->file.reset(new File(path, check));
    state_->load();
}
Program::~Program() = default;

void Program::State::load() {
    record = JsonReader(file->read("program.json")).all();
    int major = 0, minor = 0;
    sscanf(record["versions"]["torch"].text.c_str(), "%d.%d", &major, &minor);
    abi = (i64)major << 56 | (i64)minor << 48;
    auto has = cpu_flags();
    const Json* chosen = nullptr;
    std::string built;
    for (const Json& t : record["targets"].items) {
        bool fits = true;
        for (const Json& need : t["needs"].items) fits &= has.count(need.text) > 0;
        built += " " + t["name"].text;
        if (fits && !chosen) chosen = &t;
    }
    if (!chosen)
        throw Error("litz: " + file->path() + " has nothing for this machine; it was built for" + built);
    target = (*chosen)["name"].text;
    std::map<std::string, size_t> places;
    load_symbols(places);
    load_inputs(places);
    for (const Json& g : record["guards"].items) guards.push_back({g.text, Formula(g.text, places)});
    load_outputs();
    load_constants();
    load_artifact(*chosen);
}

void Program::State::load_symbols(std::map<std::string, size_t>& places) {
    for (const Json& j : record["bindings"].items) {
        size_t place = places.emplace(j["symbol"].text, places.size()).first->second;
        const Json &bounds = record["symbols"][j["symbol"].text.c_str()], &high = bounds["high"];
        Binding b{j["input"].integer(), j["dim"].integer(), j["factor"].integer(), j["rest"].integer(),
                  bounds["low"].integer(), high.kind == Json::Int ? high.number : INT64_MAX, place};
        if (!b.factor) throw Error("litz: a package with a size of no factor");
        bindings.push_back(b);
    }
}

void Program::State::load_inputs(const std::map<std::string, size_t>& places) {
    for (const Json& j : record["inputs"].items) {
        Input i;
        i.name = j["name"].text;
        i.type = j["is"].text;
        if (i.type == "TensorInput") {
            i.device = j["device"].text;
            i.on = Device::of(i.device);
            i.dtype = dtype_code(j["dtype"].text);
            for (const Json& s : j["shape"].items) i.shape.emplace_back(s.text, places);
            for (const Json& s : j["strides"].items) i.strides.emplace_back(s.text, places);
            i.written = j["written"].number;
            if (i.strides.size() != i.shape.size()) throw Error("litz: a package with an input of other strides");
        } else if (i.type == "ObjectInput") throw Error("litz: the program takes a script object: it needs Python");
        else if (i.type == "NumberInput") i.shape.emplace_back(j["value"].text, places);
        else i.fixed = j["value"];
        inputs.push_back(std::move(i));
    }
}

void Program::State::load_outputs() {
    for (const Json& o : record["outputs"].items) {
        const std::string& kind = o["kind"].text;
        const Json& j = o["value"];
        Value v;
        v.kind = j.kind == Json::Null ? Value::None : j.kind == Json::Bool ? Value::Bool
               : j.kind == Json::Int ? Value::Int : j.kind == Json::Float ? Value::Float : Value::Text;
        v.number = j.number;
        v.real = j.real;
        v.text = j.text;
        outputs.push_back({kind == "result" ? Output::Result : kind == "argument" ? Output::Argument
                         : Output::Fixed, (size_t)o["position"].integer(), v});
    }
}

Tensor Program::State::constant(View data, const Json& record, const std::string& device, bool own) {
    auto shape = record["shape"].integers(), strides = record["strides"].integers();
    int32_t type = dtype_code(record["dtype"].text);
    Device on = Device::of(device);
    if (strides.size() != shape.size()) throw Error("litz: a package with a constant of other strides");
    i64 count = 1;
    for (size_t i = 0; i < shape.size(); ++i) {
        if (shape[i] <= 0) return empty(shape, strides, type, on);
        count += (shape[i] - 1) * strides[i];
    }
    if ((i64)data.size() != count * (i64)aoti_torch_dtype_element_size(type))
        throw Error("litz: a package with a constant of another size than its entry");
    Tensor flat = blob((void*)data.data(), {count}, {1}, type);
    if (own || !(on == Device::cpu())) flat = copied(flat, {count}, {1}, type, on);
    Handle found;  // its elements may be the same memory
    must(functions().view(flat.get(), (i64)shape.size(), shape.data(), strides.data(), 0, &found));
    return Tensor(found);
}

void Program::State::load_constants() {
    std::map<std::string, Tensor> made;
    for (const Json& j : record["constants"].items) {
        Constant c{j["name"].text, j["entry"].text, Tensor()};
        if (!made.count(c.entry))
            made[c.entry] = constant(file->view(c.entry), j, j["device"].text, j["written"].number);
        c.tensor = made[c.entry];
        constants.push_back(c);
    }
}

// Long texts lie in sections of their own.
void Program::State::resolve(Json& j) {
    if (j.kind == Json::Object && j.fields.size() == 1 && j.fields.count("text")) {
        std::string text(sections.at((size_t)j["text"].integer()));
        j = Json();
        j.kind = Json::Text;
        j.text = text;
    }
    for (auto& f : j.fields) resolve(f.second);
    for (Json& item : j.items) resolve(item);
}

void Program::State::load_artifact(const Json& chosen) {
    View data = file->read(chosen["artifact"].text);
    size_t first = data.find('\n'), second = first + 66;  // the version, then a digest
    if (first == View::npos || data.size() < second + 8) throw Error("litz: a package with another artifact");
    uint64_t length;
    memcpy(&length, data.data() + second, 8);
    if (length > data.size() - second - 8) throw Error("litz: a package with another artifact");
    Json head = JsonReader(data.substr(second + 8, length)).all();
    size_t at = second + 8 + length;
    for (i64 n : head["sections"].integers()) {
        if (n < 0 || (size_t)n > data.size() - at) throw Error("litz: a package with another artifact");
        sections.push_back(data.substr(at, (size_t)n));
        at += (size_t)n;
    }
    resolve(head.fields["artifact"]);
    products.load(chosen["products"]);
    if (!chosen["runtime"].text.empty()) {  // none where no kernel is of C++
        void* runtime = load_library(file->read(chosen["runtime"].text));
        run_segment = (i64(*)(void**))symbol(runtime, "litz_run_segment");
    }
    module = bound(head["artifact"], chosen["built"]);
}

// An artifact, or a body of one, with its kernels.
std::unique_ptr<Module> Program::State::bound(const Json& artifact, const Json& built) {
    const Json &host = artifact["host"], &plan = host["plan"];
    if (plan.kind != Json::Object)
        throw Error("litz: the program has no plan for the native executor: it needs Python");
    std::unique_ptr<Module> m(new Module);
    m->run_segment = run_segment;
    m->products = &products;
    m->abi = abi;
    for (const auto& body : artifact["bodies"].fields)
        m->bodies[body.first] = bound(body.second, built["bodies"][body.first.c_str()]);
    std::map<std::string, void*> kernels;
    for (const Json& unit : built["units"].items) {
        void* library = load_library(file->read(unit["entry"].text));
        for (const Json& k : unit["kernels"].items) kernels[k.text] = symbol(library, k.text);
    }
    std::map<std::string, const Json*> tables;
    for (const Json& t : host["segments"].items) tables[t["name"].text] = &t;
    for (const Json& name : plan["segments"].items) {
        if (!tables.count(name.text) || !run_segment) throw Error("litz: a package without the segment " + name.text);
        const Json& t = *tables[name.text];
        std::unique_ptr<Segment> s(new Segment());
        s->n_ptrs = t["n_ptrs"].integer();
        for (const Json& step : t["steps"].items) {
            auto p = step[1].integers(), i = step[2].integers();
            std::vector<int32_t> table(p.begin(), p.end());
            table.insert(table.end(), i.begin(), i.end());
            s->tables.push_back(table);
            void* kernel = kernels[step[0].text];
            if (!kernel) throw Error("litz: a package has no kernel " + step[0].text);
            s->own.push_back({kernel, s->tables.back().data(), (i64)p.size(), (i64)i.size()});
            s->max_ptrs = std::max(s->max_ptrs, (i64)p.size());
            s->max_ints = std::max(s->max_ints, (i64)i.size());
        }
        s->steps = s->own.data();
        s->n_steps = (i64)s->own.size();
        m->segments.push_back(std::move(s));
    }
    m->n_tensors = plan["tensors"].integer();
    for (const Json& name : plan["kernels"].items) m->kernels.emplace_back(kernel(built, name.text));
    View words = sections.at((size_t)plan["words"]["bytes"].integer());
    m->words.resize(words.size() / sizeof(i64));
    memcpy(m->words.data(), words.data(), m->words.size() * sizeof(i64));
    for (const Json& n : plan["numbers"].items) m->numbers.push_back(n.number);
    for (const Json& o : plan["objects"].items) m->objects.push_back(object(o, host["values"], *m));
    return m;
}

// A kernel for a GPU.
Kernel* Program::State::kernel(const Json& built, const std::string& name) {
    for (const Json& j : built["launchers"].items) {
        if (j["name"].text != name) continue;
        i64 index = Device::of(j["device"].text).index;
        std::unique_ptr<Gpu>& gpu = gpus[index];
        if (!gpu) gpu.reset(new Gpu((int)index));
        return new Kernel(j, *gpu, *file);
    }
    throw Error("litz: a package has no kernel " + name);
}

Object Program::State::object(const Json& entry, const Json& values, const Module& of) {
    Object o;
    const std::string &kind = entry[0].text, &text = entry[1].text;
    bool quoted = !text.empty() && (text[0] == '\'' || text[0] == '"');
    o.text = text;
    if (kind == "float") {  // hexadecimal, inf or nan
        double v = strtod(text.c_str(), nullptr);
        memcpy(&o.code, &v, sizeof v);
        o.kind = Object::Real;
    } else if (kind == "literal" && text == "None") {
        o.kind = Object::Nothing;
    } else if (kind == "literal" && quoted) {
        o.kind = Object::Text;
        o.text = text.substr(1, text.size() - 2);
    } else if (kind == "literal") {
        o.kind = Object::Number;
        o.code = text == "True" ? 1 : strtoll(text.c_str(), nullptr, 10);
    } else if (kind == "value") {
        const Json& value = values[text.c_str()];
        const std::string& is = value["is"].text;
        o.kind = Object::Python;
        if (is == "Scripted") throw Error("litz: the program holds a script object: it needs Python");
        if (is == "Named") o.text = value["module"].text + ":" + value["path"].text;
        if (is == "Constant") {
            const Json& t = value["tensor"];
            o.kind = Object::Constant;
            View content = sections.at((size_t)t["content"]["bytes"].integer());
            o.tensor = constant(content, t, value["device"].text, true);
        }
        if (is == "BoundBody") {
            auto found = of.bodies.find(value["name"].text);
            o.kind = Object::Body;
            o.body = found == of.bodies.end() ? nullptr : found->second.get();
        }
    } else {
        o.kind = Object::Python;
        bool known = dlsym(RTLD_DEFAULT, ("aoti_torch_dtype_" + text).c_str());
        if (kind == "torch" && known) o.code = dtype_code(text);
        if (kind == "device") {
            Device on = Device::of(text);
            o.code = (i64)on.type << 8 | (on.index & 0xFF);
        }
    }
    return o;
}

// --- calls -------------------------------------------------------------------------------------

std::vector<Value> Program::State::checked(const std::vector<Value>& values) const {
    if (values.size() != inputs.size())
        throw Error("litz: the program takes " + std::to_string(inputs.size()) + " inputs, not " +
                    std::to_string(values.size()));
    for (size_t n = 0; n < inputs.size(); ++n) {
        const Input& i = inputs[n];
        const Value& v = values[n];
        auto refuse = [&](const std::string& why) { throw Error("litz: the input " + i.name + why); };
        if (i.type == "FixedInput" && !is_fixed(i.fixed, v)) refuse(" is not what the program was exported for");
        if (i.type == "NumberInput" && v.kind != Value::Int) refuse(" is no integer");
        if (i.type != "TensorInput") continue;
        if (v.kind != Value::IsTensor || !v.tensor) refuse(" is no tensor");
        if (!(Device::of(v.tensor) == i.on)) refuse(" is on another device");
        if (v.tensor.dtype() != i.dtype) refuse(" has another element type");
        if ((size_t)Dims(v.tensor, aoti_torch_get_sizes).n != i.shape.size())
            refuse(" does not have " + std::to_string(i.shape.size()) + " dimensions");
    }
    auto size = [&](i64 n, i64 dim) {
        const Value& v = values.at((size_t)n);
        if (v.kind != Value::IsTensor) return (i64)v.number;
        Dims sizes(v.tensor, aoti_torch_get_sizes);
        if (dim < 0 || dim >= sizes.n) throw Error("litz: a package with a size of no dimension");
        return sizes.at[dim];
    };
    auto refuse = [&](i64 n, i64 dim, const std::string& takes) {
        throw Error("litz: dimension " + std::to_string(dim) + " of the input " + inputs[(size_t)n].name +
                    " is " + std::to_string(size(n, dim)) + "; the package takes " + takes);
    };
    std::vector<i64> known(bindings.size());
    for (const Binding& b : bindings) {
        i64 of = size(b.input, b.dim) - b.rest, found = of / b.factor;
        if (of % b.factor) refuse(b.input, b.dim, "multiples of " + std::to_string(b.factor));
        if (found < b.low || found > b.high)
            refuse(b.input, b.dim, std::to_string(b.low * b.factor + b.rest) +
                   (b.high < INT64_MAX ? " to " + std::to_string(b.high * b.factor + b.rest) : " and more"));
        known[b.symbol] = found;
    }
    std::vector<Value> out;
    out.reserve(constants.size() + inputs.size());
    for (const Constant& c : constants) out.push_back(c.tensor);
    for (size_t n = 0; n < inputs.size(); ++n) {
        const Input& i = inputs[n];
        if (i.type == "FixedInput") continue;
        for (size_t k = 0; k < i.shape.size(); ++k) {
            i64 wanted = i.shape[k].value(known);
            if (size((i64)n, (i64)k) != wanted) refuse((i64)n, (i64)k, std::to_string(wanted));
        }
        out.push_back(values[n]);
        if (i.type != "TensorInput") continue;
        const Tensor& t = values[n].tensor;
        Dims sizes(t, aoti_torch_get_sizes), strides(t, aoti_torch_get_strides);
        bool lies = true, none = false;
        for (size_t k = 0; k < i.shape.size(); ++k) {
            lies &= sizes.at[k] == 1 || strides.at[k] == i.strides[k].value(known);
            none |= !sizes.at[k];
        }
        if (lies || none) continue;
        if (i.written) throw Error("litz: the input " + i.name + " is written and has other strides");
        std::vector<i64> wanted;
        for (const Formula& f : i.strides) wanted.push_back(f.value(known));
        out.back().tensor = copied(t, t.shape(), wanted, i.dtype, Device::of(t));
    }
    for (const Guard& g : guards)
        if (!g.holds.value(known)) throw Error("litz: the package holds only while " + g.text);
    return out;
}

std::vector<Value> Program::operator()(const std::vector<Value>& inputs) const {
    const State& s = *state_;
    NoGradients none;
    auto arguments = s.checked(inputs);
    auto results = (*s.module)(arguments);
    std::vector<Value> out;
    out.reserve(s.outputs.size());
    for (const Output& o : s.outputs)
        out.push_back(o.kind == Output::Result ? results.at(o.position)
                    : o.kind == Output::Argument ? arguments.at(o.position) : o.value);
    return out;
}

std::vector<std::string> Program::inputs() const {
    std::vector<std::string> names;
    for (const Input& i : state_->inputs) names.push_back(i.name);
    return names;
}
std::vector<std::string> Program::devices() const {
    std::vector<std::string> all;
    for (const Input& i : state_->inputs) all.push_back(i.device);
    return all;
}
std::vector<std::string> Program::constants() const {
    std::vector<std::string> names;
    for (const Constant& c : state_->constants) names.push_back(c.name);
    return names;
}
const std::string& Program::target() const { return state_->target; }

}  // namespace litz
