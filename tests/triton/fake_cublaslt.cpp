// A stand-in for cuBLASLt that computes products of float32 on the CPU, as it is told; what it is
// asked for goes to standard error.
#include <cstdint>
#include <cstdio>
#include <cstring>

struct Product {
    int turned[2] = {}, epilogue = 1;
    const float* row = nullptr;
};
struct Layout {
    uint64_t rows, columns;
    int64_t step;
};

extern "C" {
size_t cublasLtGetVersion() { return 130100; }
int cublasLtCreate(void** out) { return *out = (void*)0x55, 0; }
int cublasLtDestroy(void* handle) { return handle != (void*)0x55; }
int cublasLtMatmulDescCreate(void** out, int sums, int scales) {
    return *out = new Product(), sums != 68 || scales;
}
int cublasLtMatmulDescDestroy(void* p) { return delete (Product*)p, 0; }
int cublasLtMatmulDescSetAttribute(void* to, int attribute, const void* value, size_t size) {
    Product& p = *(Product*)to;
    if (attribute == 3 || attribute == 4) memcpy(p.turned + attribute - 3, value, size);
    if (attribute == 7) memcpy(&p.epilogue, value, size);
    if (attribute == 8) memcpy(&p.row, value, size);
    return 0;
}
int cublasLtMatrixLayoutCreate(void** out, int type, uint64_t rows, uint64_t columns, int64_t step) {
    return *out = new Layout{rows, columns, step}, type != 0;
}
int cublasLtMatrixLayoutDestroy(void* l) { return delete (Layout*)l, 0; }
int cublasLtMatrixLayoutSetAttribute(void*, int, const void*, size_t) { return 1; }
int cublasLtMatmul(void* handle, void* of, const float* alpha, const float* a, void* as, const float* b,
                   void* bs, const float* beta, const float* c, void*, float* d, void* ds,
                   const void* algorithm, void* room, size_t bytes, void* stream) {
    const Product& p = *(Product*)of;
    const Layout &la = *(Layout*)as, &lb = *(Layout*)bs, &ld = *(Layout*)ds;
    fprintf(stderr, "product of way %d in %zu bytes, epilogue %d, on %lx\n", *(const unsigned char*)algorithm,
            room ? bytes : 0, p.epilogue, (long)stream);
    uint64_t inner = p.turned[0] ? la.rows : la.columns;
    for (uint64_t j = 0; j < ld.columns; ++j)
        for (uint64_t i = 0; i < ld.rows; ++i) {
            float sum = 0;
            for (uint64_t k = 0; k < inner; ++k)
                sum += (p.turned[0] ? a[k + i * la.step] : a[i + k * la.step]) *
                       (p.turned[1] ? b[j + k * lb.step] : b[k + j * lb.step]);
            sum = *alpha * sum + (*beta ? *beta * c[i + j * ld.step] : 0);
            if (p.epilogue & 4) sum += p.row[i];
            d[i + j * ld.step] = p.epilogue & 2 && sum < 0 ? 0 : sum;
        }
    return handle != (void*)0x55;
}
}
