// Transposes: blocks are turned into a room in the cache, whose rows leave past it in runs; meanwhile the lines of
// the next block are asked for, so that memory reads while it is written.
#include "loops.h"

#include <litz/loops.h>
#include <litz/tiles.h>

constexpr int64_t ROWS = 64, COLUMNS = 128, PITCH = ROWS + 8, EACH = ROWS / 16;  // lines of a block to a column

// Whole blocks; what is left at the sides is little.
LOOP(transposed_copy) {
    const float* x = (const float*)tensors[0];
    float* out = (float*)tensors[1];
    const int64_t height = sizes[0], width = sizes[1], across = width / COLUMNS, blocks = height / ROWS * across;
#pragma omp parallel num_threads(threads)
    {
        alignas(64) static thread_local float room[COLUMNS * PITCH];
        const int64_t first = blocks * omp_get_thread_num() / threads;
        const int64_t last = blocks * (omp_get_thread_num() + 1) / threads;
        for (int64_t b = first; b < last; ++b) {
            const int64_t r = b / across * ROWS, c = b % across * COLUMNS;
            const float* from = x + r * width + c;
            const float* next = x + (b + 1) / across * ROWS * width + (b + 1) % across * COLUMNS;
            for (int64_t i = 0; i < ROWS; i += LANES)
                for (int64_t j = 0; j < COLUMNS; j += LANES)
                    litz::transpose<LANES>(from + i * width + j, width, room + j * PITCH + i, PITCH);
            for (int64_t j = 0, line = 0; j < COLUMNS; ++j) {
                for (int64_t k = 0; k < EACH && b + 1 < last; ++k, ++line)
                    __builtin_prefetch(next + line / (COLUMNS / 16) * width + line % (COLUMNS / 16) * 16, 0, 2);
                float* to = out + (c + j) * height + r;
                for (int64_t i = 0; i < ROWS; i += LANES)
                    litz::store_stream(to + i, litz::load<LANES>(room + j * PITCH + i));
            }
        }
        litz::stream_fence();
    }
    const int64_t rows = height / ROWS * ROWS, columns = across * COLUMNS;
    for (int64_t r = 0; r < height; ++r)
        for (int64_t c = r < rows ? columns : 0; c < width; ++c) out[c * height + r] = x[r * width + c];
}
